// Vercel's AI SDK with its providers for OpenAI's APIs, for servers that are compatible with it, and for Anthropic's.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import { MODEL, SCHEMA, TOOL, base, run } from "./cases.mjs";

function client(name, packageName, provide) {
  return {
    name,
    package: packageName,
    async whole(prompt, model) {
      return (await generateText({ model: provide(model), prompt })).text;
    },
    async *stream(prompt, abortSignal) {
      const { fullStream } = streamText({ model: provide(MODEL), prompt, abortSignal, onError() {} });
      for await (const part of fullStream) {
        if (part.type === "error") {
          throw part.error instanceof Error ? part.error : new Error(JSON.stringify(part.error));
        }
        if (part.type === "text-delta") {
          yield part.text;
        }
      }
    },
    async tools() {
      const tools = { [TOOL]: tool({ description: "Weather.", inputSchema: jsonSchema(SCHEMA) }) };
      const { toolCalls } = streamText({ model: provide(MODEL), prompt: "weather?", tools });
      return (await toolCalls)[0].input;
    },
  };
}

const options = { baseURL: `${base}/v1`, apiKey: "unused" };
const openai = createOpenAI(options);
const compatible = createOpenAICompatible({ name: "router", ...options });
await run([
  client("AI SDK, openai (responses)", "@ai-sdk/openai", (model) => openai(model)),
  client("AI SDK, openai.chat", "@ai-sdk/openai", (model) => openai.chat(model)),
  client("AI SDK, openai-compatible", "@ai-sdk/openai-compatible", (model) => compatible(model)),
  client("AI SDK, anthropic", "@ai-sdk/anthropic", (model) => createAnthropic(options)(model)),
]);
