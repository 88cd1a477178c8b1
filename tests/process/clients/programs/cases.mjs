// The cases of a client in JavaScript: the same as in cases.py.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [, , base, only, expectations] = process.argv;
export { base };
// Those of expected.py.
export const expected = JSON.parse(expectations);
export const { model: MODEL, tool: TOOL, schema: SCHEMA } = expected;

// Libraries print too: that is not for whoever reads the lines.
console.log = console.info = console.debug = console.error;

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

function expect(found, wanted) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);
  }
}

async function fails(act, words) {
  let answer;
  try {
    answer = await act();
  } catch (error) {
    const said = [error, error.cause, error.lastError].map((one) => one?.message ?? JSON.stringify(one)).join(" ");
    if (!said.includes(words)) {
      throw new Error(`the error does not say ${words}: ${said}`);
    }
    return;
  }
  throw new Error(`no error, but ${JSON.stringify(answer)}`);
}

async function all(pieces) {
  let text = "";
  for await (const piece of pieces) {
    text += piece ?? "";
  }
  return text;
}

async function leave(stream, prompt) {
  const controller = new AbortController();
  try {
    for await (const piece of stream(prompt, controller.signal)) {
      if (piece) {
        controller.abort();
        return;
      }
    }
  } catch (error) {
    if (!controller.signal.aborted) {
      throw error;
    }
  }
}

function order(what) {
  const tag = `t${randomUUID().replaceAll("-", "")}`;
  return [`engine:${what}-${tag}`, tag];
}

function* cases({ whole, stream, tools, embed }) {
  yield ["whole", "", async () => expect(await whole("hello", MODEL), expected.text)];
  yield ["stream", "", async () => expect(await all(stream("hello")), expected.text)];
  if (tools) {
    yield ["tools", "", async () => expect(await tools(), expected.arguments)];
  }
  if (embed) {
    yield ["embeddings", "", async () => expect(await embed(), expected.vector)];
  }
  const [slow, slowTag] = order("slow");
  yield ["cancelled", slowTag, () => leave(stream, slow)];
  const [busy, busyTag] = order("busy-3");
  yield ["retried", busyTag, async () => expect(await whole(busy, MODEL), expected.text)];
  const [refused, refusedTag] = order("refuse");
  yield ["refused", refusedTag, () => fails(() => whole(refused, MODEL), expected.refusal)];
  yield ["unknown model", "", () => fails(() => whole("hello", "nobodys"), "nobodys")];
  const [cut, cutTag] = order("cut");
  yield ["broken off", cutTag, () => fails(() => all(stream(cut)), "engine e")];
}

function version(name) {
  const { paths } = createRequire(import.meta.url).resolve;
  for (const folder of paths(name)) {
    try {
      return JSON.parse(readFileSync(`${folder}/${name}/package.json`, "utf8")).version;
    } catch {
      // In the next one.
    }
  }
  return "";
}

/**
 * Runs all cases of the clients. Each has a `name`, its npm `package`, `whole(prompt, model)`, `stream(prompt, signal)`, and
 * perhaps `tools()` and `embed()`.
 */
export async function run(clients) {
  for (const client of clients.filter((one) => one.name.startsWith(only))) {
    for (const [name, tag, act] of cases(client)) {
      let problem = null;
      try {
        await act();
      } catch (error) {
        problem = `${error.name}: ${error.message}`;
      }
      const line = { client: client.name, version: version(client.package), case: name, tag, problem };
      process.stdout.write(`${JSON.stringify(line)}\n`);
      await lines.next();
    }
  }
  process.exit(0);
}
