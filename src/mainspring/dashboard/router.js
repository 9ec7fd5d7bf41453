// Addresses of views. They live behind the #, so the node serves one page and a link to any view can be shared.

/** The current place: the parts of its path, decoded, and its query. */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a view, ready for href. */
export function to(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const path = `#/${parts.map(encodeURIComponent).join("/")}`;
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/** Change the address without opening the view anew: the state of a view, for sharing and for the way back. */
export function note(parts, query) {
  history.replaceState(null, "", to(parts, query));
}
