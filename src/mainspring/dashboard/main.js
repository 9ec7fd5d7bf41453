// The shell: navigation, theme, the token, and the one view that is open.

import { Api } from "./api.js";
import { byView } from "./attention.js";
import { h, fill, say } from "./dom.js";
import { announce, field, prose, question, refused, toast } from "./feedback.js";
import { count, moment } from "./format.js";
import { help, listen } from "./keys.js";
import { Live } from "./live.js";
import { place } from "./router.js";
import { Store } from "./store.js";
import * as beats from "./views/beats.js";
import * as deadletters from "./views/deadletters.js";
import * as events from "./views/events.js";
import * as groups from "./views/groups.js";
import * as kernel from "./views/kernel.js";
import * as nodes from "./views/nodes.js";
import * as overview from "./views/overview.js";
import * as runs from "./views/runs.js";
import * as schedules from "./views/schedules.js";
import * as tasks from "./views/tasks.js";
import * as timers from "./views/timers.js";
import * as topics from "./views/topics.js";
import * as trace from "./views/trace.js";

const SECTIONS = [
  ["", [["", "Overview", overview], ["nodes", "Nodes", nodes]]],
  ["Bus", [["topics", "Topics", topics], ["events", "Events", events], ["groups", "Groups", groups], ["deadletters", "Dead letters", deadletters]]],
  ["Kernel", [["kernel", "Kernel", kernel], ["timers", "Timers", timers], ["trace", "Causation", trace]]],
  ["Work", [["tasks", "Tasks", tasks], ["schedules", "Schedules", schedules], ["runs", "Runs", runs], ["beats", "Beats", beats]]],
];
const VIEWS = new Map(SECTIONS.flatMap(([, entries]) => entries.map(([name, label, view]) => [name, { label, view }])));

const api = new Api();
const store = new Store(api);
const live = new Live(api);
const main = document.getElementById("view");
const notice = document.getElementById("notice");
const badges = new Map();
let open = null;

// -- views

function show() {
  const { parts, query } = place();
  const found = VIEWS.get(parts[0] ?? "");
  leave();
  for (const link of document.querySelectorAll(".nav a")) {
    if (link.dataset.view !== (parts[0] ?? "")) {
      link.removeAttribute("aria-current");
      continue;
    }
    link.setAttribute("aria-current", "page");
    link.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone the names are wider than the screen
  }
  if (!found) {
    fill(main, h("h1", { class: "unseen", text: "Not found" }), refused({ message: "There is no such view.", remedy: "Choose one on the left." }));
    return;
  }
  const aborter = new AbortController();
  const ctx = { api, store, live, parts: parts.slice(1), query, signal: aborter.signal, may: () => store.readOnly };
  let view;
  try {
    view = found.view.open(ctx);
  } catch (problem) {
    view = { element: refused(problem) };
  }
  open = { view, aborter, name: parts[0] ?? "" };
  fill(main, view.element);
  document.title = `${[...parts.slice(1), found.label].join(" · ")} – Mainspring`;
  announce(found.label);
  update();
}

function leave() {
  open?.aborter.abort();
  open?.view.close?.();
  open = null;
}

/** While the node is silent nothing is asked but whether it is back. */
function update() {
  if (!store.problem) open?.view.update?.();
}

/**
 * The node is back. One that was started again may know other things, and a view that could not load something would
 * go on saying so: it is opened anew, at the same address. Any other keeps what was typed into it.
 */
function again({ restarted }) {
  toast(restarted ? "The node was started again." : "The node answers again.");
  if (restarted || main.querySelector(".trouble .problem, .detail .problem")) show();
}

// -- the frame

function drawNav() {
  fill(document.getElementById("nav"), SECTIONS.map(([title, entries]) => [
    title && h("h2", { text: title }),
    entries.map(([name, label]) => {
      const badge = h("span", { class: "badge" });
      badges.set(name, badge);
      return h("a", { href: `#/${name}`, data: { view: name } }, label, badge);
    }),
  ]));
}

const connection = h("span", { class: "state", role: "status", text: "Connecting" });
const who = h("span", { class: "who" });
const theme = h("button", { class: "plain", type: "button", on: { click: toggleTheme } });

