// Groups: who is behind, by how much, and what its members hold right now.

import { groupPath, topicPath } from "../api.js";
import { History, spark } from "../chart.js";
import { h, alone, beside, closer, empty, facts, fill, refill, head, panel, say, table, tag } from "../dom.js";
import { action, field, question, refused, toast } from "../feedback.js";
import { ago, count, exact, plural, rate, span } from "../format.js";
import { Grid } from "../grid.js";
import { note, to } from "../router.js";

const AGAIN_MS = 30_000; // between two questions for the small line of a group
const STATES = { leased: "info", waiting: "warn", delayed: "", dying: "bad" };

export function open(ctx) {
  return new Groups(ctx);
}

class Groups {
  constructor(ctx) {
    this.ctx = ctx;
    this.rows = [];
    this.lags = new Map();
    this.order = { name: "lag", up: false };
    this.search = h("input", { type: "search", class: "grow", placeholder: "Filter by group or topic", aria: { label: "Filter groups" }, on: { input: () => this.draw() } });
    this.sentence = h("span");
    this.grid = new Grid({
      label: "Groups",
      onOpen: (row) => this.show(row.topic, row.group),
      onSort: (name, order) => {
        this.order = { name, up: order === "ascending" };
        this.draw();
      },
      none: empty("No groups", "A group begins when somebody subscribes with its name."),
      columns: [
        { label: "Group", width: "minmax(76px, 2fr)", sort: "group", cell: (row) => row.group },
        { label: "Topic", width: "minmax(84px, 3fr)", sort: "topic", cell: (row) => row.topic },
        { label: "Members", width: "88px", kind: "r", sort: "members", least: 640, cell: (row) => count(row.members) },
        { label: "In flight", width: "84px", kind: "r", sort: "inflight", least: 720, cell: (row) => count(row.inflight) },
        { label: "Settled /s", width: "88px", kind: "r", sort: "rate", least: 560, cell: (row) => rate(row.rate ?? 0) },
        { label: "Oldest waits", width: "108px", kind: "r", sort: "age", least: 480, cell: (row) => (row.age ? span(row.age) : "") },
        { label: "Behind", width: "minmax(72px, 1fr)", kind: "r", sort: "lag", cell: (row) => count(row.lag) },
        { label: "Last 6 h", width: "130px", least: 820, cell: (row, _, cell) => this.line(row, cell) },
      ],
    });
    this.grid.element.classList.add("fill");
    this.grid.sorted = { name: "lag", order: "descending" };
    this.grid.drawHeader();
    this.grid.isSelected = (_, row) => Boolean(row && this.chosen && row.topic === this.chosen.topic && row.group === this.chosen.group);
    this.split = h("div", { class: "split" }, this.grid.element);
    this.element = h("div", {}, head("Groups", this.sentence), h("div", { class: "bar" }, this.search), this.split);
    if (ctx.parts.length === 2) this.show(...ctx.parts);
  }

  update() {
    this.draw();
    if (this.chosen) {
      this.load();
      this.history.update();
    }
  }

  draw() {
    const wanted = this.search.value.trim().toLowerCase();
    const sign = this.order.up ? 1 : -1;
    const { name } = this.order;
    const now = this.ctx.store.node?.now ?? Date.now();
    this.rows = this.ctx.store.groups
      .map((group) => ({ ...group, rate: group.rate ?? 0, age: group.oldest ? Math.max(0, now - group.oldest) : 0 }))
      .filter(({ topic, group }) => `${group} ${topic}`.toLowerCase().includes(wanted))
      .sort((a, b) => (a[name] < b[name] ? -sign : a[name] > b[name] ? sign : a.group < b.group ? -1 : 1));
    const behind = this.rows.filter(({ lag }) => lag > 0).length;
    say(this.sentence, `${plural(this.rows.length, "group")}, ${behind ? plural(behind, "has events to settle", "have events to settle") : "all have settled everything"}.`);
    this.grid.setRows(this.rows.length, (index) => this.rows[index]);
  }

