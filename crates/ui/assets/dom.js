// Small helpers for the document. What engines say is always set as text, never as HTML.

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/** Makes an element: its class, and what is in it (texts and elements). */
export function make(tag, className, ...inside) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...inside.filter((part) => part !== null && part !== undefined));
  return element;
}

/** Sets a text if it is another one: layout is not cheap. */
export function say(element, text) {
  if (element.kvText === text) return;
  element.kvText = text;
  const { firstChild } = element;
  if (firstChild?.nodeType === Node.TEXT_NODE && firstChild === element.lastChild) firstChild.data = text;
  else element.textContent = text;
}

/** Sets an attribute if it is another one; null takes it away. */
export function mark(element, name, value) {
  const marks = (element.kvMarks ??= {});
  if (marks[name] === value) return;
  marks[name] = value;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

/** Fills a list of names and values: `[name, value, class]`. Rows without a value are left out. */
export function definitions(pairs) {
  const list = make("dl", "facts");
  for (const [name, value, className] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    list.append(make("dt", "", name), make("dd", className ?? "", value));
  }
  return list;
}
