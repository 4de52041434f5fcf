// Everything around and across the lanes: the axis, faults and violations, the cursor, and the strip of the whole run.

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7,
  15e6, 3e7, 6e7, 12e7, 3e8, 6e8, 9e8, 18e8, 36e8, 72e8, 144e8, 288e8, 864e8];

// Marks that have a line over all lanes.
const LINED = new Set(["fault", "call", "calm", "shutdown"]);

class Frame {
  constructor(timeline) { this.t = timeline; }

  paint(c) {
    const t = this.t, { colours } = t.theme;
    c.save();
    c.beginPath();
    c.rect(t.labels, AXIS, t.width - t.labels, t.height - AXIS);
    c.clip();
    this.paintCuts(c);
    this.paintFaults(c);
    this.paintViolations(c);
    this.paintEnds(c);
    this.paintCursor(c);
    c.restore();
    this.paintAxis(c);
    this.paintScrollbar(c);
    c.fillStyle = colours.line;
    c.fillRect(t.labels - 1, 0, 1, t.height);
    if (t.items.length) c.fillRect(0, t.top - GAP / 2 - 1, t.width, 1);
    this.paintOverview();
  }

  paintFaults(c) {
    const t = this.t, { marks } = t.run.around, step = 1 / t.scale;
    const dense = firstAfter(marks, t.until, "t") - firstAfter(marks, t.from, "t") > (t.width - t.labels) / 14;
    if (dense) return;
    c.fillStyle = t.theme.faultLine;
    for (let i = firstAfter(marks, t.from, "t"); i < marks.length && marks[i].t < t.until;) {
      if (LINED.has(marks[i].sort) && t.shows(marks[i].i)) c.fillRect(t.x(marks[i].t), AXIS, 1, t.height);
      i = Math.max(i + 1, firstAfter(marks, marks[i].t + step, "t"));
    }
  }

  // Time that is cut out: the lanes have a gap there.
  paintCuts(c) {
    const t = this.t, { colours } = t.theme;
    for (const cut of t.run.cuts) {
      const from = t.x(cut.at), until = t.x(cut.at + cut.width);
      if (until < t.labels || from > t.width) continue;
      const edge = (x, up) => { for (let y = AXIS; y <= t.height + 6; y += 6) c.lineTo(x + ((y / 6) % 2 < 1 ? 2.5 : -2.5), up ? t.height + 6 - (y - AXIS) : y); };
      c.fillStyle = colours.panel;
      c.beginPath();
      edge(from + 3, false);
      edge(until - 3, true);
      c.closePath();
      c.fill();
      c.strokeStyle = colours.muted;
      c.lineWidth = 1;
      for (const x of [from + 3, until - 3]) {
        c.beginPath();
        edge(x, false);
        c.stroke();
      }
    }
  }

  // The end of the shown test, and the time of its failure.
  paintEnds(c) {
    const t = this.t, { colours } = t.theme;
    for (const { t: time, i, failed } of t.run.ends) {
      if (time < t.from || time > t.until || !t.shows(i)) continue;
      c.fillStyle = failed ? colours.bad : colours.muted;
      c.fillRect(t.x(time) - 0.75, AXIS, 1.5, t.height);
    }
  }

  paintViolations(c) {
    const t = this.t;
    c.fillStyle = t.theme.colours.bad;
    for (const i of t.run.violations) {
      const time = t.run.t[i];
      if (time >= t.from && time <= t.until && t.shows(i)) c.fillRect(t.x(time) - 0.5, AXIS, 1.5, t.height);
    }
  }

  paintCursor(c) {
    const t = this.t, { colours } = t.theme;
    if (t.selected !== null) {
      const time = t.run.t[t.selected], lane = t.laneOfRow(t.selected);
      if (time >= t.from && time <= t.until) {
        const x = t.x(time);
        c.fillStyle = colours.accent;
        c.fillRect(x - 1, AXIS, 2, t.height);
        const y = t.topOf(lane) + lane.stateY + lane.band / 2;
        if (t.pinned.includes(lane) || t.items.includes(lane) && y > t.top) {
          c.lineWidth = 2.5;
          c.strokeStyle = colours.accent;
          c.beginPath();
          c.arc(x, y, 10, 0, 7);
          c.stroke();
        }
      }
    }
    if (t.cursor !== null && t.cursor > t.labels) {
      c.fillStyle = colours.cursor;
      c.fillRect(t.cursor, AXIS, 1, t.height);
    }
  }

  paintAxis(c) {
    const t = this.t, { colours } = t.theme, wanted = (t.until - t.from) / Math.max(2, (t.width - t.labels) / 76);
    const step = STEPS.find((s) => s >= wanted) ?? wanted, digits = step >= 1e6 ? 0 : Math.min(6, Math.ceil(-Math.log10(step / 1e6)));
    c.fillStyle = colours.panel;
    c.fillRect(0, 0, t.width, AXIS);
    c.font = FONT;
    c.textBaseline = "middle";
    for (const [from, until, gone] of this.stretches()) {
      for (let time = Math.max(0, Math.ceil((from + gone) / step) * step); time - gone <= until; time += step) {
        const x = t.x(time - gone), text = showTime(time, digits);
        c.fillStyle = colours.line;
        c.fillRect(x, AXIS - 8, 1, 8);
        c.fillStyle = colours.muted;
        const left = gone && from > t.from ? t.x(from) + 16 : 0, right = until < t.until ? t.x(until) - 20 : t.width;
        if (x >= left && x + c.measureText(text).width + 4 < right) c.fillText(text, x + 4, AXIS / 2);
      }
    }
    this.paintCutTimes(c);
    c.fillText(t.labels < 120 ? "time" : "time since start", 10, AXIS / 2);
    c.fillStyle = colours.line;
    c.fillRect(0, AXIS - 1, t.width, 1);
  }

