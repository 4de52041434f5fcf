// The part of the page that shows one run: the timeline with its controls, tables and legend.

const READING = {
  member: "In a member's lane: its state; below it the callback that runs, thin what the coordinator takes it for, the partitions it owns (each keeps its height in all lanes, pale where"
    + " the coordinator has removed the member and it does not know yet), its epochs, a grey tick for each heartbeat, and a blue one for each commit.",
  consumer: "In a consumer's lane: its own state, the callback that runs, and below them, thin, what the coordinator takes it for.",
  thread: "A client's lane is above those of its threads; a cross is an exception that left a thread.",
  ownerless: "At the top, how many have no owner at each time: no curve, all have one. A folded section shows the share of its lanes in each state, or of partitions with each owner.",
  partition: "A partition's lane tells who owned it: no colour, no owner; low and pale, an owner that was removed and does not know it.",
};

class RunSection {
  // With `linked`, the page's address says what is shown.
  constructor(section, theme, linked = true) {
    this.linked = linked;
    this.part = (name) => section.querySelector(`[data-part="${name}"]`);
    this.section = section;
    this.theme = theme;
    const t = this.timeline = new Timeline(this.part("canvas"), this.part("overview"), theme);
    this.interaction = new Interaction(t, new Tooltip(this.part("tooltip"), this.part("canvas")));
    this.filters = new Filters(this.part, t);
    this.list = new EventList(this.part("events"), this.part("events-count"), t);
    const address = linked ? later(250, () => writeAddress(addressOf(t, this.filters))) : () => {};
    t.viewed = () => { address(); this.list.refresh(); };
    t.selectedRow = (i) => { this.tell(i); address(); this.list.refresh(); };
    this.filters.changed = () => { address(); this.list.refresh(); };
    const click = {
      fit: () => t.fit(), in: () => t.zoom(0.5), out: () => t.zoom(2), link: () => this.copyLink(),
      previous: () => this.interaction.violation(-1), next: () => this.interaction.violation(1),
    };
    for (const [name, action] of Object.entries(click)) this.part(name).addEventListener("click", action);
    theme.listeners.push(() => this.run && this.fillLegend());
  }

  show(run, view = {}) {
    const t = this.timeline;
    this.run = run;
    t.show(run);
    this.filters.show(run, view.filter);
    if (view.until) t.view(view.from, view.until - view.from);
    const event = view.event === undefined ? null : run.bySeq(view.event);
    t.select(event, event !== null && "near");
    this.part("title").textContent = run.title === document.title ? "Timeline" : run.title;
    this.part("why").textContent = run.why;
    this.part("facts").replaceChildren(...run.facts.map(([name, value]) => {
      const fact = element("div");
      fact.append(element("dt", name), element("dd", value));
      return fact;
    }));
    this.part("command").textContent = run.command;
    this.part("command").parentElement.hidden = !run.command;
    this.part("left-out").textContent = run.leftOut.length ? `Left out to keep the page small: ${run.leftOut.join(", ")}.` : "";
    this.fill();
  }

  fill() {
    const { run } = this, kinds = new Set(run.lanes.map((lane) => lane.kind)), box = this.part("rebalances-box").parentElement;
    this.told = this.summary();
    for (const name of ["previous", "next"]) this.part(name).hidden = !run.violations.length;
    this.part("reading").textContent = Object.entries(READING).filter(([kind]) => kinds.has(kind)).map(([, text]) => text).join(" ");
    this.fillLegend();
    if (!box.contains(document.activeElement)) this.fillTables();
  }

  // What the legend and the tables depend on.
  summary() {
    const { run } = this, { states, views, downs, callbacks, marks, shared } = run.seen;
    return [states, views, downs, callbacks, marks].map((each) => each.size) + [shared, run.lanes.length, run.violations.length, run.rebalances.length,
      run.rebalances[run.rebalances.length - 1]?.end].join();
  }

  // The run has more rows, and other lanes if they `changed`.
  grow(changed) {
    this.timeline.grow(changed);
    this.filters.grow();
    if (this.summary() !== this.told) this.fill();
  }

  tell(i) {
    const detail = this.part("detail");
    if (i === null) {
      detail.replaceChildren(element("div", "Point at the timeline for details; click an event to keep it here.", "quiet"));
      return;
    }
    detail.replaceChildren(...describe(rowLines(this.run.row(i))));
    if (!this.linked) return;
    const link = element("a", "link to this event"), last = element("div");
    link.href = addressOf(this.timeline, this.filters, i);
    last.append(link);
    detail.append(last);
  }

