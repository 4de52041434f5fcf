// Paints lanes. The work of a frame is bound by the pixels drawn, not by the number of events.

const FONT = "12px system-ui, sans-serif", BOLD = "600 12px system-ui, sans-serif", SMALL = "11px system-ui, sans-serif";

class Painter {
  constructor(timeline) {
    this.t = timeline;
    this.frame = new Frame(timeline);
  }

  paint() {
    const t = this.t, c = t.context;
    c.clearRect(0, 0, t.width, t.height);
    c.textBaseline = "middle";
    this.inside(c, 0, t.top, t.width, t.height - t.top, () => {
      for (let i = Math.max(0, firstAfter(t.items, t.scroll, "y") - 1); i < t.items.length; i++) {
        const item = t.items[i], y = t.top + item.y - t.scroll;
        if (y > t.height) break;
        if (item.kind === "heading") this.paintHeading(c, item, y);
        else this.paintLane(c, item, y, i);
      }
    });
    t.pinned.forEach((lane, i) => this.paintLane(c, lane, lane.y, i));
    this.frame.paint(c);
  }

  inside(c, x, y, width, height, action) {
    c.save();
    c.beginPath();
    c.rect(x, y, width, height);
    c.clip();
    action();
    c.restore();
  }

  focused(item) { return document.activeElement === this.t.canvas && this.t.all[this.t.focus] === item; }

  paintHeading(c, item, y) {
    const t = this.t, { colours } = t.theme;
    c.fillStyle = colours.heading;
    c.fillRect(0, y - 1, t.width, item.height);
    c.fillStyle = this.focused(item) ? colours.accent : colours.muted;
    c.font = BOLD;
    const middle = y - 1 + item.height / 2;
    c.fillText(item.folded ? "▸" : "▾", 10, middle);
    c.fillText(item.section, 26, middle + 0.5);
    const width = c.measureText(item.section).width;
    c.font = FONT;
    c.fillText(NUMBERS.format(item.count), 34 + width, middle + 0.5);
    if (item.folded) this.inside(c, t.labels, y - 1, t.width - t.labels, item.height, () => this.paintTogether(c, item, y + 2, item.height - 6));
  }

  // A folded section: in each two pixels the share of its lanes in each state, or of partitions with each owner.
  paintTogether(c, item, y, height) {
    const t = this.t, end = Math.min(t.width, t.x(t.run.end)), bins = Math.max(0, Math.ceil((end - t.labels) / 2)), changes = new Map();
    const owners = item.lanes[0].kind === "partition", several = t.run.owners.numbers.size > 2 * PALETTE.owners;
    const bin = (time) => Math.max(0, Math.min(bins, Math.ceil((t.x(time) - t.labels - 1) / 2)));
    const add = (key, { from, until }) => {
      if (!changes.has(key)) changes.set(key, new Int32Array(bins + 1));
      changes.get(key)[bin(from)]++;
      changes.get(key)[bin(until)]--;
    };
    for (const lane of item.lanes) {
      if (owners) this.eachShown(lane.owned, (span) => span.late || add(several ? 0 : span.owner.number, span));
      else this.eachShown(lane.states, (span) => add(span.state, span));
      this.eachShown(lane.downs, (span) => (span.sort === "down" || span.sort === "stopped") && add("host " + span.sort, span));
    }
    const first = (state) => -(t.theme.about(state) === "good"), keys = [...changes.keys()].sort((a, b) => owners ? a - b : first(a) - first(b) || byName(a, b));
    const colours = keys.map((key) => (owners ? t.theme.owner(key) : key.startsWith("host ") ? t.theme.down(key.slice(5)) : t.theme.state(key)).colour);
    const counts = keys.map(() => 0), lists = keys.map((key) => changes.get(key));
    c.fillStyle = t.theme.colours.panel;
    c.fillRect(t.labels, y, end - t.labels, height);
    for (let from = 0, at = 0; at <= bins; at++) {
      if (at < bins && !lists.some((list) => list[at])) continue;
      let top = y + height;
      counts.forEach((count, k) => {
        if (!count || at === from) return;
        const tall = (count / item.count) * height;
        c.fillStyle = colours[k];
        c.fillRect(t.labels + from * 2, top -= tall, (at - from) * 2, tall);
      });
      lists.forEach((list, k) => { counts[k] += list[at]; });
      from = at;
    }
  }

