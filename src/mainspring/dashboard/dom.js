// Building the page. Everything that is shown goes through `h`, which knows text and elements but no markup:
// a payload can never become anything but text. (The content security policy refuses the other ways, too.)

import { exact, local } from "./format.js";

/** An element. Props: class, text, on {event: handler}, aria, data, css (properties), and plain attributes. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name === "aria") for (const [key, given] of Object.entries(value)) setAria(element, key, given);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "css") for (const [key, given] of Object.entries(value)) element.style.setProperty(key, given);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

export function setAria(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(`aria-${name}`);
  else element.setAttribute(`aria-${name}`, String(value));
}

/** Put these children in place of what is there. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

/** The same for what is drawn again while somebody may be in it: whoever has the focus keeps it. */
export function refill(element, ...children) {
  const stops = () => [...element.querySelectorAll("a, button, input, select, summary")];
  const at = stops().indexOf(document.activeElement);
  fill(element, ...children);
  if (at >= 0) stops()[at]?.focus({ preventScroll: true });
  return element;
}

/** Show `detail` beside a list, or above it where there is no room for both; there it is brought into view. */
export function beside(split, list, detail) {
  leaveOnly(split, list);
  split.append(detail);
  split.classList.add("open");
  if (getComputedStyle(split).gridTemplateColumns.split(" ").length === 1) detail.scrollIntoView({ block: "start" });
}

/** The list alone again. */
export function alone(split, list) {
  leaveOnly(split, list);
  split.classList.remove("open");
}

/** What closes a detail, also by Escape; whoever uses it goes on in the list. */
export function closer(list, hide) {
  const click = () => {
    hide();
    list.focus({ preventScroll: true });
  };
  return h("button", { class: "plain", type: "button", data: { closes: "" }, text: "Close", on: { click } });
}

/** The list itself is never taken out: it would come back scrolled to its top. */
function leaveOnly(split, list) {
  for (const child of [...split.children]) if (child !== list) child.remove();
}

/** Set a text only when it changed: an unchanged one is not laid out again, and keeps a selection. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** The colour a token has now, for a canvas. */
export function colour(token) {
  probe ??= document.body.appendChild(h("i", { class: "unseen" }));
  probe.style.color = `var(--${token})`;
  return getComputedStyle(probe).color;
}
let probe = null;

/** A panel with a heading. */
export function panel(title, { note = null, class: kind = "" } = {}, ...children) {
  return h(
    "section",
    { class: `panel ${kind}`, aria: { label: title } },
    h("header", {}, h("h2", { text: title }), note && h("span", { class: "side-note" }, note)),
    ...children,
  );
}

/** The head of a view: its name, a sentence, what can be done. */
export function head(title, sentence, actions = [], crumb = null) {
  return h(
    "div",
    { class: "head" },
    h("div", { class: "what" }, crumb, h("h1", { text: title }), sentence && h("p", {}, sentence)),
    h("div", { class: "actions" }, actions),
  );
}

export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, value]) => [h("dt", { text: name }), h("dd", {}, value)]),
  );
}

/** A time, in local time; UTC is in its tooltip. `text` where a list has another form of it. */
export function time(ms, text = local(ms)) {
  return h("time", { datetime: exact(ms), title: text === local(ms) ? exact(ms) : `${local(ms)} local\n${exact(ms)}`, text });
}

/** Why something failed: the exception's type, text and traceback; nothing where there was none. */
export function failure(kept, title = "Exception") {
  if (!kept) return null;
  const said = kept.message ? `${kept.type}: ${kept.message}` : kept.type;
  return h("section", { class: "failure" }, h("h3", { text: title }), h("p", { class: "bad", text: said }), kept.traceback && h("pre", { class: "lines", tabindex: "0", aria: { label: "Traceback" }, text: kept.traceback }));
}

export function tag(text, kind = "") {
  return h("span", { class: `tag ${kind}`, text });
}

export function empty(title, sentence = "") {
  return h("div", { class: "empty" }, h("b", { text: title }), sentence);
}

/** A plain table for a few rows; `columns` are [label, isNumber, staysOnOneLine]. */
export function table(label, columns, rows) {
  return h(
    "div",
    { class: "scroll-x" },
    h(
      "table",
      { aria: { label } },
      h("thead", {}, h("tr", {}, columns.map(([name, right]) => h("th", { scope: "col", class: right ? "right" : "", text: name })))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: `${columns[at][1] ? "right" : ""} ${columns[at][2] ? "tight" : ""}` }, cell))))),
    ),
  );
}
