// From an embedded run to lanes: reads its rows once, in their order.

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

// Cuts stretches of time out of ascending times; each stays as a narrow gap. Returns the gaps.
function cutOut(times, stretches) {
  const cut = stretches.reduce((sum, [from, until]) => sum + until - from, 0);
  const kept = (times[times.length - 1] ?? 0) - cut, width = Math.max(1, Math.min(kept * 0.04, (kept * 0.4) / Math.max(1, stretches.length)));
  const cuts = [];
  let gone = 0, next = 0;
  for (let i = 0; i < times.length; i++) {
    while (next < stretches.length && times[i] >= stretches[next][1]) {
      const [from, until] = stretches[next++];
      cuts.push({ from, until, at: from - gone, width });
      gone += until - from - width;
    }
    times[i] -= gone;
  }
  return cuts;
}

const NODE_KINDS = new Set(["coordinator", "node"]);
const MEMBER_KINDS = new Set(["member.state", "client.state", "host", "callback.begin", "callback.end", "sac.consumer"]);
const THREAD_KINDS = new Set(["thread.state", "thread.failed"]);

// Regular responses to members get no mark.
const ORDINARY = new Set(["NONE", "REBALANCE_IN_PROGRESS", "MEMBER_ID_REQUIRED"]);

class Run {
  constructor(packed) {
    Object.assign(this, { id: packed.id, title: packed.title, why: packed.why, command: packed.command });
    Object.assign(this, { facts: packed.facts, leftOut: packed.left_out, strings: packed.strings, sets: packed.sets });
    this.columns = packed.columns;
    this.names = new Map(Object.entries(packed.names));
    this.world = packed.world;
    this.lasts = packed.lasts ?? false;
    this.length = packed.columns.t.length;
    this.t = new Float64Array(this.length);
    this.seq = new Float64Array(this.length);
    let t = 0, seq = 0;
    for (let i = 0; i < this.length; i++) {
      this.t[i] = t += packed.columns.t[i];
      this.seq[i] = seq += packed.columns.seq[i];
    }
    this.cuts = cutOut(this.t, packed.cuts);
    this.endAt(Math.max(1, this.length ? this.t[this.length - 1] : 1), 1.002);
    this.parsed = new Map();
    this.violations = [];
    this.rebalances = [];
    this.faults = [];
    this.ends = [];
    this.open = new Map();
    this.kinds = new Map();
    this.seen = { states: new Set(), views: new Set(), downs: new Set(), callbacks: new Set(), marks: new Set(), shared: false };
    this.actors = { node: new Set(), member: new Set(), consumer: new Set(), thread: new Set(), group: new Set() };
    this.made = new Map();
    this.groups = new Map();
    this.owners = new Owners(this);
    this.around = new Lane("faults", "world", this);
    this.around.section = "Faults and topics";
    this.makeLanes();
    this.grow(0);
    if (!this.lasts) this.close();
  }

  // The time of the last event, and a little more: the timeline shows so much.
  endAt(end, more) { Object.assign(this, { end, whole: end * more }); }

  // The name of an actor whose rows have its id.
  nameOf(actor) { return this.names.get(actor) ?? actor; }

  text(column, i) { return this.strings[this.columns[column][i]]; }

  partitions(i) {
    const set = this.columns.partitions[i];
    if (!this.parsed.has(set)) this.parsed.set(set, parsePartitions(this.sets[set]));
    return this.parsed.get(set);
  }

  row(i) {
    const c = this.columns;
    return {
      seq: this.seq[i], t: this.t[i], clock: this.clock(this.t[i]), group: this.text("group", i), actor: this.nameOf(this.text("actor", i)), kind: this.text("kind", i),
      from: this.text("from", i), to: this.text("to", i), memberEpoch: c.member_epoch[i],
      groupEpoch: c.group_epoch[i], partitions: this.sets[c.partitions[i]], error: this.text("error", i),
      detail: this.text("detail", i),
    };
  }

  // Lanes count without the cuts; this is the time of the run.
  clock(t) {
    let more = 0;
    for (const cut of this.cuts) {
      if (t < cut.at) break;
      more += (cut.until - cut.from - cut.width) * Math.min(1, (t - cut.at) / cut.width);
    }
    return t + more;
  }

  // The row with this number, or the one after it.
  bySeq(seq) {
    const i = firstAfter(this.seq, seq - 0.5);
    return i < this.length ? i : null;
  }

