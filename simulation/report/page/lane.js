// One lane of a run: the history of one actor, as spans and marks in the order of time.

class Lane {
  constructor(name, kind) {
    Object.assign(this, { name, kind, label: name, section: "", number: 0, parent: null });
    this.rows = [];
    this.times = [];
    this.beats = [];
    this.commits = [];
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

  // A topic is deleted: no member holds its partitions.
  releaseTopic(topic, t) {
    for (const partition of [...this.holding.keys()]) {
      if (partition.slice(0, partition.lastIndexOf("-")) === topic) this.release(partition, t);
    }
  }

  // The coordinator has removed it: until its next join, it must not hold partitions.
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

// A lane for each partition that ever had an owner: its owners, and the times with two at once.
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

// The number of partitions without an owner, as steps; its maximum once all had an owner; and the total number.
function ownerless(lanes, changes, end) {
  const topicOf = (name) => name.slice(0, name.lastIndexOf("-")), owned = Map.groupBy(lanes, (lane) => topicOf(lane.name));
  const deltas = [], counts = new Map(), told = new Set(changes.map(({ topic }) => topic));
  for (const { t, topic, count } of changes) {
    if (owned.has(topic)) deltas.push({ t, n: count - (counts.get(topic) ?? 0) });
    counts.set(topic, count);
  }
  for (const [topic, held] of owned) if (!told.has(topic)) deltas.push({ t: 0, n: held.length });
  for (const lane of lanes) {
    let until = -Infinity;
    for (const span of lane.owned) {
      if (span.late || span.until <= until) continue;
      if (span.from > until) {
        if (until > -Infinity) deltas.push({ t: until, n: 1 });
        deltas.push({ t: span.from, n: -1 });
      }
      until = span.until;
    }
    if (until < end && until > -Infinity) deltas.push({ t: until, n: 1 });
  }
  deltas.sort((a, b) => a.t - b.t);
  const steps = [];
  let n = 0, all = 0, most = 0, settled = false;
  for (const [at, delta] of deltas.entries()) {
    n += delta.n;
    if (deltas[at + 1]?.t === delta.t) continue;
    const shown = Math.max(0, n);
    steps.push({ t: delta.t, n: shown });
    all = Math.max(all, shown);
    settled ||= shown === 0;
    if (settled) most = Math.max(most, shown);
  }
  return [steps, most || all, all];
}

// The sum of the lanes of a folded section: changes of the number in each state, or with each owner.
function together(lanes) {
  const changes = [], spans = new Map(), owning = new Set(lanes.flatMap((lane) => lane.kind === "partition" ? lane.owned.map(({ owner }) => owner.number) : []));
  const add = (key, from, until) => {
    changes.push({ t: from, key, n: 1 }, { t: until, key, n: -1 });
    spans.set(key, (spans.get(key) ?? 0) + until - from);
  };
  for (const lane of lanes) {
    if (lane.kind === "partition") for (const { owner, from, until, late } of lane.owned) late || add(owning.size > 2 * PALETTE.owners ? 0 : owner.number, from, until);
    else for (const { state, from, until } of lane.states) add(state, from, until);
    if (lane.kind !== "partition") for (const { sort, from, until } of lane.downs) if (sort === "down" || sort === "stopped") add("host " + sort, from, until);
  }
  changes.sort((a, b) => a.t - b.t);
  const keys = [...spans.keys()].sort((a, b) => typeof a === "number" ? a - b : spans.get(b) - spans.get(a));
  return { changes, keys, count: lanes.length, owners: lanes[0].kind === "partition" };
}