  // Calls take(span) for the visible spans of a list without overlaps.
  eachShown(list, take) {
    const { from, until } = this.t;
    for (let i = Math.max(0, firstAfter(list, from, "from") - 1); i < list.length && list[i].from < until; i++) if (list[i].until > from) take(list[i]);
  }

  // Partitions without an owner, as a step curve; small numbers are never too low to be seen.
  paintOwnerless(c, lane, y) {
    const t = this.t, { steps, most } = lane, height = lane.band, { colours } = t.theme;
    c.font = SMALL;
    for (let i = Math.max(0, firstAfter(steps, t.from, "t") - 1); i < steps.length && steps[i].t < t.until; i++) {
      const { n, t: from } = steps[i];
      if (!n) continue;
      const x = Math.max(t.labels, t.x(from)), width = Math.min(t.width, t.x(steps[i + 1]?.t ?? t.run.end)) - x, tall = Math.max(2, Math.min(1, n / most) * height);
      if (width <= 0) continue;
      c.fillStyle = colours.warn;
      c.globalAlpha = 0.75;
      c.fillRect(x, y + height - tall, Math.max(1, width), tall);
      c.globalAlpha = 1;
      const text = NUMBERS.format(n), wide = this.measured(c, text) + 4;
      if (width < wide) continue;
      c.fillStyle = tall > 13 ? t.theme.fill("warn", "plain").ink : colours.text;
      c.fillText(text, x + 2, tall > 13 ? y + height - 6.5 : y + height - tall - 6);
    }
    c.fillStyle = colours.line;
    c.fillRect(t.labels, y + height, t.width, 1);
  }

  paintLane(c, lane, y, number) {
    const t = this.t, { colours } = t.theme, top = y + lane.stateY, left = t.labels;
    c.fillStyle = number % 2 ? colours.stripe : colours.panel;
    c.fillRect(0, y - GAP / 2, t.width, lane.height + GAP);
    this.inside(c, left, y - GAP / 2, t.width - left, lane.height + GAP, () => {
      this.paintStates(c, lane, top);
      if (lane.callbackY !== null) this.paintCallbacks(c, lane, y + lane.callbackY);
      if (lane.viewY !== null) this.paintThin(c, lane.views, y + lane.viewY);
      if (lane.rollY !== null) this.paintRoll(c, lane, y + lane.rollY);
      if (lane.beatY !== null) this.paintBeats(c, lane, y + lane.beatY);
      if (lane.kind === "world") this.paintFaultSpans(c, top, lane.band);
      if (lane.kind === "partition") this.paintOwners(c, lane, top);
      if (lane.kind === "ownerless") this.paintOwnerless(c, lane, top);
      this.paintMarks(c, lane, top + lane.band / 2);
      if (t.found.length) this.paintFound(c, lane, y);
    });
    this.paintName(c, lane, top + lane.band / 2);
  }

  paintName(c, lane, y) {
    const t = this.t, { colours } = t.theme, indent = lane.kind === "thread" ? 34 : 22;
    if (["member", "client", "consumer"].includes(lane.kind) && t.run.owners.lanes.size) {
      paintBox(c, t.theme.owner(lane.number), 8, y - 5, 8, 11);
    }
    c.fillStyle = this.focused(lane) ? colours.accent : lane.kind === "thread" ? colours.muted : colours.text;
    c.font = PINNED.has(lane.kind) || lane.kind === "member" && lane.children.length || lane.first ? BOLD : FONT;
    c.fillText(this.fitted(c, lane.label, t.labels - indent - 8), indent, y + 0.5);
  }

