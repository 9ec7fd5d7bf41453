// A table of any length that has only as many rows in the page as can be seen.
//
// The body is as tall as all rows together; the few rows in view are placed where they belong and reused while
// scrolling. Browsers cannot make an element taller than some ten million pixels, so beyond that the scroll bar is
// scaled: it still reaches every row. The grid itself takes the focus and says which row is the active one, so the
// keyboard reaches a hundred thousand rows with one tab stop.

import { h, fill, setAria } from "./dom.js";

const SPARE = 6; // rows beyond the edge, so that a fast scroll shows no gap
const TALLEST = 8_000_000;
const RETRY_MS = 3_000; // a page of rows that could not be fetched
let made = 0;

/**
 * columns: [{name, label, width, kind, least, most, sort, cell(row, index)}], where `width` is a CSS grid track, `kind`
 * are classes (r: right, m: mono), `least` and `most` the widths of the grid between which the column is shown, and
 * `sort` is a name for `onSort`.
 * `keep(row)` names what a cell was made for: it is made anew only for another name, so a button in it can be pressed.
 */
export class Grid {
  constructor({ label, columns, rowHeight = 36, maxRows = 0, onOpen = null, onToggle = null, onSort = null, none = null }) {
    Object.assign(this, { columns, rowHeight, maxRows, onOpen, onToggle, onSort });
    this.id = `grid${++made}`;
    this.count = 0;
    this.getRow = () => undefined;
    this.active = -1;
    this.wanted = -1; // a row that was opened before it was here
    this.isSelected = () => false;
    this.shown = new Map(); // index -> element
    this.spare = [];
    this.visible = columns;
    this.header = h("div", { class: "gh", role: "row" });
    this.space = h("div", { class: "gs", role: "rowgroup" });
    this.body = h("div", { class: "gb" }, this.space);
    this.none = h("div", { class: "none" }, h("div", { class: "empty waits", text: "Loading…" }));
    this.nothing = none ?? "";
    this.element = h(
      "div",
      { class: `grid ${onOpen ? "opens" : ""}`, role: "grid", tabindex: "0", id: this.id, aria: { label, rowcount: 0 } },
      h("div", { role: "rowgroup" }, this.header),
      this.body,
      this.none,
    );
    this.sorted = null;
    this.body.addEventListener("scroll", () => this.soon(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.space.addEventListener("click", (event) => this.click(event));
    this.space.addEventListener("mouseover", (event) => spellOut(event.target.closest("[role=gridcell]")));
    this.sizes = new ResizeObserver(() => this.measure());
    this.sizes.observe(this.element);
    this.themed = () => this.refresh();
    document.addEventListener("themechange", this.themed);
    this.measure();
  }

  close() {
    this.sizes.disconnect();
    document.removeEventListener("themechange", this.themed);
  }

  /** What is in it: `getRow(index)` gives a row, null for one that is gone, undefined for one that is not here yet. */
  setRows(count, getRow) {
    this.count = count;
    this.getRow = getRow;
    this.wanted = -1;
    if (this.active >= count) this.active = count - 1;
    setAria(this.element, "rowcount", count + 1);
    this.none.hidden = count > 0;
    if (!count && this.none.firstChild !== this.nothing) fill(this.none, this.nothing);
    const total = count * this.rowHeight;
    this.scale = Math.max(1, total / TALLEST);
    this.space.style.height = `${Math.min(total, TALLEST)}px`;
    this.body.style.height = `${Math.min(total, TALLEST, (this.maxRows || Infinity) * this.rowHeight)}px`;
    this.fit();
    this.refresh();
  }

  /** What to say while there are no rows, where the reason is not always the same. */
  explain(nothing) {
    this.nothing = nothing;
  }

  /** Where everything can be seen no place is kept for a scroll bar. */
  fit() {
    this.element.classList.toggle("fits", this.count * this.rowHeight <= this.body.clientHeight);
  }

  /** Fill the rows in view anew. */
  refresh() {
    for (const [index, element] of this.shown) this.put(element, index);
    this.render();
    if (this.wanted >= 0 && this.getRow(this.wanted) !== undefined) this.open(this.wanted);
  }

  soon() {
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => {
      this.planned = 0;
      this.render();
    });
  }

  measure() {
    const width = this.element.clientWidth || 1000;
    const visible = this.columns.filter((column) => width >= (column.least ?? 0) && width < (column.most ?? Infinity));
    if (visible.length !== this.visible.length || !this.header.childElementCount) {
      this.visible = visible;
      this.tracks = visible.map((column) => column.width).join(" ");
      this.drawHeader();
      for (const [, element] of this.shown) element.remove();
      this.shown.clear();
      this.spare = [];
    }
    this.fit();
    this.render();
  }

  drawHeader() {
    this.header.style.gridTemplateColumns = this.tracks;
    fill(this.header, this.visible.map((column) => {
      const sortable = column.sort && this.onSort;
      const inside = sortable ? h("button", { type: "button", on: { click: () => this.sortBy(column.sort) }, text: column.label }) : column.label;
      return h("span", { role: "columnheader", class: column.kind ?? "", aria: { sort: this.sorted?.name === column.sort && sortable ? this.sorted.order : null } }, inside);
    }));
  }

  sortBy(name, order = null) {
    const again = this.sorted?.name === name && this.sorted.order === "descending";
    this.sorted = { name, order: order ?? (again ? "ascending" : "descending") };
    this.drawHeader();
    this.onSort(name, this.sorted.order);
  }

  get range() {
    const top = this.body.scrollTop * (this.scale ?? 1);
    const first = Math.max(0, Math.floor(top / this.rowHeight) - SPARE);
    const last = Math.min(this.count - 1, Math.ceil((top + this.body.clientHeight) / this.rowHeight) + SPARE);
    return { first, last, top };
  }

  render() {
    const { first, last, top } = this.range;
    for (const [index, element] of this.shown) {
      if (index >= first && index <= last) continue;
      this.shown.delete(index);
      element.hidden = true;
      this.spare.push(element);
    }
    const shift = this.body.scrollTop - top;
    for (let index = first; index <= last; index++) {
      let element = this.shown.get(index);
      if (!element) {
        element = this.spare.pop() ?? this.makeRow();
        element.hidden = false;
        this.shown.set(index, element);
        this.put(element, index);
      }
      element.style.transform = `translateY(${index * this.rowHeight + shift}px)`;
    }
    this.mark();
  }

  makeRow() {
    const cells = this.visible.map((column) => h("span", { role: "gridcell", class: column.kind ?? "" }));
    const element = h("div", { class: "gr", role: "row" }, cells);
    element.style.height = `${this.rowHeight}px`;
    element.style.gridTemplateColumns = this.tracks;
    this.space.append(element);
    return element;
  }

  put(element, index) {
    const row = this.getRow(index);
    element.dataset.index = index;
    element.id = `${this.id}r${index}`;
    element.setAttribute("aria-rowindex", index + 2);
    element.classList.toggle("missing", !row);
    element.classList.toggle("last", index === this.count - 1);
    this.visible.forEach((column, at) => {
      const cell = element.children[at];
      if (column.keep && row) {
        const key = column.keep(row);
        if (cell.kept === key) return;
        cell.kept = key;
      }
      const content = row || column.always ? column.cell(row, index, cell) : at ? "" : row === null ? "gone" : "…";
      if (content instanceof Node) fill(cell, content);
      else if (content !== undefined && cell.textContent !== content) cell.textContent = content;
    });
  }

  mark() {
    for (const [index, element] of this.shown) {
      element.classList.toggle("at", index === this.active);
      setAria(element, "selected", this.isSelected(index, this.getRow(index)));
    }
    const here = this.shown.get(this.active);
    setAria(this.element, "activedescendant", here ? here.id : null);
  }

  /** Make a row the active one, and bring it into view. */
  go(index) {
    if (!this.count) return;
    this.active = Math.max(0, Math.min(this.count - 1, index));
    const scale = this.scale ?? 1;
    const above = this.active * this.rowHeight;
    const top = this.body.scrollTop * scale;
    const room = this.body.clientHeight - this.rowHeight;
    if (above < top) this.body.scrollTop = above / scale;
    else if (above > top + room) this.body.scrollTop = (above - room) / scale;
    this.render();
  }

  key(event) {
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.body.clientHeight / this.rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (event.key in steps) this.go(this.active < 0 ? 0 : this.active + steps[event.key]);
    else if (event.key === "Home") this.go(0);
    else if (event.key === "End") this.go(this.count - 1);
    else if (event.key === "Enter" && this.onOpen && this.active >= 0) this.open(this.active);
    else if (event.key === " " && this.onToggle && this.active >= 0) this.toggle(this.active);
    else return;
    event.preventDefault();
  }

  click(event) {
    const element = event.target.closest(".gr");
    if (!element || event.target.closest("a, button")) return;
    const index = Number(element.dataset.index);
    this.active = index;
    if (event.target.closest("input, .tick") && this.onToggle) this.toggle(index);
    else this.open(index);
    this.mark();
  }

  open(index) {
    const row = this.getRow(index);
    this.wanted = row === undefined ? index : -1;
    if (row && this.onOpen) this.onOpen(row, index);
    this.mark();
  }

  toggle(index) {
    const row = this.getRow(index);
    if (row) this.onToggle(row, index);
    this.refresh();
  }
}

/** What does not fit into its cell can be read by staying over it. */
function spellOut(cell) {
  if (!cell || cell.querySelector("[title]")) return;
  if (cell.scrollWidth > cell.clientWidth) cell.title = cell.textContent;
  else cell.removeAttribute("title");
}

/** Rows that are fetched in pages when they come into view. `load(page, size)` gives an array; null is a gap. */
export class Pages {
  constructor(size, load, arrived) {
    Object.assign(this, { size, load, arrived });
    this.pages = new Map();
  }

