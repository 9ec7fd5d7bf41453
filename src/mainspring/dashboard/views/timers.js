import { h, head } from "../dom.js";
export function open() { return { element: h("div", {}, head("Soon")) }; }
