// Choosing what to see: lanes by name, events by kind and by text.

class Filters {
  constructor(part, timeline) {
    Object.assign(this, { part, timeline });
    this.changed = () => {};
    const apply = later(80, () => this.apply());
    for (const name of ["lanes", "find"]) part(name).addEventListener("input", apply);
    part("find").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.apply();
      this.next(event.shiftKey ? -1 : 1);
    });
    part("kinds").addEventListener("change", () => this.apply());
    part("all-kinds").addEventListener("click", () => this.check(() => true));
    part("no-kinds").addEventListener("click", () => this.check(() => false));
    document.addEventListener("click", (event) => {
      const menu = part("kinds").closest("details");
      if (!menu.contains(event.target)) menu.open = false;
    });
    part("kinds").closest("details").addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.currentTarget.open = false;
    });
  }

  show(run, { lanes = "", find = "", hidden = [] } = {}) {
    this.run = run;
    this.part("lanes").value = lanes;
    this.part("find").value = find;
    this.list(hidden);
    this.apply();
  }

  list(hidden) {
    const kinds = [...this.run.kinds].sort((a, b) => b[1] - a[1]);
    this.part("kinds").replaceChildren(...kinds.map(([kind, count]) => {
      const label = element("label"), box = element("input");
      Object.assign(box, { type: "checkbox", value: kind, checked: !hidden.includes(kind) });
      label.append(box, element("span", kind), element("span", NUMBERS.format(count), "count"));
      return label;
    }));
  }

  // The run has more rows.
  grow() {
    if (this.run.kinds.size > this.boxes.length) this.list(this.state.hidden);
    this.scan();
  }

  get boxes() { return [...this.part("kinds").querySelectorAll("input")]; }

  check(wanted) {
    for (const box of this.boxes) box.checked = wanted(box.value);
    this.apply();
  }

  get state() {
    return {
      lanes: this.part("lanes").value.trim(), find: this.part("find").value.trim(),
      hidden: this.boxes.filter((box) => !box.checked).map((box) => box.value),
    };
  }

  apply() {
    const { lanes, find, hidden } = this.state, words = find.toLowerCase().split(/\s+/).filter(Boolean);
    Object.assign(this, { without: new Set(hidden), scanned: 0, count: 0, found: [], mask: hidden.length || find ? [] : null });
    this.words = words.map((word) => ({ word, strings: [], sets: [] }));
    this.scan();
    this.part("kinds").closest("details").classList.toggle("active", hidden.length > 0);
    this.timeline.filter({ hidden: this.without, mask: this.mask, found: this.found, wanted: lanes.toLowerCase() });
    this.changed();
  }

  // Look at the rows that were not looked at yet.
  scan() {
    const { run, mask, words } = this, c = run.columns, texts = ["actor", "kind", "from", "to", "error", "detail"];
    for (const each of words) {
      for (const list of ["strings", "sets"]) for (let n = each[list].length; n < run[list].length; n++) each[list].push(run[list][n].toLowerCase().includes(each.word));
    }
    for (let i = this.scanned; mask && i < run.length; i++) {
      const shown = !this.without.has(run.text("kind", i)) && words.every((each) => each.sets[c.partitions[i]] || texts.some((column) => each.strings[c[column][i]]));
      mask.push(shown ? 1 : 0);
      if (!shown) continue;
      this.count++;
      if (words.length) this.found.push(i);
    }
    this.scanned = run.length;
    this.part("matches").textContent = mask ? `${NUMBERS.format(this.count)} of ${NUMBERS.format(run.length)} events` : `${NUMBERS.format(run.length)} events`;
  }

  // The next event that matches the search; after the last one, the first.
  next(step) {
    const t = this.timeline, { found } = t;
    if (!found.length) return;
    const after = firstAfter(found, t.selected ?? -1);
    const at = step > 0 ? after : (t.selected !== null && found[after - 1] === t.selected ? after - 2 : after - 1);
    t.select(found[(at + found.length) % found.length], "near");
  }
}