  // Calls draw(span, x, width) for the visible spans of a list without overlaps; those within one pixel are drawn once.
  eachSpan(list, draw) {
    const t = this.t, step = 1 / t.scale;
    let i = Math.max(0, firstAfter(list, t.from, "from") - 1);
    while (i < list.length && list[i].from < t.until) {
      const span = list[i];
      if (span.until > t.from) {
        const x = Math.max(t.labels - 1, t.x(span.from));
        draw(span, x, Math.max(1, t.end(span) - x));
      }
      i = span.until - span.from < step ? Math.max(i + 1, firstAfter(list, span.from + step, "from") - 1) : i + 1;
    }
  }

  paintStates(c, lane, top) {
    const t = this.t, kind = { group: "group.state", thread: "thread.state" }[lane.kind] ?? "member.state";
    c.font = FONT;
    if (!t.hidden.has(kind) && !(lane.kind === "member" && t.hidden.has("client.state"))) {
      this.eachSpan(lane.states, (span, x, width) => {
        const fill = t.theme.state(span.state);
        paintBox(c, fill, x, top, width, lane.band);
        this.paintWords(c, plainState(span.state), x, width, top + lane.band / 2, fill, lane.marks);
      });
    }
    if (t.hidden.has("host")) return;
    this.eachSpan(lane.downs, (span, x, width) => {
      const fill = t.theme.down(span.sort), slim = span.sort === "active" ? 4 : 0;
      paintBox(c, fill, x, top + slim, width, lane.band - 2 * slim);
      if (!slim) this.paintWords(c, span.sort, x, width, top + lane.band / 2, fill, lane.marks);
    });
  }

  // Words that fit into a box, clear of marks, on a plain background if the box has a pattern.
  paintWords(c, text, x, width, y, fill, marks = []) {
    if (width < 24) return;
    const t = this.t, wide = this.measured(c, text), end = x + width;
    for (let i = firstAfter(marks, t.time(x - 8), "t"); i < marks.length && t.x(marks[i].t) < x + wide + 12; i++) x = t.x(marks[i].t) + 6;
    if (x + wide + 8 > end) return;
    if (fill.pattern) {
      c.fillStyle = fill.colour;
      c.fillRect(x + 2, y - 7, wide + 6, 14);
    }
    c.fillStyle = fill.ink;
    c.fillText(text, x + 5, y + 0.5);
  }

  measured(c, text) {
    const key = c.font + text;
    if (!this.t.widths.has(key)) {
      if (this.t.widths.size > 20000) this.t.widths.clear();
      this.t.widths.set(key, c.measureText(text).width);
    }
    return this.t.widths.get(key);
  }

  fitted(c, text, width) {
    if (this.measured(c, text) <= width) return text;
    let kept = text;
    while (kept.length > 1 && c.measureText(kept + "…").width > width) kept = kept.slice(0, -1);
    return kept + "…";
  }

  paintCallbacks(c, lane, y) {
    if (this.t.hidden.has("callback.begin")) return;
    this.eachSpan(lane.callbacks, (span, x, width) => {
      c.fillStyle = this.t.theme.callback(span.sort);
      c.fillRect(x, y, width, 3);
    });
  }

  paintThin(c, list, y) {
    if (this.t.hidden.has("sac.consumer") || this.t.hidden.has("assignment")) return;
    this.eachSpan(list, (span, x, width) => {
      paintBox(c, this.t.theme.state(span.state), x, y, width, 5);
    });
  }

  paintFaultSpans(c, top, height) {
    const t = this.t, list = t.run.faults;
    if (t.hidden.has("fault")) return;
    c.fillStyle = t.theme.faultSpan;
    for (let i = 0; i < list.length && list[i].from < t.until; i++) {
      if (list[i].until <= Math.max(t.from, list[i].from)) continue;
      const x = Math.max(t.labels, t.x(list[i].from)), width = t.end(list[i]) - x;
      if (width > 0 && t.shows(list[i].i)) c.fillRect(x, top, Math.max(1, width), height);
    }
  }

