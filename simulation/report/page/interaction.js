// User input on the timeline: wheel, drag, pinch, keys, and pointing.

class Interaction {
  constructor(timeline, tooltip) {
    Object.assign(this, { timeline, tooltip, pointers: new Map() });
    const { canvas } = timeline;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", (event) => this.drop(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (event) => this.doubleClick(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => timeline.draw());
    this.brush(timeline.overview);
  }

  // On the strip of the whole run: a drag inside the shown part moves it, a drag elsewhere chooses another part.
  brush(overview) {
    const t = this.timeline, at = (event) => ((event.offsetX - t.labels) / (t.width - t.labels - 10)) * t.run.whole;
    let grip = null;
    const far = (time) => Math.abs(time - grip.time) > (t.run.end / t.width) * 3;
    overview.addEventListener("pointerdown", (event) => {
      overview.setPointerCapture(event.pointerId);
      const time = at(event), inside = time > t.from && time < t.until && t.until - t.from < t.run.end;
      grip = { time, from: t.from, inside };
    });
    overview.addEventListener("pointermove", (event) => {
      if (!grip || !event.buttons) return;
      const time = at(event);
      if (grip.inside) t.view(grip.from + time - grip.time, t.until - t.from);
      else if (far(time)) t.view(Math.min(time, grip.time), Math.abs(time - grip.time));
    });
    overview.addEventListener("pointerup", (event) => {
      if (!far(at(event))) t.centre(grip.time, t.until - t.from < t.run.end ? t.until - t.from : t.run.end / 8);
      grip = null;
    });
  }