  get(index) {
    const number = Math.floor(index / this.size);
    const page = this.pages.get(number);
    if (page === undefined) this.fetch(number);
    return Array.isArray(page) ? (page[index % this.size] ?? null) : undefined;
  }

  async fetch(number) {
    this.pages.set(number, "coming");
    try {
      this.pages.set(number, await this.load(number, this.size));
    } catch (problem) {
      this.pages.set(number, "failed"); // asking again at once could fail at once, for ever
      setTimeout(() => this.pages.get(number) === "failed" && this.pages.delete(number), RETRY_MS);
      this.arrived(problem);
      return;
    }
    if (this.pages.size > 60) this.pages.delete(this.pages.keys().next().value);
    this.arrived(null);
  }

  clear() {
    this.pages.clear();
  }
}

const LOADS_EACH = 3; // polls of the store between two questions of a view's own

/** A view with a `grid` and its own `load`: asks every few polls, and lets ages and moments go on between them. */
export class LoadedList {
  constructor(ctx) {
    this.ctx = ctx;
    this.polls = 0;
  }

  get now() {
    return this.ctx.store.node?.now ?? Date.now();
  }

  update() {
    this.polls += 1;
    if (this.polls % LOADS_EACH === 0) this.load();
    else this.grid.refresh();
  }

  close() {
    this.grid.close();
  }
}