  // Take the rows from that one on. Returns true if there are other lanes than before.
  grow(first) {
    const found = this.findActors(first);
    if (found) this.makeLanes();
    for (let i = first; i < this.length; i++) this.take(i);
    const { owners } = this, moved = owners.changed.size > 0, changed = found || owners.grown;
    if (changed) this.lanes = [...this.lanes.filter((lane) => lane.kind !== "partition" && lane !== owners.none), ...this.ownerLanes(), ...this.ownerless()];
    owners.settle();
    // The number of partitions that fill a bar: without it, a member that has all at the start would leave all others flat.
    if (moved) {
      const counts = this.lanes.flatMap((lane) => lane.counts.slice(-COUNTS_SEEN).map(({ n }) => n)).sort((a, b) => a - b);
      this.most = Math.max(1, 2 * (counts[Math.floor(counts.length / 2)] ?? 0));
    }
    return changed;
  }

  close() {
    for (const lane of this.lanes) lane.close(this.end);
    for (const lane of this.owners.lanes.values()) for (const span of lane.shared) span.until = Math.min(span.until, this.end);
    for (const fault of this.faults) fault.until = Math.min(fault.until, this.end);
  }

  findActors(first) {
    const { actors } = this, number = () => Object.values(actors).reduce((sum, names) => sum + names.size, 0), before = number();
    for (let i = first; i < this.length; i++) {
      const kind = this.text("kind", i), actor = this.text("actor", i);
      if (kind === "group.state" || kind === "group.epoch") actors.group.add(this.text("group", i));
      if (!actor) continue;
      if (kind === "sac.consumer") actors.consumer.add(actor);
      if (NODE_KINDS.has(kind)) actors.node.add(actor);
      else if (MEMBER_KINDS.has(kind)) actors.member.add(actor);
      else if (THREAD_KINDS.has(kind)) actors.thread.add(actor);
    }
    return number() > before;
  }

  // The lanes in their order; those that exist stay.
  makeLanes() {
    const { actors } = this;
    this.lanes = [this.around];
    this.byName = new Map();
    for (const name of [...actors.group].sort(byName)) this.groupLane(name, actors.group.size > 1);
    for (const name of [...actors.node].sort(byName)) this.lane(name, "node", "Nodes");
    this.makeMembers({ ...actors, member: [...actors.member].filter((name) => !actors.node.has(name)) });
  }

  groupLane(name, several) {
    if (!this.groups.has(name)) this.groups.set(name, new Lane(name, "group", this));
    const lane = this.groups.get(name);
    lane.section = several ? "Groups" : "Group";
    lane.label = name || "group";
    this.lanes.push(lane);
  }

  // Threads under their client, consumers of a stream under the stream, all others on their own.
  // A consumer is CLIENT/STREAM; a member id may have a slash in it too. Members are in the order of their first rows.
  makeMembers({ member, consumer, thread }) {
    const consumers = [...consumer].filter((name) => name.includes("/"));
    const streams = new Set(consumers.map((name) => name.slice(name.indexOf("/") + 1)));
    const alone = member.filter((name) => !consumers.includes(name));
    for (const stream of [...streams].sort(byName)) {
      for (const name of consumers.filter((each) => each.endsWith("/" + stream)).sort(byName)) {
        const lane = this.lane(name, "consumer", `Stream ${stream}`);
        lane.label = name.slice(0, -stream.length - 1);
      }
    }
    const threads = [...thread].sort(byName);
    for (const name of alone) {
      this.lane(name, streams.size ? "client" : "member", streams.size ? "Clients" : thread.size ? "Clients and threads" : "Members");
      for (const each of threads.filter((one) => one.startsWith(name + "-"))) {
        if (this.byName.has(each)) continue;
        const lane = this.lane(each, "thread", "Clients and threads");
        lane.label = each.slice(name.length + 1);
        lane.parent = name;
      }
    }
    for (const name of threads) if (!this.byName.has(name)) this.lane(name, "thread", "Clients and threads");
    const parents = new Map([...this.byName]);
    for (const lane of this.lanes) lane.children = [];
    let number = 0;
    for (const lane of this.lanes) {
      const parent = parents.get(lane.kind === "consumer" ? lane.label : lane.parent);
      if (parent && parent !== lane) parent.children.push(lane);
      if (lane.kind === "member" || lane.kind === "client") lane.number = number++;
    }
    for (const lane of this.lanes) if (lane.kind === "consumer") lane.number = parents.get(lane.label)?.number ?? 0;
  }

