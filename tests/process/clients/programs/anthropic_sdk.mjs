// The Anthropic SDK for Node.
import Anthropic from "@anthropic-ai/sdk";
import { MODEL, SCHEMA, TOOL, base, run } from "./cases.mjs";

const client = new Anthropic({ baseURL: base, apiKey: "unused" });
const asked = (prompt, model = MODEL) => ({ model, max_tokens: 64, messages: [{ role: "user", content: prompt }] });

await run([
  {
    name: "anthropic (Node)",
    package: "@anthropic-ai/sdk",
    async whole(prompt, model) {
      return (await client.messages.create(asked(prompt, model))).content[0].text;
    },
    async *stream(prompt, signal) {
      for await (const event of client.messages.stream(asked(prompt), { signal })) {
        if (event.type === "content_block_delta") {
          yield event.delta.text;
        }
      }
    },
    async tools() {
      const tools = [{ name: TOOL, description: "The weather of a city.", input_schema: SCHEMA }];
      const message = await client.messages.stream({ ...asked("weather?"), tools }).finalMessage();
      return message.content[0].input;
    },
  },
]);
