// Shortcuts. One letter does something, `g` and a letter goes somewhere; none of them works while somebody types.

import { h } from "./dom.js";

const SHORTCUTS = [
  ["g o", "Overview", "#/"],
  ["g n", "Nodes", "#/nodes"],
  ["g t", "Topics", "#/topics"],
  ["g e", "Events", "#/events"],
  ["g g", "Groups", "#/groups"],
  ["g d", "Dead letters", "#/deadletters"],
  ["g k", "Kernel", "#/kernel"],
  ["g s", "Schedules", "#/schedules"],
  ["g a", "Tasks", "#/tasks"],
  ["g i", "Timers", "#/timers"],
  ["g r", "Runs", "#/runs"],
  ["g b", "Beats", "#/beats"],
  ["g c", "Causation", "#/trace"],
];

/** Listen for shortcuts; `toggleTheme` is what `l` does. */
export function listen(toggleTheme) {
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
    if (going && Date.now() - going < 1500) {
      going = 0;
      const found = SHORTCUTS.find(([keys]) => keys === `g ${event.key}`);
      if (found) {
        event.preventDefault();
        location.hash = found[2];
      }
      return;
    }
    if (event.key === "g") going = Date.now();
    else if (event.key === "/") focusSearch(event);
    else if (event.key === "?") help();
    else if (event.key === "l") toggleTheme();
    else if (event.key === "Escape") document.querySelector("[data-closes]")?.click();
  });
}

function typing(target) {
  return target.isContentEditable || ["TEXTAREA", "SELECT"].includes(target.tagName) || (target.tagName === "INPUT" && target.type !== "checkbox");
}

function focusSearch(event) {
  const field = document.querySelector("#view input[type=search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
}

/** The list of shortcuts, as a dialog. */
export function help() {
  const line = (keys, text) => [h("span", {}, keys.split(" ").flatMap((key, at) => [at ? " " : null, h("kbd", { text: key })])), h("span", { text })];
  const lines = [
    ...SHORTCUTS.map(([keys, text]) => line(keys, text)),
    line("/", "Search in this view"),
    line("↑ ↓ PgUp PgDn Home End", "Move in a table"),
    line("Enter", "Open what is chosen"),
    line("Space", "Mark it, where rows can be marked"),
    line("Esc", "Close the details"),
    line("l", "Light or dark"),
    line("?", "This list"),
  ];
  const dialog = h("dialog", { aria: { label: "Keyboard" } }, h("form", { method: "dialog" }, h("h2", { text: "Keyboard" }), h("div", { class: "keys" }, lines), h("div", { class: "buttons" }, h("button", { class: "main", text: "Close" }))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
