// Texts of an event or a lane: in the tip at the pointer, below the timeline, and in the list of events.

class Tooltip {
  constructor(box, canvas) { Object.assign(this, { box, canvas }); }

  hide() { this.box.classList.remove("on"); }

  show(lines, x, y) {
    this.box.replaceChildren(...describe(lines));
    this.box.classList.add("on");
    const size = this.box.getBoundingClientRect(), width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    const left = x + 16 + size.width > width ? x - size.width - 12 : x + 16;
    this.box.style.left = Math.max(4, Math.min(left, width - size.width - 4)) + "px";
    this.box.style.top = Math.max(0, Math.min(y + 14, height - size.height - 4)) + this.canvas.offsetTop + "px";
  }
}

function rowLines(row) {
  const lines = [["", row.kind + (row.actor ? " · " + row.actor : "")], ["time", `${showTime(row.clock, 6)}  (event ${row.seq})`]];
  if (row.from || row.to) lines.push(["state", row.from && row.to ? `${row.from} → ${row.to}` : row.to || row.from]);
  const epochs = [["member", row.memberEpoch], ["group", row.groupEpoch]].filter(([, epoch]) => epoch !== -1);
  if (epochs.length) lines.push(["epoch", epochs.map(([whose, epoch]) => `${whose} ${epoch}`).join(", ")]);
  if (row.partitions) lines.push(["partitions", shorten(row.partitions, 300)]);
  if (row.error && row.error !== "NONE") lines.push([row.kind === "violation" ? "invariant" : "error", row.error]);
  if (row.detail) lines.push(["detail", shorten(row.detail, 500)]);
  return lines;
}

function laneLines(lane, time, run) {
  const lines = [["", lane.name === "faults" ? "faults and topics" : lane.noun ?? run.nameOf(lane.name)], ["time", showTime(run.clock(time), 3)]];
  if (run.names.has(lane.name)) lines.push(["member id", lane.name]);
  if (lane.kind === "ownerless") return [...lines, ["now", `${NUMBERS.format(lane.steps[firstAfter(lane.steps, time, "t") - 1]?.n ?? 0)} of ${NUMBERS.format(lane.all)}`]];
  const state = lane.stateAt(lane.states, time), view = lane.stateAt(lane.views, time), epoch = lane.epochAt(time);
  if (state) lines.push(["state", state]);
  if (view) lines.push(["coordinator", view]);
  if (epoch !== undefined) lines.push(["epoch", String(epoch)]);
  const down = lane.downs.find((span) => span.from <= time && time < span.until);
  if (down) lines.push(["host", down.sort]);
  const callback = lane.callbacks.find((span) => span.from <= time && time < span.until);
  if (callback) lines.push(["callback", callback.sort]);
  const owned = lane.ownedAt(time);
  if (lane.kind === "partition") {
    const owners = owned.map((span) => run.nameOf(span.owner.name) + (span.late ? " (removed, and does not know it yet)" : ""));
    lines.push(["owner", owners.join(", ") || "nobody"]);
  } else if (lane.kind === "member" && run.owners.lanes.size) {
    const names = owned.sort((a, b) => a.lane.number - b.lane.number).map((span) => span.partition).join(", ");
    lines.push(["owns", owned.length ? `${owned.length}: ${shorten(names, 160)}` : "nothing"]);
    if (owned.some((span) => span.late)) lines.push(["", "removed by the coordinator, and does not know it yet"]);
  }
  return lines;
}

function describe(lines) {
  return lines.map(([name, value]) => {
    const line = element("div");
    if (name) line.append(element("span", name, "name"));
    line.append(element(name ? "span" : "strong", value, "value"));
    return line;
  });
}

const LISTED = 200;

// The events of the shown time, as a table: what the canvas shows, for eyes, keys and screen readers.
class EventList {
  constructor(box, count, timeline) {
    Object.assign(this, { box, count, timeline });
    this.refresh = later(120, () => this.fill());
  }

  fill() {
    const t = this.timeline, { run } = t, rows = [];
    const first = firstAfter(run.t, t.from - 0.5), end = firstAfter(run.t, t.until);
    let shown = 0;
    const wants = t.wanted ? new Set(t.all) : null;
    const listed = (i) => t.shows(i) && (!wants || wants.has(t.laneOfRow(i)));
    const around = t.selected !== null && t.selected >= first && t.selected < end ? t.selected : null;
    const before = [];
    for (let i = first; i < end; i++) {
      if (!listed(i)) continue;
      shown++;
      if (around !== null && i < around) {
        before.push(i);
        if (before.length > LISTED / 2) before.shift();
      } else if (rows.length < LISTED) rows.push(i);
    }
    rows.unshift(...before);
    rows.length = Math.min(rows.length, LISTED);
    this.count.textContent = NUMBERS.format(shown) + (shown > rows.length ? `, ${NUMBERS.format(rows.length)} of them listed: zoom in or filter for the others` : "");
    this.box.replaceChildren(table(["time", "event", "who", "what"], rows.map((i) => this.line(i)), "No event in this time.", LISTED));
    for (const [at, line] of [...this.box.querySelectorAll("tbody tr")].entries()) {
      if (rows[at] === t.selected) {
        line.setAttribute("aria-current", "true");
        line.parentElement.closest(".scroll").scrollTop = line.offsetTop - 80;
      }
    }
  }

  line(i) {
    const row = this.timeline.run.row(i);
    const what = [row.from && row.to ? `${row.from} → ${row.to}` : row.to, row.error !== "NONE" && row.error, row.partitions, row.detail.split("\n")[0]];
    return [jump(showTime(row.clock, 3), () => this.timeline.select(i, "near")), row.kind, row.actor, shorten(what.filter(Boolean).join("  ·  "), 240)];
  }
}
