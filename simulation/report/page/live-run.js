// A run that goes on: rows of the control API, as they come.

const TEXTS = { group: "group", actor: "actor", kind: "kind", from: "state_from", to: "state_to", error: "error", detail: "detail" };
const MOST_TICKS = 20_000, CUT_FROM_US = 2e6, CUT_WIDTH_US = 1e6;

class LiveRun extends Run {
  constructor(group, names) {
    const columns = Object.fromEntries([...Object.keys(TEXTS), "t", "seq", "member_epoch", "group_epoch", "partitions"].map((name) => [name, []]));
    super({ id: group, title: group ? `Group ${group}` : "No group yet", why: "", command: "", facts: [], left_out: [], names: {}, world: "embedded", cuts: [],
      strings: [""], sets: [""], columns, lasts: true });
    Object.assign(this, { names, t: [], seq: [], gone: 0, jumpEnds: 0, last: 0 });
    this.numbers = { strings: new Map([["", 0]]), sets: new Map([["", 0]]) };
  }

  // Returns true if there are other lanes than before.
  add(rows) {
    const first = this.length, ticks = [];
    for (const row of rows) {
      const t = this.place(row);
      if (this.isTick(row)) ticks.push([row, t]);
      else this.append(row, t);
    }
    const changed = this.grow(first);
    for (const [row, t] of ticks) this.tick(this.byName.get(row.actor), row.kind === "heartbeat" ? "beats" : "commits", t);
    return changed;
  }

  // The time without the jumps of the clock, which are cut out as in a page of a test.
  place(row) {
    const before = this.last, t = this.last = row.t_us;
    if (before < this.jumpEnds && t - before >= CUT_FROM_US) {
      this.cuts.push({ from: before, until: t, at: before - this.gone, width: CUT_WIDTH_US });
      this.gone += t - before - CUT_WIDTH_US;
    }
    if (row.kind === "fault" && row.actor === "clock.advance") this.jumpEnds = Math.max(this.jumpEnds, t + Number(row.detail.split(" ")[0]) * 1e6);
    return t - this.gone;
  }

  // Steady heartbeats and accepted commits are ticks, and no events: there are many.
  isTick({ kind, actor, error, detail, member_epoch: epoch }) {
    const lane = error ? null : this.byName.get(actor);
    if (!lane || kind !== "commit" && !(kind === "heartbeat" && detail.startsWith("keepalive"))) return false;
    return kind === "commit" || epoch <= 0 || lane.epochs[lane.epochs.length - 1]?.epoch === epoch;
  }

  tick(lane, list, t) {
    const ticks = lane[list];
    let at = ticks.length;
    while (at && ticks[at - 1] > t) at--;
    ticks.splice(at, 0, t);
    if (ticks.length > MOST_TICKS) ticks.splice(0, MOST_TICKS / 2);
  }

  append(row, t) {
    const c = this.columns;
    for (const [column, name] of Object.entries(TEXTS)) c[column].push(this.number("strings", row[name]));
    c.member_epoch.push(row.member_epoch);
    c.group_epoch.push(row.group_epoch);
    c.partitions.push(this.number("sets", partitionsText(row.partitions)));
    this.t.push(t);
    this.seq.push(row.seq);
    this.length++;
  }

  number(list, text) {
    const known = this.numbers[list];
    if (!known.has(text)) known.set(text, this[list].push(text) - 1);
    return known.get(text);
  }
}

// `orders:0,1,2 returns:4`
function partitionsText(partitions) {
  const topics = Map.groupBy(partitions, ({ topic }) => topic);
  return [...topics].map(([topic, held]) => `${topic}:${held.map(({ partition }) => partition)}`).join(" ");
}

// The same in few letters: `orders:0-2,7`.
function shortPartitions(partitions) {
  return partitionsText(partitions).replace(/(?<=[:,])\d+(?:,\d+)+/g, (list) => {
    const ranges = [];
    for (const n of list.split(",").map(Number).sort((a, b) => a - b)) {
      const last = ranges[ranges.length - 1];
      if (last?.[1] === n - 1) last[1] = n;
      else ranges.push([n, n]);
    }
    return ranges.map(([a, b]) => a === b ? a : `${a}-${b}`).join();
  });
}
