// From an embedded run to what can be drawn: lanes with spans, marks and owned partitions, all sorted by time.

async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function parsePartitions(text) {
  const held = [];
  for (const part of text ? text.split(" ") : []) {
    const colon = part.lastIndexOf(":");
    for (const range of part.slice(colon + 1).split(",")) {
      const [first, last] = range.split("-").map(Number);
      for (let n = first; n <= (last ?? first); n++) held.push(part.slice(0, colon) + "-" + n);
    }
  }
  return held;
}

class Run {
  constructor(packed) {
    Object.assign(this, { id: packed.id, title: packed.title, why: packed.why, command: packed.command });
    this.facts = packed.facts;
    this.leftOut = packed.left_out;
    this.strings = packed.strings;
    this.sets = packed.sets;
    this.columns = packed.columns;
    this.length = packed.columns.t.length;
    this.t = new Float64Array(this.length);
    this.seq = new Float64Array(this.length);
    let t = 0, seq = 0;
    for (let i = 0; i < this.length; i++) {
      this.t[i] = t += packed.columns.t[i];
      this.seq[i] = seq += packed.columns.seq[i];
    }
    this.end = Math.max(1, this.length ? this.t[this.length - 1] : 1);
    this.parsed = new Map();
    this.build();
  }

  text(column, i) { return this.strings[this.columns[column][i]]; }

  partitions(i) {
    const set = this.columns.partitions[i];
    if (!this.parsed.has(set)) this.parsed.set(set, parsePartitions(this.sets[set]));
    return this.parsed.get(set);
  }

  row(i) {
    const c = this.columns;
    return {
      seq: this.seq[i], t: this.t[i], actor: this.text("actor", i), kind: this.text("kind", i),
      from: this.text("from", i), to: this.text("to", i), memberEpoch: c.member_epoch[i],
      groupEpoch: c.group_epoch[i], partitions: this.sets[c.partitions[i]], error: this.text("error", i),
      detail: this.text("detail", i),
    };
  }

  build() {
    this.lanes = [];
    this.byName = new Map();
    this.world = this.lane("faults, topics", "world");
    this.group = this.lane("group", "group");
    this.violations = [];
    this.rebalances = [];
    this.epochs = [];
    this.faults = [];
    this.lasting = new Map();
    this.kinds = new Map();
    this.partitionNumbers = new Map();
    this.nameLanes();
    for (let i = 0; i < this.length; i++) this.take(i);
    for (const lane of this.lanes) lane.close(this.end);
    if (this.rebalance) this.rebalances.push({ ...this.rebalance, end: null });
    this.faults.sort((a, b) => a.from - b.from);
    this.longestFault = this.faults.reduce((longest, s) => Math.max(longest, s.until - s.from), 0);
    this.numberPartitions();
  }

  nameLanes() {
    const found = { broker: new Set(), member: new Set() };
    for (let i = 0; i < this.length; i++) {
      const kind = this.text("kind", i), actor = this.text("actor", i);
      if (!actor) continue;
      if (kind === "coordinator") found.broker.add(actor);
      else if (kind === "member.state" || kind === "host" || kind.startsWith("callback")) found.member.add(actor);
    }
    const natural = new Intl.Collator("en", { numeric: true }).compare;
    for (const name of [...found.broker].sort(natural)) this.lane(name, "broker");
    for (const name of [...found.member].sort(natural)) if (!found.broker.has(name)) this.lane(name, "member");
  }

  lane(name, kind) {
    const lane = new Lane(name, kind);
    this.lanes.push(lane);
    this.byName.set(name, lane);
    return lane;
  }

  laneOf(kind, actor) {
    if (kind.startsWith("group.")) return this.group;
    return this.byName.get(actor) ?? this.world;
  }

  take(i) {
    const kind = this.text("kind", i), t = this.t[i], detail = this.text("detail", i);
    const lane = this.laneOf(kind, this.text("actor", i));
    this.kinds.set(kind, (this.kinds.get(kind) ?? 0) + 1);
    lane.rows.push(i);
    if (kind === "heartbeat") {
      lane.beats.push(t);
      if (this.rebalance) this.rebalance.heartbeats++;
    } else if (kind === "member.state") lane.enter(this.text("to", i), t);
    else if (kind === "group.state" || kind === "group.epoch") this.takeGroup(i, kind, t, detail);
    else if (kind === "callback.begin") this.beginCallback(lane, i, t, detail);
    else if (kind === "callback.end") this.endCallback(lane, i, t, detail);
    else if (kind === "host") lane.host(detail.split(" ")[0], t);
    else if (kind === "coordinator") lane.broker(detail.split(" ")[0], t);
    else if (kind === "member.removed") lane.marks.push({ t, i, sort: "removed" });
    else if (kind === "violation") {
      this.violations.push(i);
      lane.marks.push({ t, i, sort: "violation" });
    } else if (kind === "fault" || kind === "topic" || kind.startsWith("run.") || kind.endsWith(".lost")) {
      const over = kind === "fault" && this.takeFault(i, t);
      if (!over) lane.marks.push({ t, i, sort: kind });
    }
    const error = this.text("error", i);
    if ((kind === "heartbeat" || kind === "commit") && error && error !== "NONE") lane.marks.push({ t, i, sort: "refused" });
  }

