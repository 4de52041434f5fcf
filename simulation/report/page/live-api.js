// The control API that this page comes from.

class Refused extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

class Api {
  // The token stays in this tab.
  get token() { return sessionStorage.getItem("fencepost-token") ?? ""; }
  set token(token) { sessionStorage.setItem("fencepost-token", token); }

  async ask(path, { verb = "GET", body, accept = "*/*", signal } = {}) {
    const token = String.fromCharCode(...new TextEncoder().encode(this.token));  // a header has bytes
    const headers = { Accept: accept, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    const response = await fetch(path, { method: verb, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store" });
    if (response.ok) return response;
    const text = await response.text();
    let told = text;
    try { told = JSON.parse(text).error; } catch { /* of a server in between */ }
    throw new Refused(told || `status ${response.status}`, response.status);
  }

  async get(path) { return (await this.ask(path)).json(); }

  // Calls take(rows) as they come, until the stream ends or is aborted.
  async stream(path, signal, take) {
    const { body } = await this.ask(path, { accept: "text/event-stream", signal });
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      take(events.map((event) => /(?:^|\n)data: ([^\n]*)/.exec(event)?.[1]).filter(Boolean).map((each) => JSON.parse(each)));
    }
  }

  // Samples by the names of metrics after `fencepost_`: labels and value.
  async metrics(names) {
    const text = await (await this.ask("metrics?" + names.map((name) => `name[]=fencepost_${name}`).join("&"))).text();
    const found = Object.fromEntries(names.map((name) => [name, []]));
    for (const [, name, labels, value] of text.matchAll(/(?<=^|\n)fencepost_(\w+)(?:\{([^\n]*)\})? (\S+)(?=\n|$)/g)) {
      const pairs = [...(labels ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, each]) => [key, each.replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c)]);
      found[name]?.push({ ...Object.fromEntries(pairs), value: Number(value) });
    }
    return found;
  }
}