  wheel(event) {
    const t = this.timeline, overLabels = event.offsetX < t.labels, scrolls = t.total + t.top + 4 > t.height;
    if (overLabels && !scrolls) return;
    event.preventDefault();
    if (overLabels || event.shiftKey) t.scrollBy(event.deltaY || event.deltaX);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) t.pan(event.deltaX);
    else t.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.004), event.offsetX);
  }

  down(event) {
    const { canvas } = this.timeline;
    canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.offsetX);
    this.drag = { x: event.offsetX, y: event.offsetY, far: 0 };
    if (this.pointers.size === 2) this.apart = this.spread();
  }

  spread() {
    const [a, b] = [...this.pointers.values()];
    return { middle: (a + b) / 2, size: Math.max(20, Math.abs(a - b)) };
  }

  move(event) {
    const t = this.timeline;
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, event.offsetX);
    if (this.pointers.size === 2) {
      const now = this.spread();
      t.pan(this.apart.middle - now.middle);
      t.zoom(this.apart.size / now.size, now.middle);
      this.apart = now;
      this.drag.far = Infinity;
      return;
    }
    if (this.drag) {
      const dx = event.offsetX - this.drag.x, dy = event.offsetY - this.drag.y;
      this.drag = { x: event.offsetX, y: event.offsetY, far: this.drag.far + Math.abs(dx) + Math.abs(dy) };
      t.canvas.classList.toggle("dragged", this.drag.far > 4);
      if (event.pointerType === "mouse") t.scrollBy(-dy);
      t.pan(-dx);
      if (this.drag.far > 4) return this.tooltip.hide();
    }
    t.cursor = event.offsetX;
    t.draw();
    this.point(event);
  }

  drop(event) {
    this.pointers.delete(event.pointerId);
    this.drag = null;
    this.timeline.canvas.classList.remove("dragged");
  }

  up(event) {
    const t = this.timeline, clicked = this.drag && this.drag.far <= 4;
    this.drop(event);
    if (!clicked) return;
    const { item, row } = this.hit(event.offsetX, event.offsetY);
    if (!item) return;
    t.focus = t.all.indexOf(item);
    if (item.kind === "heading") t.fold(item);
    else if (row !== null) t.select(row);
    else t.draw();
  }

  doubleClick(event) {
    if (event.offsetX > this.timeline.labels) this.timeline.zoom(0.25, event.offsetX);
  }

  leave() {
    this.timeline.cursor = null;
    this.tooltip.hide();
    this.timeline.draw();
  }

  hit(x, y) {
    const t = this.timeline, inside = (item) => y >= t.topOf(item) - GAP / 2 && y < t.topOf(item) + item.height + GAP / 2;
    const item = (y < t.top ? t.pinned : t.items).find(inside) ?? null;
    return { item, row: item && item.kind !== "heading" && x >= t.labels ? this.nearest(item, x) : null };
  }

  // The shown event under the pointer: the nearest within a few pixels; any other event wins over a steady heartbeat.
  nearest(lane, x) {
    const t = this.timeline, { run } = t, reach = 7 / t.scale, time = t.time(x);
    let best = null, least = Infinity;
    const first = firstAfter(lane.times, time - reach);
    for (let at = first; at < lane.rows.length && at < first + 3000 && lane.times[at] <= time + reach; at++) {
      const row = lane.rows[at];
      if (!t.shows(row)) continue;
      const kind = run.text("kind", row);
      const weight = kind === "violation" ? -1e12 : kind === "heartbeat" || kind === "records" || kind === "commit" ? reach : 0;
      const cost = Math.abs(lane.times[at] - time) + weight;
      if (cost < least) [best, least] = [row, cost];
    }
    return best;
  }

  point(event) {
    const t = this.timeline, { item, row } = this.hit(event.offsetX, event.offsetY);
    t.canvas.style.cursor = item?.kind === "heading" ? "pointer" : "";
    if (!item || item.kind === "heading") return this.tooltip.hide();
    const [name, time, ...rest] = laneLines(item, t.time(event.offsetX), t.run);
    const lane = rest.length ? [["", name[1] + " at that time"], ...rest] : [];
    this.tooltip.show(row === null ? [name, time, ...rest] : [...rowLines(t.run.row(row)), ...lane], event.offsetX, event.offsetY);
  }

  // -- keys -----------------------------------------------------------------------------------------------

  key(event) {
    const t = this.timeline, actions = {
      ArrowLeft: () => t.pan(-120), ArrowRight: () => t.pan(120),
      ArrowUp: () => this.walk(-1), ArrowDown: () => this.walk(1), PageUp: () => this.walk(-10), PageDown: () => this.walk(10),
      "+": () => t.zoom(0.6), "=": () => t.zoom(0.6), "-": () => t.zoom(1 / 0.6),
      Home: () => t.view(0, t.until - t.from), End: () => t.view(t.run.end, t.until - t.from), 0: () => t.fit(),
      n: () => this.step(1), p: () => this.step(-1), v: () => this.violation(1), V: () => this.violation(-1),
      Enter: () => this.enter(), Escape: () => t.select(null),
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? null : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  walk(step) {
    const t = this.timeline, { all } = t;
    t.focus = Math.max(0, Math.min(all.length - 1, t.focus + step));
    t.reveal(all[t.focus]);
    t.draw();
  }

  enter() {
    const t = this.timeline, item = t.all[t.focus];
    if (item.kind === "heading") t.fold(item);
    else this.step(1);
  }

  // The next shown event of the lane that has the focus.
  step(step) {
    const t = this.timeline, lane = t.all[t.focus], { rows, times } = lane;
    let at = rows.indexOf(t.selected);
    if (at < 0) at = firstAfter(times ?? [], t.from - 1) - (step > 0 ? 1 : 0);
    for (at += step; at >= 0 && at < rows.length; at += step) if (t.shows(rows[at])) return t.select(rows[at], "near");
  }

  violation(step) {
    const t = this.timeline, { run } = t;
    if (!run.violations.length) return;
    const at = run.violations.indexOf(t.selected);
    const next = (at < 0 ? (step > 0 ? 0 : -1) : at + step) + run.violations.length;
    t.select(run.violations[next % run.violations.length], "zoom");
  }
}