  // Faults that last are drawn from their begin to their end; true at the end of one.
  takeFault(i, t) {
    const open = this.lasting.get(this.text("actor", i)) ?? [];
    this.lasting.set(this.text("actor", i), open);
    if (this.text("to", i) !== "end") {
      open.push(t);
      return false;
    }
    if (open.length) this.faults.push({ from: open.shift(), until: t, i });
    return true;
  }

  takeGroup(i, kind, t, detail) {
    const to = this.text("to", i);
    if (kind === "group.epoch") {
      this.epochs.push({ t, i, epoch: this.columns.group_epoch[i] });
      this.rebalance ??= { begin: t, i, cause: detail, epochs: 0, heartbeats: 0 };
      this.rebalance.epochs++;
    } else this.group.enter(to, t);
    if (this.rebalance && (to === "Stable" || to === "Empty" || to === "Dead")) {
      if (to === "Stable") this.rebalances.push({ ...this.rebalance, end: t });
      this.rebalance = null;
    }
  }

  beginCallback(lane, i, t, detail) {
    lane.callback = { from: t, sort: detail };
    if (detail !== "assigned") for (const p of this.partitions(i)) lane.release(p, t);
  }

  endCallback(lane, i, t, detail) {
    if (lane.callback) lane.callbacks.push({ ...lane.callback, until: t });
    lane.callback = null;
    if (detail === "assigned" && !this.text("error", i)) for (const p of this.partitions(i)) lane.own(p, t);
  }

  numberPartitions() {
    const names = new Set();
    for (const lane of this.lanes) for (const span of lane.owned) names.add(span.partition);
    const natural = new Intl.Collator("en", { numeric: true }).compare;
    const sorted = [...names].sort(natural);
    sorted.forEach((name, number) => this.partitionNumbers.set(name, number));
    this.topics = [...new Set(sorted.map((name) => name.slice(0, name.lastIndexOf("-"))))];
    for (const lane of this.lanes) lane.numberOwned(this.partitionNumbers);
  }
}

class Lane {
  constructor(name, kind) {
    Object.assign(this, { name, kind, rows: [], beats: [], marks: [], states: [], callbacks: [], downs: [] });
    this.owned = [];
    this.holding = new Map();
    this.counts = [];
  }

  enter(state, t) {
    const last = this.states[this.states.length - 1];
    if (last && last.until === undefined) last.until = t;
    this.states.push({ from: t, state });
  }

  own(partition, t) {
    if (this.holding.has(partition)) return;
    this.holding.set(partition, t);
    this.counts.push({ t, n: this.holding.size });
  }

  release(partition, t) {
    if (!this.holding.has(partition)) return;
    this.owned.push({ partition, from: this.holding.get(partition), until: t });
    this.holding.delete(partition);
    this.counts.push({ t, n: this.holding.size });
  }

  releaseAll(t) { for (const partition of [...this.holding.keys()]) this.release(partition, t); }

  host(what, t) {
    if (what === "crash" || what === "stopped") {
      this.releaseAll(t);
      const last = this.states[this.states.length - 1];
      if (last && last.until === undefined) last.until = t;
      if (this.callback) this.callbacks.push({ ...this.callback, until: t });
      this.callback = null;
    }
    this.downFor({ crash: "down", stopped: "stopped", freeze: "frozen", start: null, thaw: null }[what], t);
  }

  broker(what, t) {
    this.downFor({ crash: "down", load: "loading", resign: null, restart: null, active: "active" }[what], t);
  }

  downFor(sort, t) {
    if (sort === undefined) return;
    const last = this.downs[this.downs.length - 1];
    if (last && last.until === undefined) last.until = t;
    if (sort) this.downs.push({ from: t, sort });
  }

  close(end) {
    for (const list of [this.states, this.downs]) {
      const last = list[list.length - 1];
      if (last && last.until === undefined) last.until = end;
    }
    this.releaseAll(end);
    if (this.callback) this.callbacks.push({ ...this.callback, until: end });
    this.marks.sort((a, b) => a.t - b.t);
  }

  numberOwned(numbers) {
    for (const span of this.owned) span.number = numbers.get(span.partition);
    this.owned.sort((a, b) => a.from - b.from);
    this.longestOwned = this.owned.reduce((longest, s) => Math.max(longest, s.until - s.from), 0);
  }

  stateAt(t) {
    const i = firstAfter(this.states, t, "from") - 1;
    return i >= 0 && this.states[i].until >= t ? this.states[i].state : "";
  }

  ownedAt(t) { return this.owned.filter((s) => s.from <= t && t < s.until).map((s) => s.partition); }
}

// The first index whose value is greater than t, in an ascending list (of objects under `key`, or of numbers).
function firstAfter(list, t, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((key ? list[middle][key] : list[middle]) > t) high = middle;
    else low = middle + 1;
  }
  return low;
}

function showTime(us, precise) {
  const s = us / 1e6, h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60, rest = s % 60;
  const two = (n) => String(n).padStart(2, "0");
  const seconds = precise ? rest.toFixed(precise === true ? 3 : precise).padStart(precise === true ? 6 : precise + 3, "0")
    : two(Math.floor(rest + 1e-9));
  return h ? `${h}:${two(m)}:${seconds}` : `${m}:${seconds}`;
}

function showDuration(us) {
  if (us >= 60e6) return `${Math.floor(us / 60e6)} min ${((us % 60e6) / 1e6).toFixed(0)} s`;
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  if (us >= 1e3) return `${(us / 1e3).toFixed(1)} ms`;
  return `${us.toFixed(0)} µs`;
}