  // The partitions of a member: each at its height if there are few, otherwise their number.
  paintRoll(c, lane, y) {
    const t = this.t, height = lane.rollHeight, total = t.run.owners.lanes.size, fill = t.theme.owner(lane.number);
    c.fillStyle = fill.colour;
    if (t.roll) {
      const each = height / total, thick = Math.max(1, each - 0.5);
      this.eachOwned(lane, (span, x, width) => {
        c.globalAlpha = span.late ? 0.35 : 1;
        c.fillRect(x, y + span.lane.number * each, width, thick);
      });
      c.globalAlpha = 1;
      return;
    }
    const counts = lane.counts;
    let i = Math.max(0, firstAfter(counts, t.from, "t") - 1);
    while (i < counts.length && counts[i].t < t.until) {
      const shown = Math.max(i, firstAfter(counts, counts[i].t + 1 / t.scale, "t") - 1);
      const x = Math.max(t.labels, t.x(counts[i].t));
      const until = shown + 1 < counts.length ? t.x(counts[shown + 1].t) : t.x(t.run.end);
      const tall = Math.min(1, counts[shown].n / t.run.most) * height;
      c.fillRect(x, y + height - tall, Math.max(1, Math.min(t.width, until) - x), tall);
      i = shown + 1;
    }
  }

  eachOwned(lane, draw) {
    const t = this.t, list = lane.owned;
    for (let i = Math.max(0, firstAfter(list, t.from - lane.longestOwned, "from") - 1); i < list.length && list[i].from < t.until; i++) {
      const span = list[i];
      if (span.until <= t.from) continue;
      const x = Math.max(t.labels - 1, t.x(span.from));
      draw(span, x, Math.max(1, t.end(span) - x));
    }
  }

  paintOwners(c, lane, top) {
    const t = this.t;
    c.font = FONT;
    this.eachOwned(lane, (span, x, width) => {
      const fill = t.theme.owner(span.owner.number);
      if (span.late) {
        c.globalAlpha = 0.35;
        paintBox(c, fill, x, top + lane.band / 2, width, lane.band / 2);
        c.globalAlpha = 1;
        return;
      }
      paintBox(c, fill, x, top, Math.max(1, width - 1), lane.band);
      this.paintWords(c, span.owner.kind === "thread" ? span.owner.name : span.owner.label, x, width, top + lane.band / 2, fill);
    });
    const bad = t.theme.fill("bad", "crossed");
    this.eachSpan(lane.shared, (span, x, width) => {
      paintBox(c, bad, x, top, Math.max(2, width), lane.band);
      this.paintWords(c, "two owners", x, width, top + lane.band / 2, bad);
    });
  }

  // Heartbeats as ticks, epochs as numbers where they change.
  paintBeats(c, lane, y) {
    const t = this.t, { colours } = t.theme, step = 1 / t.scale;
    if (!t.hidden.has("heartbeat")) {
      c.fillStyle = colours.beat;
      for (let i = firstAfter(lane.beats, t.from); i < lane.beats.length && lane.beats[i] < t.until;) {
        c.fillRect(t.x(lane.beats[i]), y + 10, 1, 4);
        i = Math.max(i + 1, firstAfter(lane.beats, lane.beats[i] + step));
      }
    }
    if (!t.hidden.has("commit")) {
      c.fillStyle = colours.accent;
      for (let i = firstAfter(lane.commits, t.from); i < lane.commits.length && lane.commits[i] < t.until;) {
        c.fillRect(t.x(lane.commits[i]), y + 15, 1.5, 4);
        i = Math.max(i + 1, firstAfter(lane.commits, lane.commits[i] + step));
      }
    }
    c.font = SMALL;
    c.fillStyle = colours.muted;
    let clear = -Infinity;
    const first = Math.max(0, firstAfter(lane.epochs, t.from, "t") - 1);
    for (let i = first; i < lane.epochs.length && lane.epochs[i].t < t.until;) {
      const x = Math.max(t.labels, t.x(lane.epochs[i].t)), text = (i === first ? "epoch " : "") + lane.epochs[i].epoch;
      if (x > clear) {
        if (lane.epochs[i].t >= t.from) c.fillRect(x, y, 1, 9);
        c.fillText(text, x + 3, y + 5);
        clear = x + this.measured(c, text) + 9;
      }
      i = Math.max(i + 1, firstAfter(lane.epochs, lane.epochs[i].t + step, "t"));
    }
  }

