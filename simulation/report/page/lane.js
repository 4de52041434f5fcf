// One lane of a run: what somebody went through, as spans and marks in the order of time.

class Lane {
  constructor(name, kind) {
    Object.assign(this, { name, kind, label: name, section: "", number: 0, parent: null });
    this.rows = [];
    this.times = [];
    this.beats = [];
    this.marks = [];
    this.states = [];
    this.views = [];
    this.callbacks = [];
    this.downs = [];
    this.epochs = [];
    this.owned = [];
    this.holding = new Map();
    this.fenced = false;
    this.counts = [];
    this.children = [];
  }

  enter(list, state, t) {
    const last = list[list.length - 1];
    if (last && last.until === undefined) last.until = t;
    if (state) list.push({ from: t, state });
  }

  own(partition, t) {
    if (this.holding.has(partition)) return;
    this.holding.set(partition, { from: t, late: this.fenced });
    this.counts.push({ t, n: this.holding.size });
  }

  release(partition, t) {
    const held = this.holding.get(partition);
    if (!held) return;
    this.owned.push({ partition, from: held.from, until: t, late: held.late });
    this.holding.delete(partition);
    this.counts.push({ t, n: this.holding.size });
  }

  releaseAll(t) { for (const partition of [...this.holding.keys()]) this.release(partition, t); }

  // A topic is deleted: nobody holds its partitions.
  releaseTopic(topic, t) {
    for (const partition of [...this.holding.keys()]) {
      if (partition.slice(0, partition.lastIndexOf("-")) === topic) this.release(partition, t);
    }
  }

  // The coordinator has removed it: what it holds, or takes, until its next join is held without right.
  removed(t) {
    this.fenced = true;
    for (const [partition, held] of this.holding) {
      if (held.late) continue;
      this.owned.push({ partition, from: held.from, until: t, late: false });
      this.holding.set(partition, { from: t, late: true });
    }
  }

  host(what, t) {
    for (const child of this.children) child.host(what, t);
    if (what === "crash" || what === "stopped" || what === "start") this.fenced = false;
    if (what === "crash" || what === "stopped") {
      this.releaseAll(t);
      for (const list of [this.states, this.views]) this.enter(list, "", t);
      this.endCallback(t);
    }
    this.downFor({ crash: "down", stopped: "stopped", freeze: "frozen", start: null, thaw: null }[what], t);
  }

  node(what, t) {
    this.downFor({ crash: "down", left: "left", load: "loading", resign: null, restart: null, active: "active" }[what], t);
  }

  downFor(sort, t) {
    if (sort === undefined) return;
    const last = this.downs[this.downs.length - 1];
    if (last && last.until === undefined) last.until = t;
    if (sort) this.downs.push({ from: t, sort });
  }

  beginCallback(sort, i, t) { this.callback = { from: t, sort, i }; }

  endCallback(t) {
    if (this.callback) this.callbacks.push({ ...this.callback, until: t });
    this.callback = null;
  }

  close(end) {
    for (const list of [this.states, this.views, this.downs]) {
      const last = list[list.length - 1];
      if (last && last.until === undefined) last.until = end;
    }
    this.releaseAll(end);
    this.endCallback(end);
    this.marks.sort((a, b) => a.t - b.t);
    this.owned.sort((a, b) => a.from - b.from);
    this.longestOwned = longest(this.owned);
  }

  stateAt(list, t) {
    const span = list[firstAfter(list, t, "from") - 1];
    return span && span.until > t ? span.state : "";
  }

  ownedAt(t) { return this.owned.filter((s) => s.from <= t && t < s.until); }

  epochAt(t) { return this.epochs[firstAfter(this.epochs, t, "t") - 1]?.epoch; }
}

function longest(spans) { return spans.reduce((most, s) => Math.max(most, s.until - s.from), 0); }

// A lane for each partition that anybody owned: who had it, and where two had it at once.
function partitionLanes(lanes) {
  const found = new Map();
  for (const lane of lanes) {
    for (const span of lane.owned) {
      if (!found.has(span.partition)) found.set(span.partition, new Lane(span.partition, "partition"));
      found.get(span.partition).owned.push({ ...span, owner: lane });
    }
  }
  const sorted = [...found.values()].sort((a, b) => byName(a.name, b.name));
  for (const lane of sorted) {
    lane.owned.sort((a, b) => a.from - b.from);
    lane.longestOwned = longest(lane.owned);
    lane.shared = sharedSpans(lane.owned.filter((span) => !span.late));
  }
  return sorted;
}

function sharedSpans(spans) {
  const shared = [];
  let until = -Infinity;
  for (const span of spans) {
    if (span.from < until) shared.push({ from: span.from, until: Math.min(until, span.until) });
    until = Math.max(until, span.until);
  }
  return shared;
}
