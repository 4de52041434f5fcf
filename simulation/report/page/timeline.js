// The canvas: lanes over time. Work per frame is bound by the pixels drawn, not by the number of events.

const LABELS = 168, AXIS = 26, OVERVIEW = 30, GAP = 6, TALLEST = 660, ROLL_MAX = 96;

class Timeline {
  constructor(canvas, overview) {
    this.canvas = canvas;
    this.overview = overview;
    this.context = canvas.getContext("2d");
    this.small = overview.getContext("2d");
    this.onSelect = () => {};
    this.colours = readColours();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colours = readColours();
      this.draw();
    });
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
  }

  show(run) {
    this.run = run;
    this.filter("");
    this.from = 0;
    this.until = run.end * 1.002;
    this.scroll = 0;
    this.selected = null;
    this.cursor = null;
    this.focusLane = 0;
    this.resize();
  }

  filter(text) {
    const wanted = text.trim().toLowerCase();
    this.lanes = this.run.lanes.filter(
      (lane) => lane.kind !== "member" || !wanted || lane.name.toLowerCase().includes(wanted));
    const partitions = this.run.partitionNumbers.size;
    this.roll = partitions <= ROLL_MAX;
    const owned = partitions === 0 ? 0 : this.roll ? Math.min(54, Math.max(12, partitions * 2)) : 16;
    let y = 0;
    for (const lane of this.lanes) {
      lane.y = y;
      lane.ownedHeight = lane.kind === "member" ? owned : 0;
      lane.height = { world: 26, group: 34, broker: 20 }[lane.kind] ?? 29 + owned;
      y += lane.height + GAP;
    }
    this.total = y;
    this.most = 1;
    for (const lane of this.run.lanes) for (const { n } of lane.counts) this.most = Math.max(this.most, n);
    if (this.width) this.resize();
  }

  resize() {
    if (!this.run) return;
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth;
    this.height = Math.min(TALLEST, AXIS + this.total + 4);
    for (const [canvas, height] of [[this.canvas, this.height], [this.overview, OVERVIEW]]) {
      canvas.width = this.width * ratio;
      canvas.height = height * ratio;
      canvas.style.height = height + "px";
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.clampScroll();
    this.draw();
  }

  draw() {
    if (this.pending || !this.run) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  x(t) { return LABELS + (t - this.from) * this.scale; }
  time(x) { return this.from + (x - LABELS) / this.scale; }
  get scale() { return (this.width - LABELS - 8) / (this.until - this.from); }
  clampScroll() { this.scroll = Math.max(0, Math.min(this.scroll, this.total + AXIS + 4 - this.height)); }

  paint() {
    const c = this.context, colour = this.colours;
    c.clearRect(0, 0, this.width, this.height);
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.save();
    c.beginPath();
    c.rect(0, AXIS, this.width, this.height - AXIS);
    c.clip();
    for (const [number, lane] of this.lanes.entries()) {
      const y = AXIS + lane.y - this.scroll;
      if (y + lane.height < AXIS || y > this.height) continue;
      this.paintLane(c, lane, y, number);
    }
    this.paintFaults(c);
    this.paintViolations(c);
    this.paintCursor(c);
    c.restore();
    this.paintAxis(c);
    this.paintScrollbar(c);
    this.paintOverview();
    c.fillStyle = colour.line;
    c.fillRect(LABELS - 1, 0, 1, this.height);
  }

  // Calls draw(span, x, width) for visible spans of a list sorted by `from`; spans within one pixel are drawn once.
  eachSpan(list, longest, draw) {
    const step = 1 / this.scale;
    let i = Math.max(0, firstAfter(list, this.from - longest, "from") - 1);
    while (i < list.length && list[i].from < this.until) {
      const span = list[i];
      if (span.until > this.from) {
        const x = Math.max(LABELS, this.x(span.from));
        draw(span, x, Math.max(1, Math.min(this.width, this.x(span.until)) - x));
      }
      i = span.until - span.from < step ? Math.max(i + 1, firstAfter(list, span.from + step, "from") - 1) : i + 1;
    }
  }

  paintLane(c, lane, y, number) {
    const colour = this.colours;
    c.font = "12px system-ui, sans-serif";
    c.fillStyle = number % 2 ? colour.stripe : colour.panel;
    c.fillRect(0, y - GAP / 2, this.width, lane.height + GAP);
    c.save();
    c.beginPath();
    c.rect(LABELS, y - GAP / 2, this.width - LABELS, lane.height + GAP);
    c.clip();
    const band = lane.kind === "member" ? 15 : lane.height - (lane.kind === "group" ? 12 : 6);
    const top = y + 2;
    this.eachSpan(lane.states, this.run.end, (span, x, width) => {
      c.fillStyle = colour.state(span.state);
      c.fillRect(x, top, width, band);
      this.paintLabel(c, span.state, x, width, top + band / 2, colour.onState(span.state));
    });
    this.eachSpan(lane.downs, this.run.end, (span, x, width) => {
      c.fillStyle = colour.down(span.sort);
      c.fillRect(x, top, width, band);
      this.paintLabel(c, span.sort, x, width, top + band / 2, colour.text);
    });
    this.eachSpan(lane.callbacks, this.run.end, (span, x, width) => {
      c.fillStyle = colour.callback(span.sort);
      c.fillRect(x, top + band + 1, width, 3);
    });
    if (lane.kind === "world") {
      c.fillStyle = colour.faultSpan;
      this.eachSpan(this.run.faults, this.run.longestFault, (span, x, width) => c.fillRect(x, top, width, band));
    }
    if (lane.ownedHeight) this.paintOwned(c, lane, top + band + 6);
    if (lane.kind === "group") this.paintEpochs(c, top + band);
    if (lane.kind === "member") this.paintBeats(c, lane, y + lane.height - 3);
    this.paintMarks(c, lane, top + band / 2);
    c.restore();
    c.fillStyle = number === this.focusLane && document.activeElement === this.canvas ? colour.accent : colour.text;
    c.font = lane.kind === "member" || lane.kind === "broker" ? "12px system-ui, sans-serif" : "600 12px system-ui, sans-serif";
    c.fillText(fitText(c, lane.name, LABELS - 22), 12, y + 2 + band / 2);
  }

  paintLabel(c, text, x, width, y, style) {
    if (width < 46 || c.measureText(text).width > width - 8) return;
    c.fillStyle = style;
    c.fillText(text, x + 5, y + 0.5);
  }

  paintOwned(c, lane, y) {
    const height = lane.ownedHeight, total = this.run.partitionNumbers.size;
    if (this.roll) {
      const each = height / total, thick = Math.max(1, each - 0.4);
      const first = firstAfter(lane.owned, this.from - lane.longestOwned, "from");
      for (let i = Math.max(0, first - 1); i < lane.owned.length && lane.owned[i].from < this.until; i++) {
        const span = lane.owned[i];
        if (span.until <= this.from) continue;
        const x = Math.max(LABELS, this.x(span.from));
        c.fillStyle = this.colours.partition(span.number, total);
        c.fillRect(x, y + span.number * each, Math.max(1, Math.min(this.width, this.x(span.until)) - x), thick);
      }
      return;
    }
    c.fillStyle = this.colours.owned;
    const counts = lane.counts;
    let i = Math.max(0, firstAfter(counts, this.from, "t") - 1);
    while (i < counts.length && counts[i].t < this.until) {
      const x = Math.max(LABELS, this.x(counts[i].t));
      const next = firstAfter(counts, counts[i].t + 1 / this.scale, "t") - 1;
      const shown = Math.max(i, next);
      const until = shown + 1 < counts.length ? this.x(counts[shown + 1].t) : this.x(this.run.end);
      const tall = (counts[shown].n / this.most) * height;
      c.fillRect(x, y + height - tall, Math.max(1, until - x), tall);
      i = shown + 1;
    }
  }

  paintEpochs(c, y) {
    const colour = this.colours, step = 1 / this.scale;
    let clear = -Infinity;
    for (let i = firstAfter(this.run.epochs, this.from, "t"); i < this.run.epochs.length;) {
      const { t, epoch } = this.run.epochs[i];
      if (t > this.until) break;
      const x = this.x(t);
      c.fillStyle = colour.muted;
      c.fillRect(x, y, 1, 9);
      const text = String(epoch);
      if (x > clear) {
        c.font = "10px system-ui, sans-serif";
        c.fillText(text, x + 3, y + 6);
        clear = x + c.measureText(text).width + 8;
      }
      i = Math.max(i + 1, firstAfter(this.run.epochs, t + step, "t"));
    }
    c.font = "12px system-ui, sans-serif";
  }

  paintBeats(c, lane, y) {
    const step = 1 / this.scale;
    c.fillStyle = this.colours.beat;
    for (let i = firstAfter(lane.beats, this.from); i < lane.beats.length && lane.beats[i] < this.until;) {
      c.fillRect(this.x(lane.beats[i]), y, 1, 3);
      i = Math.max(i + 1, firstAfter(lane.beats, lane.beats[i] + step));
    }
  }

  paintMarks(c, lane, y) {
    const step = 2 / this.scale;
    for (let i = firstAfter(lane.marks, this.from - 8 / this.scale, "t"); i < lane.marks.length;) {
      const mark = lane.marks[i];
      if (mark.t > this.until + 8 / this.scale) break;
      paintGlyph(c, mark.sort, this.x(mark.t), y, this.colours);
      const next = firstAfter(lane.marks, mark.t + step, "t");
      i = mark.sort === "violation" ? i + 1 : Math.max(i + 1, Math.min(next, i + 50));
    }
  }

  paintFaults(c) {
    c.fillStyle = this.colours.faultLine;
    const marks = this.run.world.marks, step = 1 / this.scale;
    for (let i = firstAfter(marks, this.from, "t"); i < marks.length && marks[i].t < this.until;) {
      if (marks[i].sort === "fault" || marks[i].sort === "run.faults_end") c.fillRect(this.x(marks[i].t), AXIS, 1, this.height);
      i = Math.max(i + 1, firstAfter(marks, marks[i].t + step, "t"));
    }
  }

  paintViolations(c) {
    c.fillStyle = this.colours.bad;
    for (const i of this.run.violations) {
      const t = this.run.t[i];
      if (t >= this.from && t <= this.until) c.fillRect(this.x(t) - 0.5, AXIS, 1.5, this.height);
    }
  }

  paintCursor(c) {
    const colour = this.colours;
    if (this.selected !== null) {
      const t = this.run.t[this.selected];
      c.fillStyle = colour.accent;
      if (t >= this.from && t <= this.until) c.fillRect(this.x(t) - 1, AXIS, 2, this.height);
    }
    if (this.cursor !== null && this.cursor > LABELS) {
      c.fillStyle = colour.cursor;
      c.fillRect(this.cursor, AXIS, 1, this.height);
    }
  }

  paintAxis(c) {
    const colour = this.colours, wanted = (this.until - this.from) / Math.max(2, (this.width - LABELS) / 110);
    const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7,
      15e6, 3e7, 6e7, 12e7, 3e8, 6e8, 9e8, 18e8, 36e8, 72e8, 144e8, 288e8, 864e8];
    const step = steps.find((s) => s >= wanted) ?? wanted;
    const precise = step >= 1e6 ? 0 : Math.min(6, Math.ceil(-Math.log10(step / 1e6)));
    c.fillStyle = colour.panel;
    c.fillRect(0, 0, this.width, AXIS);
    c.font = "11px system-ui, sans-serif";
    for (let t = Math.ceil(this.from / step) * step; t <= this.until; t += step) {
      const x = this.x(t);
      c.fillStyle = colour.line;
      c.fillRect(x, AXIS - 6, 1, 6);
      c.fillStyle = colour.muted;
      const text = showTime(t, precise);
      if (x + c.measureText(text).width + 4 < this.width) c.fillText(text, x + 4, AXIS / 2);
    }
    c.fillText("virtual time", 12, AXIS / 2);
    c.fillStyle = colour.line;
    c.fillRect(0, AXIS - 1, this.width, 1);
  }

  paintScrollbar(c) {
    const inner = this.height - AXIS, whole = this.total + 4;
    if (whole <= inner) return;
    c.fillStyle = this.colours.muted;
    c.fillRect(this.width - 5, AXIS + (this.scroll / whole) * inner, 4, (inner / whole) * inner);
  }

  paintOverview() {
    const c = this.small, colour = this.colours, width = this.width - LABELS - 8;
    const x = (t) => LABELS + (t / (this.run.end * 1.002)) * width;
    c.clearRect(0, 0, this.width, OVERVIEW);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.fillStyle = colour.muted;
    c.fillText("whole run", 12, OVERVIEW / 2);
    let last = -1;
    for (const span of this.run.group.states) {
      const to = x(span.until);
      if (to < last + 0.5) continue;
      c.fillStyle = colour.state(span.state);
      c.fillRect(Math.max(x(span.from), last), 8, Math.max(1, to - x(span.from)), OVERVIEW - 14);
      last = to;
    }
    c.fillStyle = colour.bad;
    for (const i of this.run.violations) c.fillRect(x(this.run.t[i]) - 1, 2, 2.5, OVERVIEW - 4);
    c.fillStyle = colour.shade;
    c.fillRect(LABELS, 4, x(this.from) - LABELS, OVERVIEW - 6);
    c.fillRect(x(this.until), 4, LABELS + width - x(this.until), OVERVIEW - 6);
    c.strokeStyle = colour.accent;
    c.lineWidth = 1.5;
    c.strokeRect(x(this.from) + 0.5, 4.5, Math.max(3, x(this.until) - x(this.from) - 1), OVERVIEW - 7);
  }
}