  paintMarks(c, lane, y) {
    const t = this.t, step = 2 / t.scale;
    for (let i = firstAfter(lane.marks, t.from - 8 / t.scale, "t"); i < lane.marks.length;) {
      const mark = lane.marks[i];
      if (mark.t > t.until + 8 / t.scale) break;
      const shown = t.shows(mark.i);
      if (shown) {
        if (lane.kind === "world") this.paintCause(c, lane.marks, i, y);
        paintGlyph(c, mark.sort, t.x(mark.t), y, t.theme.colours);
      }
      i = !shown || mark.sort === "violation" ? i + 1 : Math.max(i + 1, Math.min(firstAfter(lane.marks, mark.t + step, "t"), i + 50));
    }
  }

  // The name of a mark next to it, if the next mark leaves room for it.
  paintCause(c, marks, i, y) {
    const t = this.t, { sort, t: time, i: row } = marks[i], x = t.x(time) + 10;
    const text = sort === "violation" ? t.run.text("error", row) : `${t.run.nameOf(t.run.text("actor", row))} ${t.run.text("detail", row)}`.trim();
    const room = (i + 1 < marks.length ? t.x(marks[i + 1].t) - 8 - ({ failure: 74, end: 74 }[marks[i + 1].sort] ?? 0) : t.width) - x;
    c.font = SMALL;
    c.fillStyle = t.theme.colours[sort === "violation" ? "bad" : "text"];
    if (sort === "failure" || sort === "end") {
      const words = sort === "end" ? "test ended" : "test failed", wide = this.measured(c, words) + 10;
      c.fillStyle = t.theme.colours[sort === "end" ? "text" : "bad"];
      if (!i || t.x(marks[i - 1].t) + 8 < x - 10 - wide) c.fillText(words, x - 10 - wide, y + 0.5);
      return;
    }
    if (!text || room < 90 && this.measured(c, text) > room) return;
    c.fillText(this.fitted(c, text, room), x, y + 0.5);
  }

  // Search results, as small flags at the top of their lanes.
  paintFound(c, lane, y) {
    const t = this.t, step = 3 / t.scale;
    c.fillStyle = t.theme.colours.accent;
    let last = -Infinity;
    for (let at = firstAfter(lane.times, t.from - step); at < lane.times.length && lane.times[at] <= t.until; at++) {
      if (lane.times[at] < last + step || !t.shows(lane.rows[at])) continue;
      last = lane.times[at];
      const x = t.x(last);
      c.fillRect(x - 1, y - 1, 2, lane.stateY + lane.band + 1);
      c.fillRect(x - 3, y - 2, 6, 3);
    }
  }
}

const GLYPHS = {
  violation: "violation", failure: "the test failed", end: "the test ended", call: "call of the test", met: "a request met a call", fault: "fault begins",
  restart: "restart of a deploy", step: "planned change", commit: "commit", removed: "removed by the coordinator", left: "left", lost: "message lost", refused: "refused, or raised",
  failed: "exception in a thread", shutdown: "exception that shuts the application down", topic: "topic changes", calm: "faults are over",
};

