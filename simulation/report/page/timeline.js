// The state of the timeline: lanes in their order, a range of time, one selected event. `painter.js` paints it.

const AXIS = 28, OVERVIEW = 46, GAP = 5, HEADING = 25, FOLDED = 42, ROLL_MAX = 96, FOLDED_FROM = { partition: 49, member: 25, thread: 49 }, SHORTEST_US = 20;

// Lanes that stay at the top.
const PINNED = new Set(["world", "group", "ownerless"]);

class Timeline {
  constructor(canvas, overview, theme) {
    Object.assign(this, { canvas, overview, theme });
    this.context = canvas.getContext("2d");
    this.small = overview.getContext("2d");
    this.widths = new Map();
    this.viewed = () => {};
    this.selectedRow = () => {};
    this.painter = new Painter(this);
    theme.listeners.push(() => this.draw());
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
  }

  show(run) {
    this.run = run;
    this.folded = new Set();
    this.large = new Set();
    this.hidden = new Set();
    this.mask = null;
    this.found = [];
    this.wanted = "";
    this.from = 0;
    this.until = run.whole;
    this.scroll = 0;
    this.selected = null;
    this.cursor = null;
    this.focus = 0;
    this.layout();
  }

  // The position of each lane and heading. Lanes of faults and groups stay at the top, all others scroll.
  layout() {
    this.foldLarge();
    const run = this.run, shown = run.lanes.filter((lane) => this.wants(lane));
    this.has = this.parts();
    this.roll = run.owners.lanes.size <= ROLL_MAX;
    this.pinned = shown.filter((lane) => PINNED.has(lane.kind));
    let y = AXIS;
    for (const lane of this.pinned) y = this.place(lane, y);
    this.top = y;
    y = 0;
    this.items = [];
    for (const [section, lanes] of Map.groupBy(shown.filter((lane) => !PINNED.has(lane.kind)), (lane) => lane.section)) {
      const folded = this.folded.has(section) && !this.wanted, named = lanes.filter((lane) => !lane.first);
      const heading = { kind: "heading", section, folded, count: named.length, lanes: named, y, height: (folded ? FOLDED : HEADING) - GAP, rows: [] };
      this.items.push(heading);
      y += heading.height + GAP;
      if (folded) continue;
      for (const lane of lanes.sort((a, b) => (b.first ?? 0) - (a.first ?? 0))) {
        this.items.push(lane);
        y = this.place(lane, y);
      }
    }
    this.total = y;
    this.focus = Math.max(0, Math.min(this.focus, this.all.length - 1));
    this.resize();
  }

  // The parts that lanes of members have.
  parts() {
    const has = (list) => this.run.lanes.some((lane) => lane.kind === "member" && lane[list].length);
    return { callbacks: has("callbacks"), views: has("views"), beats: has("beats"), owned: has("owned"), commits: has("commits") };
  }

  // The run has more rows, and other lanes if they `changed`.
  grow(changed) {
    const parts = this.parts();
    if (changed || Object.keys(parts).some((name) => parts[name] !== this.has[name])) this.layout();
    this.draw();
  }

  // A section that has become large is folded, once.
  foldLarge() {
    for (const [section, lanes] of Map.groupBy(this.run.lanes.filter((lane) => !lane.first), (lane) => lane.section)) {
      if (lanes.length < (FOLDED_FROM[lanes[0].kind] ?? Infinity) || this.large.has(section)) continue;
      this.large.add(section);
      this.folded.add(section);
    }
  }

  get all() { return [...this.pinned, ...this.items]; }

  wants(lane) {
    if (PINNED.has(lane.kind) || !this.wanted) return true;
    const text = `${lane.name} ${lane.label} ${lane.section}`.toLowerCase();
    return this.wanted.split(/\s+/).some((word) => text.includes(word));
  }

  place(lane, y) {
    const partitions = this.run.owners.lanes.size;
    let at = 3;
    lane.y = y;
    lane.band = { world: 17, group: 17, node: 15, thread: 15, client: 13, partition: 15, ownerless: 22 }[lane.kind] ?? 17;
    lane.stateY = at;
    at += lane.band;
    lane.callbackY = lane.viewY = lane.rollY = lane.beatY = null;
    if (lane.kind === "member" && this.has.callbacks || lane.kind === "consumer") [lane.callbackY, at] = [at + 1, at + 5];
    if (lane.kind === "member" && this.has.views || lane.kind === "consumer") [lane.viewY, at] = [at + 1, at + 7];
    if (lane.kind === "member" && this.has.owned) {
      lane.rollHeight = this.roll ? Math.min(28, Math.max(8, partitions * 1.5)) : 16;
      [lane.rollY, at] = [at + 2, at + 2 + lane.rollHeight];
    }
    if (lane.kind === "group" || lane.kind === "member" && this.has.beats) [lane.beatY, at] = [at + 1, at + (lane.kind === "member" && this.has.commits ? 20 : 15)];
    lane.height = at + 2;
    return y + lane.height + GAP;
  }

