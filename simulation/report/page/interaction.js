// What hands do to the timeline: wheel, drag, keys, hover, and jumps from tables.

class Interaction {
  constructor(timeline, tooltip, detail) {
    Object.assign(this, { timeline, tooltip, detail });
    const canvas = timeline.canvas;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (event) => this.zoom(0.25, event.offsetX));
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => timeline.draw());
    const overview = timeline.overview;
    overview.addEventListener("pointerdown", (event) => {
      overview.setPointerCapture(event.pointerId);
      this.overviewTo(event);
    });
    overview.addEventListener("pointermove", (event) => { if (event.buttons) this.overviewTo(event); });
  }

  overviewTo(event) {
    const t = this.timeline, width = t.width - LABELS - 8;
    this.centre(((event.offsetX - LABELS) / width) * t.run.end * 1.002);
  }

  wheel(event) {
    const t = this.timeline;
    if (event.offsetX < LABELS) return;
    event.preventDefault();
    if (event.shiftKey) {
      t.scroll += event.deltaY || event.deltaX;
      t.clampScroll();
      t.draw();
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX);
    else this.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.004), event.offsetX);
  }

  zoom(factor, x) {
    const t = this.timeline, at = Math.max(LABELS, x ?? (LABELS + t.width) / 2), time = t.time(at);
    const length = Math.max(20, Math.min(t.run.end * 1.05, (t.until - t.from) * factor));
    const share = (time - t.from) / (t.until - t.from);
    this.view(time - share * length, length);
  }

  pan(pixels) {
    const t = this.timeline;
    this.view(t.from + pixels / t.scale, t.until - t.from);
  }

  view(from, length) {
    const t = this.timeline, edge = length * 0.02;
    t.from = Math.max(-edge, Math.min(from, t.run.end * 1.002 + edge - length));
    if (length >= t.run.end) t.from = 0;
    t.until = t.from + length;
    t.draw();
  }

  centre(time) {
    const length = this.timeline.until - this.timeline.from;
    this.view(time - length / 2, length);
  }

  fit() { this.view(0, this.timeline.run.end * 1.002); }

  show(from, until) {
    const length = Math.max(2e5, (until - from) * 1.6);
    this.view((from + until) / 2 - length / 2, length);
    this.timeline.canvas.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  down(event) {
    this.timeline.canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, y: event.offsetY, far: 0 };
  }

  move(event) {
    const t = this.timeline;
    if (this.drag) {
      const dx = event.offsetX - this.drag.x, dy = event.offsetY - this.drag.y;
      this.drag = { x: event.offsetX, y: event.offsetY, far: this.drag.far + Math.abs(dx) + Math.abs(dy) };
      t.scroll -= dy;
      t.clampScroll();
      this.pan(-dx);
      if (this.drag.far > 4) return this.tooltip.classList.remove("on");
    }
    t.cursor = event.offsetX;
    t.draw();
    this.hover(event);
  }

  up(event) {
    const clicked = this.drag && this.drag.far <= 4;
    this.drag = null;
    if (!clicked) return;
    const hit = this.hit(event.offsetX, event.offsetY);
    if (hit.lane) this.timeline.focusLane = this.timeline.lanes.indexOf(hit.lane);
    if (hit.row !== null) this.select(hit.row);
  }

  leave() {
    this.timeline.cursor = null;
    this.tooltip.classList.remove("on");
    this.timeline.draw();
  }

  hit(x, y) {
    const t = this.timeline;
    if (x < LABELS || y < AXIS) return { lane: null, row: null };
    const inside = y - AXIS + t.scroll;
    const lane = t.lanes.find((l) => inside >= l.y - GAP / 2 && inside < l.y + l.height + GAP / 2) ?? null;
    return { lane, row: lane ? this.nearest(lane, x) : null };
  }

  // The row under the pointer: the nearest within a few pixels, where a steady heartbeat gives way to anything else.
  nearest(lane, x) {
    const t = this.timeline, run = t.run, reach = 6 / t.scale, time = t.time(x);
    const rows = lane.rows;
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (run.t[rows[middle]] < time - reach) low = middle + 1;
      else high = middle;
    }
    let best = null, least = Infinity;
    for (let i = low; i < rows.length && i < low + 2000 && run.t[rows[i]] <= time + reach; i++) {
      const kind = run.text("kind", rows[i]);
      const heavy = kind === "violation" ? -1e12 : kind === "heartbeat" || kind === "records" ? reach : 0;
      const cost = Math.abs(run.t[rows[i]] - time) + heavy;
      if (cost < least) [best, least] = [rows[i], cost];
    }
    return best;
  }

  hover(event) {
    const t = this.timeline, { lane, row } = this.hit(event.offsetX, event.offsetY);
    if (!lane) return this.tooltip.classList.remove("on");
    const lines = row !== null ? rowLines(t.run.row(row)) : laneLines(lane, t.time(event.offsetX), t.run);
    this.tooltip.replaceChildren(...describe(lines));
    this.tooltip.classList.add("on");
    const box = this.tooltip.getBoundingClientRect(), frame = t.canvas.getBoundingClientRect();
    const left = event.offsetX + 16 + box.width > frame.width ? event.offsetX - box.width - 12 : event.offsetX + 16;
    this.tooltip.style.left = Math.max(0, left) + "px";
    this.tooltip.style.top = Math.min(event.offsetY + 14, frame.height - box.height - 4) + OVERVIEW + 8 + "px";
  }

  select(row, reveal) {
    const t = this.timeline;
    t.selected = row;
    if (reveal) {
      const lane = t.lanes.findIndex((l) => l.rows.includes(row));
      if (lane >= 0) {
        t.focusLane = lane;
        t.scroll = t.lanes[lane].y - (t.height - AXIS) / 2;
        t.clampScroll();
      }
      const time = t.run.t[row];
      if (time < t.from || time > t.until || reveal === "zoom") this.centreOn(time, reveal === "zoom" ? 4e6 : 0);
      if (reveal === "zoom") t.canvas.scrollIntoView({ block: "nearest", behavior: "smooth" });
    }
    this.detail.replaceChildren(...describe(rowLines(t.run.row(row))));
    t.draw();
  }

  centreOn(time, length) {
    const shown = length ? Math.min(length, this.timeline.run.end) : this.timeline.until - this.timeline.from;
    this.view(time - shown / 2, shown);
  }

  nextViolation(step) {
    const { run, selected } = this.timeline;
    if (!run.violations.length) return;
    const at = run.violations.indexOf(selected);
    const next = (at < 0 ? (step > 0 ? 0 : -1) : at + step) + run.violations.length;
    this.select(run.violations[next % run.violations.length], "zoom");
  }

  stepRow(step) {
    const t = this.timeline, lane = t.lanes[t.focusLane], rows = lane.rows;
    if (!rows.length) return;
    let at = rows.indexOf(t.selected);
    if (at < 0) at = rows.findIndex((row) => t.run.t[row] >= t.from) - (step > 0 ? 1 : 0);
    this.select(rows[Math.max(0, Math.min(rows.length - 1, at + step))], true);
  }

  key(event) {
    const t = this.timeline, actions = {
      ArrowLeft: () => this.pan(-120), ArrowRight: () => this.pan(120),
      ArrowUp: () => this.lane(-1), ArrowDown: () => this.lane(1),
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6),
      Home: () => this.fit(), 0: () => this.fit(),
      n: () => this.stepRow(1), p: () => this.stepRow(-1),
      v: () => this.nextViolation(1), V: () => this.nextViolation(-1),
      Escape: () => { t.selected = null; this.detail.replaceChildren(); t.draw(); },
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? null : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  lane(step) {
    const t = this.timeline;
    t.focusLane = Math.max(0, Math.min(t.lanes.length - 1, t.focusLane + step));
    const lane = t.lanes[t.focusLane], inner = t.height - AXIS;
    if (lane.y < t.scroll) t.scroll = lane.y;
    if (lane.y + lane.height > t.scroll + inner) t.scroll = lane.y + lane.height - inner;
    t.clampScroll();
    t.draw();
  }
}