  // The owners of each partition: of a stream at the top of its section, else in a section of their own.
  ownerLanes() {
    const made = [...this.owners.lanes.values()].sort((a, b) => byName(a.name, b.name)), sections = new Map();
    this.owners.grown = false;
    for (const lane of this.lanes) if (lane.kind === "consumer") sections.set(lane.section.slice(7), lane.section);
    for (const [number, lane] of made.entries()) {
      const own = sections.get(lane.name) ?? sections.get(lane.name.replace(/-0$/, ""));
      lane.number = number;
      lane.section = own ?? "Partitions";
      if (own) [lane.label, lane.first] = ["active", true];
    }
    return made;
  }

  // The number of partitions without an owner over time, of all topics that any member owned.
  ownerless() {
    const lane = this.owners.none, streams = [...this.owners.lanes.values()].some((each) => each.first);
    lane.section = "Group";
    lane.label = streams ? "no active" : "no owner";
    lane.noun = streams ? "streams without an active consumer" : "partitions without an owner";
    return this.owners.lanes.size ? [lane] : [];
  }

  lane(name, kind, section) {
    if (!this.made.has(name)) this.made.set(name, new Lane(name, kind, this));
    const lane = Object.assign(this.made.get(name), { kind, section, label: this.nameOf(name) });
    this.lanes.push(lane);
    this.byName.set(name, lane);
    return lane;
  }

  laneOf(kind, i) {
    if (kind.startsWith("group.")) return this.groups.get(this.text("group", i)) ?? this.around;
    return this.byName.get(this.text("actor", i)) ?? this.around;
  }

  take(i) {
    const kind = this.text("kind", i), lane = this.laneOf(kind, i);
    this.kinds.set(kind, (this.kinds.get(kind) ?? 0) + 1);
    lane.rows.push(i);
    lane.times.push(this.t[i]);
    TAKEN[kind]?.(this, lane, i, this.t[i]);
    const error = this.text("error", i);
    if ((kind === "heartbeat" || kind === "commit") && error && !ORDINARY.has(error)) this.mark(lane, i, "refused");
    else if (kind === "callback.end" && error) this.mark(lane, i, "refused");
  }

  mark(lane, i, sort) {
    lane.marks.push({ t: this.t[i], i, sort });
    this.seen.marks.add(sort);
  }
}

// The newest counts of a lane that tell how many partitions a member has.
const COUNTS_SEEN = 50;

// Operations on a group are not faults.
const PLANNED = { restart: "restart" };
for (const step of ["start", "stop", "subscribe", "create-topic", "grow-topic", "delete-topic", "operate", "thread-change", "client-close"]) PLANNED[step] = "step";

// Calls of a test that wait for a request: they last until it has come.
const RULES = new Set(["lose_next_response", "fail_next", "delay", "add_fault"]);

// Heartbeats that a coordinator answers to members only.
const JOINS = new Set(["join", "full"]);