  line(row, cell) {
    const canvas = cell.firstElementChild ?? cell.appendChild(h("canvas", { aria: { hidden: "true" }, css: { width: "110px", height: "20px" } }));
    const seen = this.lagsOf(row);
    spark(canvas, seen.some((value) => value > 0) ? seen : [], "brass", 110, 20);
    return undefined;
  }

  /** The lag of a group in the last hours, from the node's history; asked for when its row is seen. */
  lagsOf({ topic, group }) {
    const key = `${topic}\n${group}`;
    const known = this.lags.get(key) ?? { at: 0, values: [] };
    if (Date.now() - known.at > AGAIN_MS) {
      this.lags.set(key, { at: Date.now(), values: known.values });
      this.ctx.api.get(groupPath(topic, group, "/history?range=6h"), { signal: this.ctx.signal }).then(({ points }) => {
        this.lags.set(key, { at: Date.now(), values: points.map(({ lag }) => lag) });
        this.grid.refresh();
      }, () => {});
    }
    return known.values;
  }

  // -- one group

  show(topic, group) {
    this.chosen = { topic, group };
    note(["groups", topic, group], {});
    this.standing = h("div");
    this.history?.close();
    this.history = new History({
      ctx: this.ctx,
      path: groupPath(topic, group, "/history"),
      charts: [
        { label: `Events behind of ${group}`, height: 120, series: [{ name: "behind", token: "brass", pick: (point) => point.lag, format: count }] },
        { label: `Events settled per second by ${group}`, height: 90, series: [{ name: "settled per second", token: "teal", pick: (point) => point.rate, format: rate }] },
      ],
    });
    this.positions = h("div");
    this.members = h("div");
    this.leases = h("div");
    this.acts = h("div", { class: "acts" });
    const close = closer(this.grid.element, () => this.hide());
    const detail = panel(group, { note: close, class: "detail" },
      h("section", {}, this.standing, this.acts),
      h("section", {}, h("h3", {}, "Over time ", this.history.choice), this.history.element),
      h("section", {}, h("h3", { text: "Where it stands" }), this.positions),
      h("section", {}, h("h3", { text: "Members" }), this.members),
      h("section", {}, h("h3", { text: "Leases and what waits" }), this.leases));
    beside(this.split, this.grid.element, detail);
    this.grid.refresh();
    this.rights();
    this.load();
  }

  hide() {
    this.chosen = null;
    this.history?.close();
    note(["groups"], {});
    alone(this.split, this.grid.element);
    this.grid.refresh();
  }

  async rights() {
    const { topic } = this.chosen;
    const rights = await this.ctx.api.get(topicPath(topic, "/rights"), { signal: this.ctx.signal }).catch(() => ({ subscribeRefusal: "" }));
    const why = rights.subscribeRefusal;
    fill(this.acts, action(this.ctx, "Move…", () => this.seek(), { why }), action(this.ctx, "Delete…", () => this.remove(), { why, kind: "danger" }));
  }

  async load() {
    const { topic, group } = this.chosen;
    try {
      const [where, held, { members }] = await Promise.all([
        this.ctx.api.get(groupPath(topic, group), { signal: this.ctx.signal }),
        this.ctx.api.get(groupPath(topic, group, "/leases?limit=100"), { signal: this.ctx.signal }),
        this.ctx.api.get(groupPath(topic, group, "/members"), { signal: this.ctx.signal }),
      ]);
      this.drawDetail(where, held);
      this.drawMembers(members);
    } catch (problem) {
      if (problem.name !== "AbortError") fill(this.positions, refused(problem));
    }
  }

