// The OpenAI SDK for Node.
import OpenAI from "openai";
import { MODEL, SCHEMA, TOOL, base, run } from "./cases.mjs";

const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "unused" });
const tool = { name: TOOL, description: "The weather of a city.", parameters: SCHEMA };
const messages = (content) => [{ role: "user", content }];

await run([
  {
    name: "openai (Node), chat",
    package: "openai",
    async whole(prompt, model) {
      const answer = await client.chat.completions.create({ model, messages: messages(prompt) });
      return answer.choices[0].message.content;
    },
    async *stream(prompt, signal) {
      const asked = { model: MODEL, messages: messages(prompt), stream: true };
      for await (const chunk of await client.chat.completions.create(asked, { signal })) {
        yield chunk.choices[0].delta.content;
      }
    },
    async tools() {
      const asked = { model: MODEL, messages: messages("weather?"), tools: [{ type: "function", function: tool }] };
      const answer = await client.chat.completions.stream(asked).finalChatCompletion();
      return JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments);
    },
  },
  {
    name: "openai (Node), responses",
    package: "openai",
    async whole(input, model) {
      return (await client.responses.create({ model, input })).output_text;
    },
    async *stream(input, signal) {
      for await (const event of await client.responses.create({ model: MODEL, input, stream: true }, { signal })) {
        if (event.type === "response.output_text.delta") {
          yield event.delta;
        }
      }
    },
    async tools() {
      const asked = { model: MODEL, input: "weather?", tools: [{ type: "function", strict: null, ...tool }] };
      const answer = await client.responses.stream(asked).finalResponse();
      return JSON.parse(answer.output[0].arguments);
    },
  },
  {
    name: "openai (Node), completions",
    package: "openai",
    async whole(prompt, model) {
      return (await client.completions.create({ model, prompt })).choices[0].text;
    },
    async *stream(prompt, signal) {
      for await (const chunk of await client.completions.create({ model: MODEL, prompt, stream: true }, { signal })) {
        yield chunk.choices[0].text;
      }
    },
    // They come in base64, which the SDK asks for.
    async embed() {
      return (await client.embeddings.create({ model: MODEL, input: "hello" })).data[0].embedding;
    },
  },
]);