  async copyLink() {
    const address = addressOf(this.timeline, this.filters), button = this.part("link");
    writeAddress(address);
    try {
      await navigator.clipboard.writeText(location.href.split("#")[0] + address);
      button.textContent = "copied";
    } catch {
      button.textContent = "in the address bar";
    }
    setTimeout(() => { button.textContent = "copy link"; }, 1500);
  }

  // A line for each kind of thing: the same word for members and groups is one state, drawn alike.
  fillLegend() {
    const run = this.run, { theme } = this, lanes = run.lanes, lines = new Map();
    const key = (line, text, paint) => {
      if (!lines.has(line)) lines.set(line, []);
      lines.get(line).push(legendKey(text, paint));
    };
    const swatch = (line, fill, text, height = 14) => key(line, text, (c) => paintBox(c, fill, 1, (16 - height) / 2, 20, height));
    const named = (states) => new Map([...states].map((state) => [plainState(state), state]));
    for (const [text, state] of named(run.seen.states)) swatch("states", theme.state(state), text);
    for (const [text, state] of named(run.seen.views)) swatch("the coordinator's view", theme.state(state), text, 5);
    const owned = lanes.some((lane) => lane.kind === "partition");
    for (const sort of run.seen.downs) {
      swatch("hosts", theme.down(sort), sort === "active" ? "coordinates" : sort, sort === "active" ? 6 : 14);
    }
    for (const sort of run.seen.callbacks) {
      swatch("callbacks", { colour: theme.callback(sort) }, sort, 3);
    }
    if (owned) swatch("partitions", { colour: theme.colours.warn }, run.lanes.find((lane) => lane.kind === "ownerless").noun);
    if (run.seen.shared) swatch("partitions", theme.fill("bad", "crossed"), "two owners");
    const tick = (text, colour) => key("marks", text, (c) => { c.fillStyle = colour; c.fillRect(10, 4, 2, 8); });
    if (lanes.some((lane) => lane.kind === "member" && lane.beats.length)) tick("heartbeat", theme.colours.beat);
    if (lanes.some((lane) => lane.kind === "member" && lane.commits.length)) tick("commit", theme.colours.accent);
    for (const sort of Object.keys(GLYPHS).filter((each) => run.seen.marks.has(each))) {
      key("marks", GLYPHS[sort], (c) => paintGlyph(c, sort, 11, 8, theme.colours));
    }
    this.part("legend").replaceChildren(...[...lines].map(([line, items]) => {
      const made = element("div", undefined, "keys");
      made.append(element("span", line, "name"), ...items);
      return made;
    }));
  }

  fillTables() {
    const run = this.run, t = this.timeline;
    const near = () => t.canvas.scrollIntoView({ block: "nearest", behavior: "smooth" });
    this.part("violations-box").hidden = !run.violations.length;
    this.part("violations").replaceChildren(table(["time", "invariant", "what happened"],
      run.violations.map((i) => {
        const row = run.row(i);
        return [jump(showTime(row.clock, 3), () => { t.select(i, "zoom"); near(); }), row.error, row.detail];
      }), ""));
    const several = run.groups.size > 1;
    this.part("rebalances-box").hidden = !run.groups.size;
    this.part("rebalances").replaceChildren(table([...(several ? ["group"] : []), "began", "#took", "because of", "#epochs", "#heartbeats"],
      (run.lasts ? run.rebalances.toReversed() : run.rebalances).map((r) => {
        const until = r.end ?? run.end, length = Math.max(2e5, (until - r.begin) * 1.6);
        const show = () => { t.view((r.begin + until - length) / 2, length); t.select(r.i, "near"); near(); };
        return [...(several ? [r.group] : []), jump(showTime(run.clock(r.begin), 3), show), r.end === null ? "unfinished" : showDuration(run.clock(r.end) - run.clock(r.begin)),
          r.cause, r.epochs, r.heartbeats];
      }), "There was no rebalance."));
  }
}

function legendKey(text, paint) {
  const item = element("span", undefined, "key"), canvas = element("canvas"), ratio = 2;
  [canvas.width, canvas.height] = [22 * ratio, 16 * ratio];
  const c = canvas.getContext("2d");
  c.scale(ratio, ratio);
  paint(c);
  item.append(canvas, text);
  return item;
}
