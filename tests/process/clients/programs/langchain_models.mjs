// LangChain.js with OpenAI's APIs and Anthropic's.
import { ChatAnthropic } from "@langchain/anthropic";
import { ChatOpenAI } from "@langchain/openai";
import { MODEL, SCHEMA, TOOL, base, run } from "./cases.mjs";

function client(name, packageName, make) {
  return {
    name,
    package: packageName,
    async whole(prompt, model) {
      return (await make(model).invoke(prompt)).text;
    },
    async *stream(prompt, signal) {
      for await (const chunk of await make(MODEL).stream(prompt, { signal })) {
        yield chunk.text;
      }
    },
    async tools() {
      const tool = { type: "function", function: { name: TOOL, description: "Weather.", parameters: SCHEMA } };
      return (await make(MODEL).bindTools([tool]).invoke("weather?")).tool_calls[0].args;
    },
  };
}

const openai = { apiKey: "unused", configuration: { baseURL: `${base}/v1` }, maxRetries: 2 };
await run([
  client("LangChain.js, ChatOpenAI", "@langchain/openai", (model) => new ChatOpenAI({ model, ...openai })),
  client(
    "LangChain.js, ChatOpenAI, responses",
    "@langchain/openai",
    (model) => new ChatOpenAI({ model, useResponsesApi: true, ...openai }),
  ),
  client(
    "LangChain.js, ChatAnthropic",
    "@langchain/anthropic",
    (model) => new ChatAnthropic({ model, apiKey: "unused", anthropicApiUrl: base, maxRetries: 2, maxTokens: 64 }),
  ),
]);
