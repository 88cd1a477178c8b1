// Reads the server's events. With fetch, because EventSource cannot send a key in a header.

const KEY = "kvatlas-key";
// The server says something every second.
const SILENCE = 6000;
const WAITS = [500, 1000, 2000, 5000];

/** The key of this tab, if one was given. */
export const key = () => sessionStorage.getItem(KEY);

/** Keeps the key for this tab. */
export function keep(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** Asks the server for something, with the key if there is one. */
export function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  return fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
}

/**
 * Follows the server for ever. `on` has: `whole({state, lists})`, `state(state)`, `more({list, items})`, `open()`,
 * `lost(why, milliseconds until the next try)`, and `key(whether one was sent)`, which resolves when there is another one.
 */
export async function follow(path, on) {
  let failures = 0;
  for (;;) {
    const control = new AbortController();
    let why = "the server ended the connection";
    let timer = setTimeout(() => control.abort(), SILENCE);
    try {
      const answer = await ask(path, { signal: control.signal });
      if (answer.status === 401 || answer.status === 403) {
        clearTimeout(timer);
        await on.key(key() !== null);
        continue;
      }
      if (!answer.ok) throw new Error((await refusal(answer)));
      on.open();
      for await (const [name, data] of events(answer.body)) {
        failures = 0;
        clearTimeout(timer);
        timer = setTimeout(() => control.abort(), SILENCE);
        on[name]?.(JSON.parse(data));
      }
    } catch (error) {
      if (control.signal.aborted) why = `the server said nothing for ${SILENCE / 1000} seconds`;
      else why = error instanceof TypeError ? "the server cannot be reached" : error.message;
    }
    clearTimeout(timer);
    control.abort();
    const wait = WAITS[Math.min(failures++, WAITS.length - 1)];
    on.lost(why, wait);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/** What a refusal says, in words. */
export async function refusal(answer) {
  const text = await answer.text().catch(() => "");
  let said = null;
  try {
    const { error } = JSON.parse(text);
    said = typeof error === "string" ? error : error?.message;
  } catch {
    // It is no JSON: its status says enough.
  }
  return said ?? `the server answered ${answer.status}`;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const event = rest.slice(0, end);
      rest = rest.slice(end + 2);
      const fields = /^event: (\w+)\ndata: ([^]*)$/.exec(event);
      if (fields) yield [fields[1], fields[2]];
    }
  }
}
