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
    this.length = packed.columns.t.length;
    this.t = new Float64Array(this.length);
    this.seq = new Float64Array(this.length);
    let t = 0, seq = 0;
    for (let i = 0; i < this.length; i++) {
      this.t[i] = t += packed.columns.t[i];
      this.seq[i] = seq += packed.columns.seq[i];
    }
    this.cuts = cutOut(this.t, packed.cuts);
    this.end = Math.max(1, this.length ? this.t[this.length - 1] : 1);
    this.parsed = new Map();
    this.violations = [];
    this.rebalances = [];
    this.faults = [];
    this.ends = [];
    this.open = new Map();
    this.kinds = new Map();
    this.build();
  }

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

  build() {
    this.makeLanes();
    for (let i = 0; i < this.length; i++) this.take(i);
    for (const lane of this.lanes) lane.close(this.end);
    for (const group of this.groups.values()) {
      if (group.rebalance) this.rebalances.push({ ...group.rebalance, end: null });
    }
    this.rebalances.sort((a, b) => a.begin - b.begin);
    this.faults.sort((a, b) => a.from - b.from);
    for (const begun of this.open.values()) {
      for (const each of begun) if (RULES.has(this.text("actor", each.i))) this.faults.push({ ...each, until: this.end });
    }
    this.longestFault = longest(this.faults);
    const owners = this.ownerLanes();
    this.lanes.push(...owners);
    this.addOwnerless(owners);
    for (const lane of this.lanes) lane.times = Float64Array.from(lane.rows, (i) => this.t[i]);
    // The number of partitions that fill a bar: without it, a member that has all at the start would leave all others flat.
    const counts = this.lanes.flatMap((lane) => lane.counts.map(({ n }) => n)).sort((a, b) => a - b);
    this.most = Math.max(1, 2 * (counts[Math.floor(counts.length / 2)] ?? 0));
  }

  makeLanes() {
    this.lanes = [];
    this.byName = new Map();
    this.groups = new Map();
    const found = { node: new Set(), member: new Set(), consumer: new Set(), thread: new Set(), group: new Set() };
    for (let i = 0; i < this.length; i++) {
      const kind = this.text("kind", i), actor = this.text("actor", i);
      if (kind === "group.state" || kind === "group.epoch") found.group.add(this.text("group", i));
      if (!actor) continue;
      if (kind === "sac.consumer") found.consumer.add(actor);
      if (NODE_KINDS.has(kind)) found.node.add(actor);
      else if (MEMBER_KINDS.has(kind)) found.member.add(actor);
      else if (THREAD_KINDS.has(kind)) found.thread.add(actor);
    }
    this.around = this.lane("faults", "world", "Faults and topics");
    for (const name of [...found.group].sort(byName)) this.groupLane(name, found.group.size > 1);
    for (const name of [...found.node].sort(byName)) this.lane(name, "node", "Nodes");
    for (const name of found.node) found.member.delete(name);
    this.makeMembers(found);
  }

  groupLane(name, several) {
    const lane = new Lane(name, "group");
    lane.section = several ? "Groups" : "Group";
    lane.label = name || "group";
    this.lanes.push(lane);
    this.groups.set(name, lane);
  }

  // Threads under their client, consumers of a stream under the stream, all others on their own.
  // A consumer is CLIENT/STREAM; a member id may have a slash in it too. Members are in the order of their first rows.
  makeMembers({ member, consumer, thread }) {
    const consumers = [...consumer].filter((name) => name.includes("/"));
    const streams = new Set(consumers.map((name) => name.slice(name.indexOf("/") + 1)));
    const alone = [...member].filter((name) => !consumers.includes(name));
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
    const made = partitionLanes(this.lanes), sections = new Map();
    for (const lane of this.lanes) if (lane.kind === "consumer") sections.set(lane.section.slice(7), lane.section);
    this.partitionNumbers = new Map(made.map((lane, number) => [lane.name, number]));
    for (const lane of this.lanes) for (const span of lane.owned) span.number = this.partitionNumbers.get(span.partition);
    for (const lane of made) {
      const own = sections.get(lane.name) ?? sections.get(lane.name.replace(/-0$/, ""));
      lane.section = own ?? "Partitions";
      if (own) [lane.label, lane.first] = ["active", true];
    }
    return made;
  }

  // The number of partitions without an owner over time, of all topics that any member owned.
  addOwnerless(owners) {
    if (!owners.length) return;
    const lane = new Lane("ownerless", "ownerless"), streams = owners.some((each) => each.first);
    lane.section = "Group";
    lane.label = streams ? "no active" : "no owner";
    lane.noun = streams ? "streams without an active consumer" : "partitions without an owner";
    [lane.steps, lane.most, lane.all] = ownerless(owners, this.topicChanges(), this.end);
    this.lanes.push(lane);
  }

  topicChanges() {
    const changes = [];
    for (const i of this.around.rows) {
      if (this.text("kind", i) !== "topic") continue;
      const [what, count] = this.text("detail", i).split(" ");
      changes.push({ t: this.t[i], topic: this.text("actor", i), count: what === "deleted" ? 0 : Number(count) });
    }
    return changes;
  }

  lane(name, kind, section) {
    const lane = new Lane(name, kind);
    lane.section = section;
    lane.label = this.nameOf(name);
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
    TAKEN[kind]?.(this, lane, i, this.t[i]);
    const error = this.text("error", i);
    if ((kind === "heartbeat" || kind === "commit") && error && !ORDINARY.has(error)) this.mark(lane, i, "refused");
    else if (kind === "callback.end" && error) this.mark(lane, i, "refused");
  }

  mark(lane, i, sort) { lane.marks.push({ t: this.t[i], i, sort }); }
}

// Operations on a group are not faults.
const PLANNED = { restart: "restart" };
for (const step of ["start", "stop", "subscribe", "create-topic", "grow-topic", "delete-topic", "operate", "thread-change", "client-close"]) PLANNED[step] = "step";

// Calls of a test that wait for a request: they last until it has come.
const RULES = new Set(["lose_next_response", "fail_next", "delay"]);

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
    lane.rebalance ??= { begin: t, i, group: lane.label, cause: run.text("detail", i), epochs: 0, heartbeats: 0 };
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
    run.mark(lane, i, "topic");
    if (!run.text("detail", i).startsWith("deleted")) return;
    for (const each of run.lanes) each.releaseTopic(run.text("actor", i), t);
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
      if (begun.length) run.faults.push({ ...begun.shift(), until: t });
      return;
    }
    begun.push({ from: t, i });
    run.mark(lane, i, run.world === "embedded" ? "call" : PLANNED[actor] ?? "fault");
  },
  "run.faults_end"(run, lane, i) { run.mark(lane, i, "calm"); },
  "request.lost"(run, lane, i) { run.mark(lane, i, "lost"); },
  "response.lost"(run, lane, i) { run.mark(lane, i, "lost"); },
};

function settle(run, lane, i, t) {
  const to = run.text("to", i);
  if (!lane.rebalance || !(to === "Stable" || to === "Empty" || to === "Dead")) return;
  if (to === "Stable") run.rebalances.push({ ...lane.rebalance, end: t });
  lane.rebalance = null;
}