function paintGlyph(c, sort, x, y, colour) {
  c.beginPath();
  c.lineWidth = 1.5;
  c.strokeStyle = colour.panel;
  if (sort === "violation") {
    c.fillStyle = colour.bad;
    c.moveTo(x, y - 9); c.lineTo(x + 8, y + 7); c.lineTo(x - 8, y + 7); c.closePath();
    c.stroke(); c.fill();
    c.fillStyle = colour.panel;
    c.fillRect(x - 1, y - 4, 2, 6);
    c.fillRect(x - 1, y + 3.5, 2, 2);
  } else if (sort === "lost" || sort === "removed" || sort === "failed") {
    for (const [width, style] of [[4.5, colour.panel], [2, sort === "lost" ? colour.warn : colour.bad]]) {
      c.lineWidth = width;
      c.strokeStyle = style;
      c.beginPath();
      c.moveTo(x - 4, y - 4); c.lineTo(x + 4, y + 4); c.moveTo(x + 4, y - 4); c.lineTo(x - 4, y + 4);
      c.stroke();
    }
    if (sort === "removed") c.strokeRect(x - 5.5, y - 5.5, 11, 11);
  } else if (sort === "left") {
    c.fillStyle = colour.panel;
    c.strokeStyle = colour.muted;
    c.lineWidth = 2;
    c.arc(x, y, 4, 0, 7);
    c.fill(); c.stroke();
  } else if (sort === "refused") {
    c.fillStyle = colour.warn;
    c.arc(x, y, 4.5, 0, 7);
    c.stroke(); c.fill();
  } else if (sort === "shutdown") {
    c.fillStyle = colour.bad;
    c.arc(x, y, 6.5, 0, 7);
    c.stroke(); c.fill();
    c.fillStyle = colour.panel;
    c.fillRect(x - 4, y - 1.25, 8, 2.5);
  } else if (sort === "restart") {
    c.fillStyle = colour.panel;
    c.arc(x, y, 7.5, 0, 7);
    c.fill();
    c.beginPath();
    c.lineWidth = 2;
    c.strokeStyle = c.fillStyle = colour.accent;
    c.arc(x, y, 4.5, -0.5, 4.5);
    c.stroke();
    c.beginPath();
    c.moveTo(x + 1, y - 3); c.lineTo(x + 8, y - 4); c.lineTo(x + 4.5, y + 1.5); c.closePath();
    c.fill();
  } else if (sort === "step") {
    c.fillStyle = colour.accent;
    c.rect(x - 5, y - 5, 10, 10);
    c.stroke(); c.fill();
    c.fillStyle = colour.panel;
    c.fillRect(x - 3, y - 1, 6, 2);
    c.fillRect(x - 1, y - 3, 2, 6);
  } else if (sort === "call" || sort === "met") {
    c.fillStyle = sort === "call" ? colour.fault : colour.panel;
    c.moveTo(x - 5, y - 6); c.lineTo(x + 6, y); c.lineTo(x - 5, y + 6); c.closePath();
    if (sort === "met") c.strokeStyle = colour.fault;
    c.stroke(); c.fill();
  } else if (sort === "commit") {
    c.fillStyle = colour.accent;
    c.fillRect(x - 1, y - 5, 2, 10);
  } else if (sort === "failure" || sort === "end") {
    c.fillStyle = sort === "end" ? colour.muted : colour.bad;
    c.rect(x - 5, y - 5, 10, 10);
    c.stroke(); c.fill();
    if (sort === "failure") {
      c.strokeStyle = colour.panel;
      c.beginPath();
      c.moveTo(x - 2.5, y - 2.5); c.lineTo(x + 2.5, y + 2.5); c.moveTo(x + 2.5, y - 2.5); c.lineTo(x - 2.5, y + 2.5);
      c.stroke();
    }
  } else if (sort === "topic") {
    c.fillStyle = colour.muted;
    c.rect(x - 4, y - 4, 8, 8);
    c.stroke(); c.fill();
  } else {
    c.fillStyle = sort === "calm" ? colour.ok : colour.fault;
    c.moveTo(x, y - 6.5); c.lineTo(x + 6, y); c.lineTo(x, y + 6.5); c.lineTo(x - 6, y); c.closePath();
    c.stroke(); c.fill();
  }
}
