// Everything the page asks the node over HTTP, and the token it asks with.
// The token lives in this tab only (sessionStorage) and travels in a header, so no other page can use it.

const KEPT = "mainspring.token";
const SILENT = { message: "The node does not answer.", remedy: "Is it running? The page goes on asking." };

/** A refusal of the node: what happened, and what to do about it. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.message || `The node answered ${status}`);
    this.status = status;
    this.code = document.code || "";
    this.remedy = document.remedy || "";
  }
}

export class Api extends EventTarget {
  get token() {
    return sessionStorage.getItem(KEPT) || "";
  }

  set token(value) {
    if (value) sessionStorage.setItem(KEPT, value);
    else sessionStorage.removeItem(KEPT);
  }

  async fetch(path, { method = "GET", body, accept = "application/json", signal, keepalive } = {}) {
    const headers = { Accept: accept };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await fetch(new URL(`.${path}`, document.baseURI), {
      method,
      headers,
      signal,
      keepalive,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit",
      cache: "no-store",
    }).catch((error) => {
      throw error.name === "AbortError" ? error : new Problem(0, SILENT);
    });
    if (answer.ok) return answer;
    const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
    if (answer.status === 401) this.dispatchEvent(new CustomEvent("unauthorized", { detail: problem }));
    throw problem;
  }

  async get(path, options) {
    return (await this.fetch(path, options)).json();
  }

  async text(path, options) {
    return (await this.fetch(path, options)).text();
  }

  async send(method, path, body, options = {}) {
    const answer = await this.fetch(path, { ...options, method, body });
    return answer.status === 204 ? null : answer.json();
  }

  /** The data of the answer to a query. */
  async ask(type, data = {}, options = {}) {
    return (await this.message("query", type, data, options)).data;
  }

  /** The data of the answer to a command. */
  async command(type, data = {}, options = {}) {
    return (await this.message("command", type, data, options)).data;
  }

  message(kind, type, data = {}, options = {}) {
    return this.send("POST", "/messages", { kind, type, data }, options);
  }
}

export function topicPath(topic, rest = "") {
  return `/topics/${encodeURIComponent(topic)}${rest}`;
}

export function groupPath(topic, group, rest = "") {
  return `/groups/${encodeURIComponent(topic)}/${encodeURIComponent(group)}${rest}`;
}

/** An address with a query made of what is given. */
export function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}