  // The shown time without the cuts: from, until, and the time that was cut out before.
  stretches() {
    const t = this.t, found = [];
    let from = 0, gone = 0;
    for (const cut of t.run.cuts) {
      found.push([from, cut.at, gone]);
      from = cut.at + cut.width;
      gone += cut.until - cut.from - cut.width;
    }
    found.push([from, t.until, gone]);
    return found.map(([a, b, more]) => [Math.max(a, t.from), Math.min(b, t.until), more]).filter(([a, b]) => a < b);
  }

  paintCutTimes(c) {
    const t = this.t;
    c.font = SMALL;
    c.fillStyle = t.theme.colours.fault;
    for (const cut of t.run.cuts) {
      const middle = t.x(cut.at + cut.width / 2), text = "+" + shortDuration(cut.until - cut.from), wide = c.measureText(text).width;
      if (middle - wide / 2 > t.labels && middle + wide / 2 < t.width) {
        c.fillStyle = t.theme.colours.panel;
        c.fillRect(middle - wide / 2 - 3, 0, wide + 6, AXIS - 1);
        c.fillStyle = t.theme.colours.fault;
        c.fillText(text, middle - wide / 2, AXIS / 2);
      }
    }
    c.font = FONT;
    c.fillStyle = t.theme.colours.muted;
  }

  paintScrollbar(c) {
    const t = this.t, inner = t.height - t.top, whole = t.total + 4;
    if (whole <= inner) return;
    const length = Math.max(24, (inner / whole) * inner);
    c.fillStyle = t.theme.colours.muted;
    c.beginPath();
    c.roundRect(t.width - 7, t.top + (t.scroll / (whole - inner)) * (inner - length), 5, length, 3);
    c.fill();
  }

  // The number of events, the state of the group, the faults, and the shown part.
  paintOverview() {
    const t = this.t, c = t.small, { colours } = t.theme, run = t.run, left = t.labels, width = t.width - left - 10;
    const x = (time) => left + (time / run.whole) * width, strip = OVERVIEW - 13;
    c.clearRect(0, 0, t.width, OVERVIEW);
    c.font = FONT;
    c.textBaseline = "middle";
    c.fillStyle = colours.muted;
    c.fillText("whole run", 10, OVERVIEW / 2);
    c.fillStyle = colours.beat;
    this.counted(width).forEach((share, at) => { if (share) c.fillRect(left + at * 2, strip - 2 - share * (strip - 8), 2, share * (strip - 8)); });
    const [group] = run.groups.values();
    let last = -1;
    for (const span of group?.states ?? []) {
      const to = x(Math.min(span.until, run.end));
      if (to < last + 0.5) continue;
      c.fillStyle = t.theme.state(span.state).colour;
      c.fillRect(Math.max(x(span.from), last), strip, Math.max(1, to - x(span.from)), 7);
      last = to;
    }
    c.fillStyle = colours.accent;
    for (const i of this.spread(t.found, width)) c.fillRect(x(run.t[i]) - 0.5, 3, 1.5, strip - 5);
    c.fillStyle = colours.bad;
    for (const i of run.violations) c.fillRect(x(run.t[i]) - 1, 2, 2.5, OVERVIEW - 4);
    for (const { t: time, failed } of run.ends) if (failed) c.fillRect(x(time) - 1, 2, 2, OVERVIEW - 4);
    for (const cut of run.cuts) {
      c.fillStyle = colours.panel;
      c.fillRect(x(cut.at), 2, x(cut.at + cut.width) - x(cut.at), OVERVIEW - 4);
    }
    const from = Math.max(left, x(t.from)), until = x(t.until);
    c.fillStyle = colours.shade;
    c.fillRect(left, 3, from - left, OVERVIEW - 6);
    c.fillRect(until, 3, left + width - until, OVERVIEW - 6);
    c.strokeStyle = colours.accent;
    c.lineWidth = 1.5;
    c.strokeRect(from + 0.5, 3.5, Math.max(3, until - from - 1), OVERVIEW - 7);
    c.fillStyle = colours.line;
    c.fillRect(left - 1, 0, 1, OVERVIEW);
  }

  // Events in each two pixels of the strip, as shares of the most.
  counted(width) {
    const { run } = this.t, size = Math.max(1, Math.ceil(width / 2));
    if (this.bins?.run !== run || this.bins.size !== size || run.whole > this.bins.whole * 1.002) {
      const counts = new Float64Array(size);
      for (let i = 0; i < run.length; i++) counts[Math.min(size - 1, Math.floor((run.t[i] / run.whole) * size))]++;
      const most = counts.reduce((a, b) => Math.max(a, b), 1);
      this.bins = { run, size, whole: run.whole, shares: Array.from(counts, (n) => Math.sqrt(n / most)) };
    }
    return this.bins.shares;
  }

  spread(rows, width) {
    const step = Math.max(1, Math.ceil(rows.length / width));
    return step === 1 ? rows : rows.filter((_, at) => at % step === 0);
  }
}