function drawFoot() {
  const keys = h("button", { class: "plain keys", type: "button", text: "Keys", on: { click: help } });
  const token = h("button", { class: "plain", type: "button", text: "Token", on: { click: () => askToken() } });
  fill(document.getElementById("foot"), connection, who, h("div", { class: "row" }, theme, token, keys));
}

function drawState() {
  const { node, problem } = store;
  const [kind, text] = stateOf(node, problem);
  connection.className = `state ${kind}`;
  say(connection, text);
  drawNotice(node, problem);
  if (!node) return;
  const { agent, proven, admin } = node.you;
  say(who, proven ? `${agent}${admin ? "" : ", read-only"}` : `Version ${node.version}`);
  const urgent = byView(store.attention);
  for (const name of badges.keys()) badge(name, urgent.get(name) ? count(urgent.get(name)) : "", true);
  if (store.shared && !urgent.get("nodes")) badge("nodes", count(store.nodes.length), false);
}

function stateOf(node, problem) {
  if (problem) return ["bad", problem.status === 401 ? "Needs a token" : problem.status ? "Trouble" : "Not reachable"];
  if (!node?.ready) return ["warn", "Not ready"];
  return live.state === "open" ? ["ok", "Live"] : ["warn", "Connecting"];
}

/** What a reader must know before believing what is on the page. */
function drawNotice(node, problem) {
  const silent = problem && problem.status !== 401;
  const since = store.answered ? ` What you see is from ${moment(store.answered).replace(/\.\d+$/, "")}.` : "";
  const text = silent ? `${problem.message}${since} ${problem.remedy}` : node && !problem && !node.ready ? `The node is not ready: ${node.reason}.` : "";
  notice.hidden = !text;
  notice.classList.toggle("warn", !silent);
  if (notice.textContent !== text.replaceAll("`", "")) fill(notice, prose(text));
}

function badge(name, text, bad) {
  const element = badges.get(name);
  say(element, text);
  element.classList.toggle("bad", bad && text !== "");
}

// -- light and dark

function currentTheme() {
  return document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  say(theme, currentTheme() === "dark" ? "Light" : "Dark");
  theme.setAttribute("aria-label", `Switch to ${currentTheme() === "dark" ? "light" : "dark"}`);
  document.dispatchEvent(new Event("themechange"));
}

function toggleTheme() {
  const next = currentTheme() === "dark" ? "light" : "dark";
  localStorage.setItem("mainspring.theme", next);
  setTheme(next);
}

// -- the token

let asking = false;

async function askToken(problem = null) {
  if (asking) return;
  asking = true;
  if (problem) refuseEntry(problem);
  const input = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false" });
  const values = await question({
    title: "Token",
    text: problem ? `${problem.message} It stays in this tab.` : "A token for this node. It stays in this tab; an empty one forgets it.",
    fields: [field("Token", input)],
    yes: "Use it",
  });
  asking = false;
  if (values === null) return;
  api.token = values.token.trim();
  location.reload(); // everything that was asked without it is asked anew
}

/** Without a token nothing can be shown, and asking again and again would not change that. */
function refuseEntry(problem) {
  store.stop();
  leave();
  fill(main, h("h1", { class: "unseen", text: "A token is needed" }), refused(problem), h("p", {}, h("button", { class: "main", type: "button", text: "Give a token", on: { click: () => askToken() } })));
}

// -- begin

async function begin() {
  drawNav();
  drawFoot();
  setTheme(localStorage.getItem("mainspring.theme"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(null));
  listen(toggleTheme);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the part behind the # says which view is open
    main.focus();
  });
  api.addEventListener("unauthorized", (event) => askToken(event.detail));
  store.addEventListener("change", () => {
    drawState();
    update();
  });
  store.addEventListener("again", (event) => again(event.detail));
  live.addEventListener("state", drawState);
  await store.poll();
  if (store.problem?.status === 401) return; // the token was asked for
  live.start();
  store.start();
  window.addEventListener("pagehide", () => live.leave());
  window.addEventListener("hashchange", () => {
    show();
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  });
  show();
  if (store.node?.you.admin) await live.sweep(store.followers); // with other tokens they may be somebody else's
  live.watchDeadLetters(() => store.attentionChanged());
}

begin();
