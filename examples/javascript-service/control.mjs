// A client of the control API of `fencepost serve --control`, for any test runner. Copy this file.
//
// Paths and arguments are those of GET /openapi.json. Errors have the server's text.

export class Control {
  constructor(url, token = process.env.FENCEPOST_CONTROL_TOKEN) {
    this.url = url;
    this.headers = token ? { authorization: `Bearer ${token}` } : {};
  }

  /** Carry out an operation: `post("groups/billing/fence", { member: "client-1" })`. */
  post(path, args = {}) {
    return this.#ask("POST", path, JSON.stringify(args));
  }

  /** Read something: `get("records", { topic: "orders" })`. */
  get(path, args = {}) {
    const query = new URLSearchParams(args).toString();
    return this.#ask("GET", query ? `${path}?${query}` : path);
  }

  /** Open a part of the Kafka with topics and groups of its own, so that parallel tests share one. */
  async scope(name, topics) {
    const opened = await this.post("scopes", { name, topics });
    const scope = new Control(`${this.url}/scopes/${opened.scope}`);
    scope.headers = this.headers;
    scope.name = (text) => opened.prefix + text;
    scope.close = () => scope.#ask("DELETE", "");
    return scope;
  }

  async #ask(method, path, body) {
    const headers = { ...this.headers, "content-type": "application/json" };
    const response = await fetch(path ? `${this.url}/${path}` : this.url, { method, headers, body });
    const text = await response.text();
    if (!response.ok) throw new Error(JSON.parse(text).error);
    return text ? JSON.parse(text) : null;
  }
}
