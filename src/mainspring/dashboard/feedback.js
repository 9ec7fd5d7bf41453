// Telling the reader something: short notes at the edge, questions before something changes, refusals in full.

import { h } from "./dom.js";

const STAYS_MS = 6_000;

/** A note that goes by itself; a refusal stays until it is closed. */
export function toast(text, remedy = "", kind = "") {
  const close = h("button", { class: "plain", type: "button", text: "Close", on: { click: () => note.remove() } });
  const note = h("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : "status" }, h("div", {}, h("p", {}, prose(text)), remedy && h("p", {}, prose(remedy))), close);
  document.getElementById("toasts").append(note);
  if (kind !== "bad") setTimeout(() => note.remove(), STAYS_MS);
}

export function refusal(problem) {
  if (problem.name === "AbortError") return;
  toast(problem.message, problem.remedy ?? "", "bad");
}

/** A sentence in which `backticks` surround what is typed. */
export function prose(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", { text: part }) : part));
}

/** A refusal in place of what could not be shown. */
export function refused(problem) {
  return h("div", { class: "problem", role: "alert" }, h("p", {}, prose(problem.message)), problem.remedy && h("p", {}, prose(problem.remedy)));
}

/** A place below the head of a view: says why something could not be loaded, and is empty again when it could. */
export function trouble() {
  const element = h("div", { class: "trouble" });
  return {
    element,
    over: () => element.replaceChildren(),
    tell: (problem) => problem.name !== "AbortError" && element.replaceChildren(refused(problem)),
  };
}

export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Ask before something changes. `fields` are elements with a name; gives their values, or null when it was called off. */
export function question({ title, text = "", fields = [], yes = "Yes", danger = false }) {
  return new Promise((resolve) => {
    const accept = h("button", { class: danger ? "danger" : "main", type: "submit", value: "yes", text: yes });
    const cancel = h("button", { type: "button", text: "Cancel", on: { click: () => dialog.close() } });
    const form = h("form", { method: "dialog" }, h("h2", { text: title }), text && h("p", { text }), fields, h("div", { class: "buttons" }, cancel, accept));
    const dialog = h("dialog", { aria: { label: title } }, form);
    dialog.addEventListener("close", () => {
      const values = dialog.returnValue === "yes" ? Object.fromEntries([...form.elements].filter((field) => field.name).map((field) => [field.name, field.value])) : null;
      dialog.remove();
      resolve(values);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function field(label, input) {
  return h("label", { class: "field" }, label, input);
}

/**
 * A button for something that changes the node. While the token does not allow it, it stays reachable, says why, and
 * does nothing; the node would refuse anyway.
 */
export function action(ctx, label, run, { kind = "", why = ctx.may() } = {}) {
  const button = h("button", { class: kind, type: "button", text: label });
  button.addEventListener("click", async () => {
    if (button.getAttribute("aria-disabled") === "true") return;
    button.disabled = true;
    try {
      await run();
    } catch (problem) {
      refusal(problem);
    } finally {
      button.disabled = false;
    }
  });
  if (why) {
    button.setAttribute("aria-disabled", "true");
    button.title = why;
    button.setAttribute("aria-label", `${label} (not allowed: ${why})`);
  }
  return button;
}