function fitText(c, text, width) {
  if (c.measureText(text).width <= width) return text;
  while (text.length > 1 && c.measureText(text + "…").width > width) text = text.slice(0, -1);
  return text + "…";
}

function paintGlyph(c, sort, x, y, colour) {
  c.beginPath();
  if (sort === "violation") {
    c.fillStyle = colour.bad;
    c.moveTo(x, y - 8); c.lineTo(x + 8, y + 7); c.lineTo(x - 8, y + 7);
    c.fill();
  } else if (sort === "request.lost" || sort === "response.lost" || sort === "removed") {
    c.strokeStyle = sort === "removed" ? colour.bad : colour.warn;
    c.lineWidth = 2;
    c.moveTo(x - 4, y - 4); c.lineTo(x + 4, y + 4); c.moveTo(x + 4, y - 4); c.lineTo(x - 4, y + 4);
    c.stroke();
  } else {
    c.fillStyle = sort === "fault" ? colour.fault : sort === "refused" ? colour.warn : colour.muted;
    c.moveTo(x, y - 6); c.lineTo(x + 6, y); c.lineTo(x, y + 6); c.lineTo(x - 6, y);
    c.fill();
  }
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue("--" + name).trim();
  const states = {
    UNSUBSCRIBED: "idle", JOINING: "joining", RECONCILING: "moving", ACKNOWLEDGING: "telling", STABLE: "good",
    FENCED: "bad", STALE: "stale", FATAL: "fatal", PREPARE_LEAVING: "leaving", LEAVING: "going",
    EMPTY: "idle", ASSIGNING: "joining", DEAD: "fatal",
  };
  const name = (state) => states[state.toUpperCase().replaceAll(" ", "_")] ?? "idle";
  const cache = {};
  const all = ["text", "muted", "line", "panel", "stripe", "accent", "bad", "warn", "fault", "beat", "owned", "cursor", "shade"];
  for (const key of all) cache[key] = get(key);
  const byName = {};
  for (const key of new Set(Object.values(states))) byName[key] = get("state-" + key);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const downs = { down: get("host-down"), stopped: get("host-stopped"), frozen: get("host-frozen"), loading: get("state-moving"), active: get("state-good") };
  const callbacks = { assigned: get("callback-assigned"), revoked: get("callback-revoked"), lost: get("bad") };
  return {
    ...cache,
    faultLine: get("fault-line"),
    faultSpan: get("fault-span"),
    state: (state) => byName[name(state)],
    onState: () => get("on-state"),
    down: (sort) => downs[sort] ?? downs.down,
    callback: (sort) => callbacks[sort] ?? cache.muted,
    partition: (n, total) => `hsl(${Math.round((n / total) * 300 + 200) % 360} ${dark ? 55 : 60}% ${n % 2 ? (dark ? 62 : 48) : (dark ? 52 : 58)}%)`,
  };
}
