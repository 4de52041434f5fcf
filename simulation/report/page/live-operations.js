// Buttons and forms for all that the API can do, made from its own description.

class Operation {
  constructor(description, path, verb, entry) {
    const resolved = (schema) => schema?.$ref ? description.components.schemas[schema.$ref.split("/").pop()] : schema ?? {};
    const body = resolved(entry.requestBody?.content["application/json"].schema), given = entry.parameters ?? [];
    const query = given.filter((each) => each.in === "query");
    Object.assign(this, { path, verb: verb.toUpperCase(), name: entry.operationId, summary: entry.summary });
    this.keys = given.filter((each) => each.in === "path").map(({ name }) => name);
    this.fields = new Map([...this.keys.map((name) => [name, { type: "string" }]), ...query.map((each) => [each.name, each.schema]), ...Object.entries(body.properties ?? {})]);
    this.needed = [...(body.required ?? []), ...query.filter((each) => each.required).map(({ name }) => name)];
    this.place = path.includes("{") ? path.slice(1, path.indexOf("/", 1)) : path.startsWith("/scopes") ? "scopes" : path.split("/").length > 2 ? path.split("/")[1] : "kafka";
    for (const [name, schema] of this.fields) this.fields.set(name, kindOf(schema, resolved));
  }

  get title() { return (this.place === "scopes" ? this.name : this.path.split("/").pop()).replaceAll("_", " "); }

  request(values) {
    const rest = { ...values }, path = this.path.replace(/\{(\w+)\}/g, (_, name) => {
      delete rest[name];
      return encodeURIComponent(values[name] ?? "");
    }).slice(1);
    if (this.verb === "GET") return [Object.keys(rest).length ? `${path}?${new URLSearchParams(rest)}` : path, {}];
    return [path, { verb: this.verb, body: rest }];
  }
}

// What a field takes: a type, the values to choose from, and the default.
function kindOf(schema, resolved) {
  const options = (schema.anyOf ?? [schema]).map(resolved), chosen = options.find((each) => each.type !== "null") ?? {};
  const type = ["array", "object"].includes(chosen.type) || options.length < 3 ? chosen.type : "string";
  return { type, values: chosen.enum, items: chosen.items && kindOf(chosen.items, resolved), otherwise: schema.default };
}

function operationsOf(description) {
  const found = [];
  for (const [path, verbs] of Object.entries(description.paths)) {
    for (const [verb, entry] of Object.entries(verbs)) {
      const isData = "application/json" in entry.responses["200"].content;
      if (isData && !path.startsWith("/scopes/{scope}/") && entry.operationId !== "events") found.push(new Operation(description, path, verb, entry));
    }
  }
  return found;
}

// The value of a text; undefined if it is left out.
function valueOf(kind, text) {
  if (text === "") return undefined;
  if (kind.type === "array" && !text.trim().startsWith("[")) return text.split("\n").filter(Boolean).map((line) => valueOf(kind.items, line));
  if (kind.type === "string" || kind.type === undefined) return text;
  try { return JSON.parse(text); } catch { return text; }
}

class OperationForms {
  constructor(part, page) {
    Object.assign(this, { part, page, operations: operationsOf(page.description) });
    const groups = Map.groupBy(this.operations.toSorted((a, b) => byName(a.title, b.title)), (each) => each.place);
    part("operation").append(...[...groups].sort(([a], [b]) => byName(a, b)).map(([place, operations]) => {
      const group = element("optgroup");
      group.label = place;
      group.append(...operations.map((each) => Object.assign(element("option", each.title), { value: each.name })));
      return group;
    }));
    part("operation").addEventListener("change", () => this.show(this.chosen));
    part("operation-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run(this.chosen, this.values());
    });
    this.show(this.chosen);
  }

  get chosen() { return this.operations.find(({ name }) => name === this.part("operation").value); }

  // The operations on something, as buttons: those that need nothing more, which run at once, and those that do, which open their form.
  buttons(place, needed, given) {
    const fit = this.operations.filter((each) => each.verb === "POST" && each.place === place && needed.every((name) => each.needed.includes(name))
      && each.needed.every((name) => needed.includes(name)));
    return fit.map((each) => {
      const button = element("button", each.title);
      Object.assign(button, { type: "button", title: each.summary });
      button.addEventListener("click", () => this.run(each, given));
      return button;
    });
  }

  show(operation, given = {}) {
    this.part("operation").value = operation.name;
    this.part("summary").textContent = operation.summary;
    this.part("fields").replaceChildren(...[...operation.fields].map(([name, kind]) => this.field(operation, name, kind, given[name])));
  }

  field(operation, name, kind, given) {
    const label = element("label"), isNeeded = operation.needed.includes(name) || operation.keys.includes(name);
    const input = element(kind.values || kind.type === "boolean" ? "select" : kind.type === "array" ? "textarea" : "input");
    const values = kind.values ?? (kind.type === "boolean" ? ["true", "false"] : []);
    if (input.tagName === "SELECT") input.append(...(isNeeded ? values : ["", ...values]).map((value) => Object.assign(element("option", value), { value })));
    else if (kind.type === "integer" || kind.type === "number") Object.assign(input, { type: "number", step: kind.type === "integer" ? 1 : "any" });
    else if (this.page.known[name]) input.setAttribute("list", `known-${name}`);
    Object.assign(input, { name, required: isNeeded, autocomplete: "off" });
    if (input.tagName !== "SELECT") input.placeholder = kind.type === "array" ? "one per line" : kind.otherwise == null ? "" : JSON.stringify(kind.otherwise);
    if (given !== undefined) input.value = given;
    label.append(element("span", name.replaceAll("_", " ") + (isNeeded ? " *" : "")), input);
    return label;
  }

  values() {
    const { fields } = this.chosen, found = {};
    for (const input of this.part("fields").querySelectorAll("[name]")) {
      const value = valueOf(fields.get(input.name), input.value);
      if (value !== undefined) found[input.name] = value;
    }
    return found;
  }

  async run(operation, values) {
    const about = Object.values(values).filter((each) => typeof each !== "object").join(", "), name = `${operation.title} ${shorten(about, 80)}`, answer = this.part("answer");
    this.page.tell(`${name} …`);
    try {
      const [path, options] = operation.request(values), result = await (await this.page.api.ask(path, options)).json();
      this.page.tell(`${name}: done`, "ok");
      answer.hidden = result === null;
      answer.textContent = shorten(JSON.stringify(result, null, 2), 20_000);
    } catch (error) {
      this.page.tell(`${name}: ${error.message}`, "bad");
      answer.hidden = true;
    }
    this.page.poll();
  }
}