  drawDetail(where, held) {
    const { store } = this.ctx;
    const now = store.node?.now ?? Date.now();
    const { topic } = where;
    refill(this.standing, facts([
      ["Topic", h("a", { href: to(["topics", topic]), text: topic })],
      ["Members", count(where.members)],
      ["Behind", plural(where.lag, "event")],
      ["Settled per second", where.rate === undefined ? "not measured yet" : rate(where.rate)],
      ["Oldest unacknowledged", where.oldest ? h("span", { title: exact(where.oldest), text: `published ${ago(where.oldest, now)}` }) : "none"],
    ]));
    refill(this.positions, table("Partitions", [["Partition"], ["Settled", true], ["Behind", true], ["In flight", true]], where.partitions.map((place) => [
      String(place.partition),
      count(place.lastCommitted),
      place.lag ? h("a", { href: to(["events"], { topic, partition: place.partition || "", offset: place.lastCommitted + 1 }), title: "The oldest that is not settled", text: count(place.lag) }) : count(place.lag),
      count(place.inflight),
    ])));
    const at = (lease) => (lease.epoch ? store.nodes.find((node) => node.epoch === lease.epoch)?.name ?? "" : lease.state === "leased" ? store.here : "");
    refill(this.leases, held.leases.length
      ? table("Leases", [["Place", false, true], ["State", false, true], ...(store.shared ? [["Node"]] : []), ["Attempt", true], ["Ends in", true, true], ["Reason"]], held.leases.map((lease) => [
        h("a", { href: to(["events"], { topic: held.topic, partition: lease.partition || "", offset: lease.offset }), text: `${lease.partition}:${lease.offset}` }),
        tag(lease.state, STATES[lease.state] ?? ""),
        ...(store.shared ? [at(lease)] : []),
        count(lease.deliveries),
        lease.until ? span(Math.max(0, lease.until - now)) : "",
        lease.reason,
      ]))
      : h("p", { class: "dim", text: "Nothing is held or waits to be delivered again." }));
  }

  drawMembers(members) {
    const { store } = this.ctx;
    const now = store.node?.now ?? Date.now();
    const name = ({ program, agent }) => (program ? "the node's program" : agent || h("span", { class: "dim", text: "no name" }));
    const addresses = members.some(({ address }) => address);
    refill(this.members, members.length
      ? table("Members", [["Member"], ...(store.shared ? [["Node"]] : []), ...(addresses ? [["Address"]] : []), ["Since", true], ["In flight", true]], members.map((member) => [
        name(member),
        ...(store.shared ? [member.node] : []),
        ...(addresses ? [member.address] : []),
        member.since ? h("span", { title: exact(member.since), text: ago(member.since, now) }) : "",
        member.inflight === undefined ? "" : count(member.inflight),
      ]))
      : h("p", { class: "dim", text: "It has no members now." }));
  }

  async seek() {
    const { topic, group } = this.chosen;
    const kind = h("select", { name: "kind" }, h("option", { value: "latest", text: "to the end: skip what it has not seen" }), h("option", { value: "offset", text: "to an offset" }), h("option", { value: "timestamp", text: "to a time" }));
    const value = h("input", { type: "text", name: "value", placeholder: "0 is the beginning; a time like 2026-01-31T12:00:00Z" });
    const values = await question({ title: `Move ${group}`, text: "What its members hold is given back.", fields: [field("Where", kind), field("Offset or time", value)], yes: "Move it", danger: true });
    if (!values) return;
    const body = { kind: values.kind };
    if (values.kind === "offset") body.value = Number(values.value || 0);
    if (values.kind === "timestamp") body.value = Date.parse(values.value);
    await this.ctx.api.send("POST", groupPath(topic, group, "/seek"), body);
    toast(`${group} was moved.`);
    this.ctx.store.plan(0);
  }

  async remove() {
    const { topic, group } = this.chosen;
    const values = await question({ title: `Delete ${group}?`, text: "Where it stood is lost. It must have no members.", yes: "Delete it", danger: true });
    if (!values) return;
    await this.ctx.api.send("DELETE", groupPath(topic, group));
    this.hide();
    toast(`${group} was deleted.`);
    this.ctx.store.plan(0);
  }

  close() {
    this.grid.close();
    this.history?.close();
  }
}
