// JSON for people: a tree that folds, made of text nodes only. Long lists come in portions, and what is folded is not
// built until somebody opens it, so a payload of a megabyte costs nothing to look at.

import { h, fill } from "./dom.js";
import { plural } from "./format.js";

const PORTION = 100;
const OPEN_DEPTH = 3;

/** A value as a tree. */
export function tree(value) {
  return h("div", { class: "json top" }, node(value, 0));
}

function node(value, depth) {
  if (value === null || typeof value !== "object") return leaf(value);
  const entries = Array.isArray(value) ? value.map((inner, at) => [at, inner]) : Object.entries(value);
  const [left, right] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return mark(left + right);
  const list = h("ul");
  const count = plural(entries.length, Array.isArray(value) ? "item" : "member");
  const details = h("details", {}, h("summary", {}, mark(left), h("span", { class: "fold p", text: ` ${count} ${right}` })), list);
  const build = () => {
    if (!list.childElementCount) grow(list, entries, 0, depth, Array.isArray(value));
  };
  details.addEventListener("toggle", build);
  if (depth < OPEN_DEPTH && entries.length <= PORTION) {
    details.open = true;
    build();
  }
  const close = mark(details.open ? right : "");
  details.addEventListener("toggle", () => (close.textContent = details.open ? right : "")); // folded, it stands inside
  return h("span", {}, details, close);
}

function grow(list, entries, from, depth, isArray) {
  for (const [name, inner] of entries.slice(from, from + PORTION)) {
    list.append(h("li", {}, h("span", { class: isArray ? "p" : "k", text: isArray ? String(name) : JSON.stringify(name) }), mark(": "), node(inner, depth + 1)));
  }
  const left = entries.length - from - PORTION;
  if (left <= 0) return;
  const more = h("li", {}, h("button", { class: "link", type: "button", text: `${left} more` }));
  more.firstChild.addEventListener("click", () => {
    more.remove();
    grow(list, entries, from + PORTION, depth, isArray);
  });
  list.append(more);
}

function leaf(value) {
  const kind = typeof value === "string" ? "s" : typeof value === "number" ? "n" : "l";
  return h("span", { class: kind, text: JSON.stringify(value) });
}

function mark(text) {
  return h("span", { class: "p", text });
}

/** A value with a switch between the tree and the text as it was stored, and a way to copy it. */
export function viewer(text) {
  let parsed;
  try {
    parsed = JSON.parse(text);
  } catch {
    return h("pre", { class: "raw", text });
  }
  const place = h("div", {}, tree(parsed));
  const raw = h("button", { class: "plain", type: "button", aria: { pressed: "false" }, text: "Raw" });
  raw.addEventListener("click", () => {
    const on = raw.getAttribute("aria-pressed") === "false";
    raw.setAttribute("aria-pressed", String(on));
    fill(place, on ? h("pre", { class: "raw", tabindex: "0", text }) : tree(parsed));
  });
  const copy = h("button", { class: "plain", type: "button", text: "Copy", on: { click: () => copyText(text, copy) } });
  return h("div", {}, h("div", { class: "tools" }, raw, copy), place);
}

export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

/**
 * The payload as the node stored it. Numbers beyond 2^53 would change if they were parsed, so the text is cut out of
 * the envelope, whose last member it is. (A header may be called payload, too; what follows it is no JSON by itself.)
 */
export function payloadText(envelope) {
  const name = ',"payload":';
  for (let at = envelope.indexOf(name); at >= 0; at = envelope.indexOf(name, at + 1)) {
    const text = envelope.slice(at + name.length, -1);
    try {
      JSON.parse(text);
      return text;
    } catch {
      continue;
    }
  }
  return null;
}