  resize() {
    if (!this.run) return;
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth;
    this.labels = this.width < 640 ? 104 : this.width < 1000 ? 148 : 184;
    const tallest = Math.max(this.top + 200, Math.min(900, window.innerHeight * 0.74));
    this.height = Math.min(tallest, this.top + this.total + 4);
    for (const [canvas, height] of [[this.canvas, this.height], [this.overview, OVERVIEW]]) {
      const [wide, tall] = [Math.round(this.width * ratio), Math.round(height * ratio)];
      if (canvas.width === wide && canvas.height === tall) continue;
      [canvas.width, canvas.height, canvas.style.height] = [wide, tall, height + "px"];
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
      this.painter.paint();
      document.documentElement.dataset.drawn ??= Math.round(performance.now());
    });
  }

  get scale() { return (this.width - this.labels - 10) / (this.until - this.from); }
  x(t) { return this.labels + (t - this.from) * this.scale; }
  end({ until }) { return Math.min(this.width, this.x(Math.min(until, this.run.end))); }
  time(x) { return this.from + (x - this.labels) / this.scale; }
  topOf(item) { return this.pinned.includes(item) ? item.y : this.top + item.y - this.scroll; }

  // -- the range of time ----------------------------------------------------------------------------------

  view(from, length) {
    const { whole } = this.run;
    length = Math.max(SHORTEST_US, Math.min(whole, length));
    this.from = Math.max(0, Math.min(from, whole - length));
    this.until = this.from + length;
    this.draw();
    this.viewed();
  }

  fit() { this.view(0, Infinity); }

  pan(pixels) { this.view(this.from + pixels / this.scale, this.until - this.from); }

  zoom(factor, x) {
    const time = this.follows ? this.until : this.time(Math.max(this.labels, x ?? (this.labels + this.width) / 2));
    const length = Math.max(SHORTEST_US, Math.min(this.run.whole, (this.until - this.from) * factor));
    this.view(time - ((time - this.from) / (this.until - this.from)) * length, length);
  }

  centre(time, length = this.until - this.from) { this.view(time - length / 2, length); }

  scrollBy(pixels) {
    this.scroll += pixels;
    this.clampScroll();
    this.draw();
  }

  clampScroll() { this.scroll = Math.max(0, Math.min(this.scroll, this.total + this.top + 4 - this.height)); }

  reveal(item) {
    if (this.pinned.includes(item)) return;
    const inner = this.height - this.top;
    if (item.y < this.scroll) this.scroll = item.y - HEADING;
    if (item.y + item.height > this.scroll + inner) this.scroll = item.y + item.height - inner + 4;
    this.clampScroll();
  }

  fold(heading) {
    if (!this.folded.delete(heading.section)) this.folded.add(heading.section);
    this.layout();
  }

  // -- events -------------------------------------------------------------------------------------------

  // The shown rows (null: all), those that match the search, and the shown lanes.
  filter({ hidden, mask, found, wanted }) {
    Object.assign(this, { hidden, mask, found, wanted });
    this.layout();
  }

  shows(i) { return !this.mask || this.mask[i] === 1; }

  laneOfRow(i) { return this.run.laneOf(this.run.text("kind", i), i); }

  // Select an event; "near" moves the view if it must, "zoom" zooms in.
  select(i, how) {
    this.selected = i;
    if (i !== null && how) {
      const lane = this.laneOfRow(i), time = this.run.t[i];
      if (this.folded.has(lane.section)) this.fold(lane);
      const at = this.all.indexOf(lane);
      if (at >= 0) {
        this.focus = at;
        this.reveal(lane);
      }
      if (how === "zoom") this.centre(time, Math.min(this.until - this.from, 6e6));
      else if (time < this.from || time > this.until) this.centre(time);
    }
    this.draw();
    this.selectedRow(i);
  }
}