function rowLines(row) {
  const lines = [["", row.kind + (row.actor ? " · " + row.actor : "")], ["time", `${showTime(row.t, 6)}  (event ${row.seq})`]];
  if (row.from || row.to) lines.push(["state", row.from && row.to ? `${row.from} → ${row.to}` : row.to || row.from]);
  const epochs = [["member", row.memberEpoch], ["group", row.groupEpoch]].filter(([, epoch]) => epoch !== -1);
  if (epochs.length) lines.push(["epoch", epochs.map(([whose, epoch]) => `${whose} ${epoch}`).join(", ")]);
  if (row.partitions) lines.push(["partitions", row.partitions.length > 300 ? row.partitions.slice(0, 300) + " …" : row.partitions]);
  if (row.error && row.error !== "NONE") lines.push([row.kind === "violation" ? "invariant" : "error", row.error]);
  if (row.detail) lines.push(["detail", row.detail.length > 500 ? row.detail.slice(0, 500) + " …" : row.detail]);
  return lines;
}

function laneLines(lane, time, run) {
  const lines = [["", lane.name], ["time", showTime(time, true)]];
  const state = lane.stateAt(time), owned = lane.kind === "member" ? lane.ownedAt(time) : [];
  if (state) lines.push(["state", state]);
  const down = lane.downs.find((span) => span.from <= time && time < span.until);
  if (down) lines.push(["host", down.sort]);
  if (lane.kind === "member") {
    const all = owned.sort((a, b) => run.partitionNumbers.get(a) - run.partitionNumbers.get(b)).join(", ");
    lines.push(["owns", owned.length ? `${owned.length}: ${all.length > 160 ? all.slice(0, 160) + " …" : all}` : "nothing"]);
  }
  return lines;
}

function describe(lines) {
  return lines.map(([name, value]) => {
    const line = document.createElement("div");
    if (name) line.append(element("span", name, "name"));
    line.append(element(name ? "span" : "strong", value));
    return line;
  });
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
