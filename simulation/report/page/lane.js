// One lane of a run: the history of one actor, as spans and marks in the order of time.

class Lane {
  constructor(name, kind, run) {
    Object.assign(this, { name, kind, run, label: name, section: "", number: 0, parent: null });
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
    this.longestOwned = Infinity;
    this.holding = new Map();
    this.fenced = false;
    this.counts = [];
    this.children = [];
  }

  enter(list, state, t) {
    endLast(list, t);
    if (!state) return;
    list.push({ from: t, until: Infinity, state });
    this.run.seen[list === this.states ? "states" : "views"].add(state);
  }

  own(partition, t) {
    if (this.holding.has(partition)) return;
    this.hold(partition, t, this.fenced);
    this.counts.push({ t, n: this.holding.size });
  }

  hold(partition, t, late) {
    const span = { partition, from: t, until: Infinity, late, owner: this };
    this.holding.set(partition, span);
    this.owned.push(span);
    this.run.owners.took(span);
  }

  release(partition, t) {
    const span = this.holding.get(partition);
    if (!span) return;
    this.holding.delete(partition);
    this.run.owners.ended(span, t);
    this.counts.push({ t, n: this.holding.size });
  }

  releaseAll(t) { for (const partition of [...this.holding.keys()]) this.release(partition, t); }

  // A topic is deleted: no member holds its partitions.
  releaseTopic(topic, t) {
    for (const partition of [...this.holding.keys()]) if (topicOf(partition) === topic) this.release(partition, t);
  }

  // The coordinator has removed it: until its next join, it must not hold partitions.
  removed(t) {
    this.fenced = true;
    for (const [partition, span] of [...this.holding]) {
      if (span.late) continue;
      this.run.owners.ended(span, t);
      this.hold(partition, t, true);
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
    endLast(this.downs, t);
    if (!sort) return;
    this.downs.push({ from: t, until: Infinity, sort });
    this.run.seen.downs.add(sort);
  }

  beginCallback(sort, i, t) { this.callback = { from: t, sort, i }; }

  endCallback(t) {
    if (!this.callback) return;
    this.callbacks.push({ ...this.callback, until: t });
    this.run.seen.callbacks.add(this.callback.sort);
    this.callback = null;
  }

  // The run is over: what lasts ends with it.
  close(end) {
    for (const list of [this.states, this.views, this.downs]) endLast(list, end);
    for (const span of this.owned) span.until = Math.min(span.until, end);
    this.endCallback(end);
    this.longestOwned = longest(this.owned);
  }

  stateAt(list, t) {
    const span = list[firstAfter(list, t, "from") - 1];
    return span && span.until > t ? span.state : "";
  }

  ownedAt(t) { return this.owned.filter((s) => s.from <= t && t < s.until); }

  epochAt(t) { return this.epochs[firstAfter(this.epochs, t, "t") - 1]?.epoch; }
}

// A span that lasts has no end yet: Infinity.
function endLast(list, t) {
  const last = list[list.length - 1];
  if (last?.until === Infinity) last.until = t;
}

function longest(spans) { return spans.reduce((most, s) => Math.max(most, s.until - s.from), 0); }

function topicOf(partition) { return partition.slice(0, partition.lastIndexOf("-")); }

// A lane for each partition that ever had an owner, with its owners and the times with two at once; and the number of partitions
// without an owner, of topics that ever had one.
class Owners {
  constructor(run) {
    this.run = run;
    this.lanes = new Map();
    this.numbers = new Set();
    this.topics = new Map();
    this.changed = new Set();
    this.none = Object.assign(new Lane("ownerless", "ownerless", run), { steps: [], most: 0, all: 0 });
    this.done = 0;
  }

  took(span) {
    const lane = span.lane = this.lanes.get(span.partition) ?? this.laneFor(span.partition);
    lane.owned.push(span);
    if (span.late) return;
    this.numbers.add(span.owner.number);
    this.changed.add(lane);
    if (!lane.held++) this.count(span.from, -1);
  }

  ended(span, t) {
    span.until = t;
    if (span.late) return;
    this.changed.add(span.lane);
    if (!--span.lane.held) this.count(t, 1);
  }

  laneFor(partition) {
    const lane = Object.assign(new Lane(partition, "partition", this.run), { held: 0, shared: [] }), topic = this.topicFor(topicOf(partition));
    this.lanes.set(partition, lane);
    this.grown = true;
    if (!topic.told) topic.changes.push({ t: 0, n: 1 });
    for (const { t, n } of topic.changes.splice(0)) this.count(t, n);
    topic.owned = true;
    return lane;
  }

  topicFor(name) {
    if (!this.topics.has(name)) this.topics.set(name, { changes: [], partitions: 0, owned: false, told: false });
    return this.topics.get(name);
  }

  // The trace says how many partitions a topic has from now on.
  topic(name, partitions, t) {
    const topic = this.topicFor(name), n = partitions - (topic.told ? topic.partitions : topic.owned ? this.heldOf(name) : 0);
    Object.assign(topic, { partitions, told: true });
    if (topic.owned) this.count(t, n);
    else topic.changes.push({ t, n });
  }

  heldOf(topic) { return [...this.lanes.keys()].filter((name) => topicOf(name) === topic).length; }

  count(t, n) {
    const { steps } = this.none;
    let at = firstAfter(steps, t, "t");
    if (steps[at - 1]?.t === t) at--;
    else steps.splice(at, 0, { t, sum: steps[at - 1]?.sum ?? 0, n: 0 });
    if (at < this.done - 1) this.done = 0;
    for (; at < steps.length; at++) steps[at].sum += n;
  }

  // After some rows: the shared spans, the steps, their maximum once all had an owner, and the total.
  settle() {
    for (const lane of this.changed) lane.shared = sharedSpans(lane.owned.filter((span) => !span.late));
    for (const lane of this.changed) if (lane.shared.length) this.run.seen.shared = true;
    this.changed.clear();
    const { none } = this;
    if (!this.done) [none.all, this.most, this.settled] = [0, 0, false];
    for (let at = Math.max(0, this.done - 1); at < none.steps.length; at++) {
      const n = none.steps[at].n = Math.max(0, none.steps[at].sum);
      none.all = Math.max(none.all, n);
      this.settled ||= n === 0;
      if (this.settled) this.most = Math.max(this.most, n);
    }
    this.done = none.steps.length;
    none.most = this.most || none.all;
  }
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