// The effect of each kind of event on its lane.
const TAKEN = {
  heartbeat(run, lane, i, t) {
    lane.beats.push(t);
    if (!run.text("error", i) && JOINS.has(run.text("detail", i).split(" ")[0])) lane.fenced = false;
    const group = run.groups.get(run.text("group", i));
    if (group?.rebalance) group.rebalance.heartbeats++;
    const epoch = run.columns.member_epoch[i];
    if (epoch > 0 && !run.columns.error[i] && lane.epochs[lane.epochs.length - 1]?.epoch !== epoch) lane.epochs.push({ t, i, epoch });
  },
  "member.state"(run, lane, i, t) {
    const to = run.text("to", i), from = run.text("from", i);
    lane.enter(lane.states, to, t);
    if (lane.kind !== "consumer") return;
    if (to === "ACTIVE") for (const p of run.partitions(i)) lane.own(p, t);
    else if (from === "STEPPING_DOWN" || from === "ACTIVE" && to !== "STEPPING_DOWN") lane.releaseAll(t);
  },
  "client.state"(run, lane, i, t) { lane.enter(lane.states, run.text("to", i), t); },
  "thread.state"(run, lane, i, t) { lane.enter(lane.states, run.text("to", i), t); },
  "thread.failed"(run, lane, i) {
    const shutdown = run.text("detail", i).startsWith("SHUTDOWN_APPLICATION");
    run.mark(lane, i, shutdown ? "shutdown" : "failed");
    if (shutdown) run.mark(run.around, i, "shutdown");
  },
  "sac.consumer"(run, lane, i, t) {
    const to = run.text("to", i);
    lane.enter(lane.views, to === "UNREGISTERED" ? "" : to, t);
  },
  "group.state"(run, lane, i, t) {
    lane.enter(lane.states, run.text("to", i), t);
    settle(run, lane, i, t);
  },
  "group.epoch"(run, lane, i, t) {
    lane.epochs.push({ t, i, epoch: run.columns.group_epoch[i] });
    if (!lane.rebalance) run.rebalances.push(lane.rebalance = { begin: t, i, end: null, group: lane.label, cause: run.text("detail", i), epochs: 0, heartbeats: 0 });
    lane.rebalance.epochs++;
    settle(run, lane, i, t);
  },
  "callback.begin"(run, lane, i, t) {
    const detail = run.text("detail", i);
    lane.beginCallback(detail, i, t);
    if (detail === "lost") for (const p of run.partitions(i)) lane.release(p, t);
  },
  "callback.end"(run, lane, i, t) {
    lane.endCallback(t);
    if (run.text("error", i)) return;
    const detail = run.text("detail", i);
    if (detail === "assigned") for (const p of run.partitions(i)) lane.own(p, t);
    else if (detail === "revoked") for (const p of run.partitions(i)) lane.release(p, t);
  },
  commit(run, lane, i, t) {
    if (run.text("error", i)) return;
    if (lane === run.around) run.mark(lane, i, "commit");
    else lane.commits.push(t);
  },
  test(run, lane, i, t) {
    const failed = run.text("to", i) === "failed";
    run.ends.push({ t, i, failed });
    run.mark(lane, i, failed ? "failure" : "end");
  },
  topic(run, lane, i, t) {
    const name = run.text("actor", i), [what, partitions] = run.text("detail", i).split(" ");
    run.mark(lane, i, "topic");
    if (what === "deleted") for (const each of run.lanes) each.releaseTopic(name, t);
    run.owners.topic(name, what === "deleted" ? 0 : Number(partitions), t);
  },
  assignment(run, lane, i, t) { lane.enter(lane.views, run.text("to", i), t); },
  host(run, lane, i, t) { lane.host(run.text("detail", i).split(" ")[0], t); },
  coordinator(run, lane, i, t) { lane.node(run.text("detail", i).split(" ")[0], t); },
  node(run, lane, i, t) { lane.node(run.text("detail", i).split(" ")[0], t); },
  "member.removed"(run, lane, i, t) {
    run.mark(lane, i, run.text("detail", i) === "left" ? "left" : "removed");
    lane.removed(t);
  },
  violation(run, lane, i) {
    run.violations.push(i);
    run.mark(lane, i, "violation");
  },
  // Faults that last are drawn from their begin to their end.
  fault(run, lane, i, t) {
    const actor = run.text("actor", i), begun = run.open.get(actor) ?? [];
    run.open.set(actor, begun);
    if (run.text("to", i) === "met") return run.mark(lane, i, "met");
    if (run.text("to", i) === "end") {
      if (begun.length) begun.shift().until = t;
      return;
    }
    // A call that waits for nothing has no length.
    const fault = { from: t, i, until: RULES.has(actor) ? Infinity : t };
    run.faults.push(fault);
    begun.push(fault);
    run.mark(lane, i, run.world === "embedded" ? "call" : PLANNED[actor] ?? "fault");
  },
  "run.faults_end"(run, lane, i) { run.mark(lane, i, "calm"); },
  "request.lost"(run, lane, i) { run.mark(lane, i, "lost"); },
  "response.lost"(run, lane, i) { run.mark(lane, i, "lost"); },
};

function settle(run, lane, i, t) {
  const to = run.text("to", i);
  if (!lane.rebalance || !(to === "Stable" || to === "Empty" || to === "Dead")) return;
  if (to === "Stable") lane.rebalance.end = t;
  else run.rebalances.splice(run.rebalances.indexOf(lane.rebalance), 1);
  lane.rebalance = null;
}
