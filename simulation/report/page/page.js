// Puts the page together: the run that is looked into with its tables, and the charts.

function table(headings, rows, empty) {
  if (!rows.length) return element("p", empty, "quiet");
  const made = element("table"), head = made.createTHead().insertRow(), body = made.createTBody();
  for (const heading of headings) {
    const cell = element("th", heading.replace(/^#/, ""), heading.startsWith("#") ? "number" : "");
    cell.scope = "col";
    head.append(cell);
  }
  for (const cells of rows) {
    const line = body.insertRow();
    cells.forEach((value, column) => {
      const cell = line.insertCell();
      if (headings[column].startsWith("#")) cell.className = "number";
      cell.append(value instanceof Node ? value : String(value));
    });
  }
  const scroll = element("div", undefined, "scroll");
  scroll.append(made);
  return scroll;
}

function jump(text, action) {
  const button = element("button", text, "link");
  button.type = "button";
  button.addEventListener("click", action);
  return button;
}

function legend(run, colours) {
  const items = [];
  const states = new Set(run.lanes.filter((l) => l.kind === "member").flatMap((l) => l.states.map((s) => s.state)));
  const swatch = (colour, text) => {
    const item = element("span", undefined, "key"), box = element("i");
    box.style.background = colour;
    item.append(box, text);
    items.push(item);
  };
  for (const state of states) swatch(colours.state(state), state);
  const downs = new Set(run.lanes.flatMap((l) => l.downs.map((s) => s.sort)));
  for (const sort of downs) if (sort !== "active") swatch(colours.down(sort), `host ${sort}`);
  for (const sort of ["assigned", "revoked", "lost"]) {
    if (run.lanes.some((l) => l.callbacks.some((s) => s.sort === sort))) swatch(colours.callback(sort), `${sort} callback`);
  }
  for (const sort of new Set(run.lanes.flatMap((l) => l.marks.map((m) => m.sort)))) {
    if (!GLYPHS[sort]) continue;
    const item = element("span", undefined, "key"), canvas = element("canvas");
    [canvas.width, canvas.height] = [32, 32];
    const c = canvas.getContext("2d");
    c.scale(2, 2);
    paintGlyph(c, sort, 8, 8, colours);
    item.append(canvas, GLYPHS[sort]);
    items.push(item);
  }
  return items;
}

const GLYPHS = {
  violation: "violation", fault: "fault", removed: "removed by the coordinator", "request.lost": "message lost",
  refused: "refused",
};

class RunSection {
  constructor(section) {
    this.part = (name) => section.querySelector(`[data-part="${name}"]`);
    this.timeline = new Timeline(this.part("canvas"), this.part("overview"));
    this.interaction = new Interaction(this.timeline, this.part("tooltip"), this.part("detail"));
    const click = { fit: () => this.interaction.fit(), in: () => this.interaction.zoom(0.5), out: () => this.interaction.zoom(2),
      previous: () => this.interaction.nextViolation(-1), next: () => this.interaction.nextViolation(1) };
    for (const [name, action] of Object.entries(click)) this.part(name).addEventListener("click", action);
    this.part("filter").addEventListener("input", (event) => this.timeline.filter(event.target.value));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.fillLegend());
  }

  fillLegend() { this.part("legend").replaceChildren(...legend(this.run, this.timeline.colours)); }

  show(run) {
    this.run = run;
    this.timeline.show(run);
    this.part("filter").value = "";
    this.part("title").textContent = run.title;
    this.part("why").textContent = run.why;
    this.part("facts").replaceChildren(...run.facts.map(([name, value]) => {
      const fact = element("div");
      fact.append(element("dt", name), element("dd", value));
      return fact;
    }));
    this.part("command").textContent = run.command;
    this.part("command").parentElement.hidden = !run.command;
    this.part("left-out").textContent = run.leftOut.length ? `Left out to keep the page small: ${run.leftOut.join(", ")}.` : "";
    this.part("detail").replaceChildren(element("div", "Point at the timeline for details; click an event to keep it here.", "quiet"));
    for (const name of ["previous", "next"]) this.part(name).hidden = !run.violations.length;
    this.part("filter").parentElement.hidden = run.lanes.filter((lane) => lane.kind === "member").length < 8;
    this.fillLegend();
    this.fillTables();
  }

  fillTables() {
    const run = this.run, act = this.interaction;
    this.part("violations").replaceChildren(table(["time", "invariant", "what happened"],
      run.violations.map((i) => {
        const row = run.row(i);
        return [jump(showTime(row.t, true), () => act.select(i, "zoom")), row.error, row.detail];
      }), "No invariant was violated in this run."));
    this.part("rebalances").replaceChildren(table(["began", "#took", "because of", "#epochs", "#heartbeats"],
      run.rebalances.map((r) => [jump(showTime(r.begin, true), () => { act.show(r.begin, r.end ?? run.end); act.select(r.i); }),
        r.end === null ? "unfinished" : showDuration(r.end - r.begin), r.cause, r.epochs, r.heartbeats]),
      "There was no rebalance."));
    this.part("kinds").replaceChildren(table(["event", "#count"],
      [...run.kinds].sort((a, b) => b[1] - a[1]).map(([kind, count]) => [kind, count.toLocaleString("en")]), "The trace is empty."));
  }
}

async function showRuns() {
  const section = document.getElementById("run");
  if (!section) return;
  const shown = new RunSection(section), chooser = document.getElementById("run-chooser"), known = new Map();
  const choose = async (id) => {
    if (!known.has(id)) known.set(id, new Run(JSON.parse(await unpack(id))));
    shown.show(known.get(id));
    document.documentElement.dataset.shown = id;
  };
  chooser?.addEventListener("change", () => choose(chooser.value));
  for (const link of document.querySelectorAll("[data-run]")) {
    link.addEventListener("click", async () => {
      chooser.value = link.dataset.run;
      await choose(link.dataset.run);
      section.scrollIntoView({ behavior: "smooth" });
    });
  }
  await choose(chooser?.value ?? "run-0");
}

async function showCharts() {
  const holders = [...document.querySelectorAll("[data-figure]")];
  if (!holders.length) return;
  const script = element("script", await unpack("plotly"));
  document.head.append(script);
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    for (const holder of holders) {
      const figure = JSON.parse(document.getElementById(holder.dataset.figure).textContent);
      const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true };
      const layout = { ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: "system-ui, sans-serif", size: 12.5, color: colour("text") },
        hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("text") } },
        xaxis: { ...axis, ...figure.layout.xaxis }, yaxis: { ...axis, ...figure.layout.yaxis } };
      for (const trace of figure.data) {
        const state = trace.meta?.state;
        if (state) trace.marker = { color: colour("state-" + state) };
      }
      Plotly.react(holder, figure.data, layout, { responsive: true, displayModeBar: false });
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

async function start() {
  const trouble = document.getElementById("trouble");
  try {
    await showRuns();
    await showCharts();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    trouble.hidden = false;
    trouble.textContent = typeof DecompressionStream === "undefined"
      ? "This browser is too old to unpack the timeline and the charts; the tables are complete."
      : `The timeline or the charts could not be drawn: ${error.message}`;
    throw error;
  }
}

start();
