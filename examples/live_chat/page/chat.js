// The chat: what is said and who is here are two topics, read and written with the node's own client.
//
// A tab reads as a group of its own, named after an id that outlives a reload. What comes from others reaches the page
// as text and never as markup.

import { connect, newId } from "/client.js";

const HERE_EVERY_MS = 10_000;
const GONE_AFTER_MS = 25_000; // two of them missed

const visitor = (sessionStorage.visitor ??= newId());
const element = (id) => document.getElementById(id);
const here = new Map(); // visitor -> {name, heard}: everybody else who was heard of lately

const bus = connect(location.origin, { onState: (state) => (element("state").textContent = state) });

// -- what is said

function show(event) {
  const { offset, ts, payload } = event;
  const said = element("said");
  if (!said.querySelector(`[data-offset="${offset}"]`)) {
    const before = [...said.children].find((line) => Number(line.dataset.offset) > offset) ?? null;
    said.insertBefore(lineOf(offset, ts, payload), before);
    if (!before) said.scrollTop = said.scrollHeight;
  }
}

function lineOf(offset, ts, { name, text }) {
  const line = document.createElement("li");
  const who = document.createElement("b");
  const when = document.createElement("time");
  line.dataset.offset = offset;
  who.textContent = name;
  when.dateTime = new Date(ts).toISOString();
  when.textContent = new Date(ts).toLocaleTimeString();
  line.append(when, who, text);
  return line;
}

async function say(submitted) {
  submitted.preventDefault();
  const text = element("text");
  const given = text.value;
  text.value = "";
  try {
    await bus.publish("chat.said", { name: sessionStorage.name, text: given });
    element("problem").textContent = "";
  } catch (error) {
    element("problem").textContent = error.message;
    text.value ||= given; // unless the next one has been begun
  }
}

// -- who is here

const presence = (state) => ({ visitor, name: sessionStorage.name, state });

function tell(state) {
  bus.publish("chat.presence", presence(state)).catch((error) => (element("problem").textContent = error.message));
}

function hear({ payload }) {
  if (payload.visitor === visitor) return;
  if (payload.state === "left") here.delete(payload.visitor);
  else here.set(payload.visitor, { name: payload.name, heard: performance.now() });
  if (payload.state === "joined") tell("here"); // the newcomer has not heard of this tab
  showHere();
}

function showHere() {
  const names = [...here.values()].map(({ name }) => name).sort();
  element("here").replaceChildren(...[`${sessionStorage.name} (you)`, ...names].map(itemOf));
}

function itemOf(name) {
  const item = document.createElement("li");
  item.textContent = name;
  return item;
}

function stay() {
  tell("here");
  const oldest = performance.now() - GONE_AFTER_MS;
  for (const [other, { heard }] of here) if (heard < oldest) here.delete(other);
  showHere();
}

/** A page that goes has no time for an answer; a beacon is sent even so, over HTTP. */
function leave() {
  const event = JSON.stringify({ payload: presence("left") });
  navigator.sendBeacon("/topics/chat.presence/events", new Blob([event], { type: "application/json" }));
}

// -- in and out

async function enter() {
  element("join").hidden = true;
  element("room").hidden = false;
  showHere();
  bus.follow("chat.said", show, { from: "beginning" });
  const others = bus.follow("chat.presence", hear);
  await others.confirmed; // from here on this tab hears who answers
  tell("joined");
  setInterval(stay, HERE_EVERY_MS);
  addEventListener("pagehide", leave);
  element("text").focus();
}

element("say").addEventListener("submit", say);
element("join").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  sessionStorage.name = element("name").value.trim();
  if (sessionStorage.name) enter();
});
if (sessionStorage.name) enter();
