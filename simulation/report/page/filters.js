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
    const kinds = [...run.kinds].sort((a, b) => b[1] - a[1]);
    this.part("kinds").replaceChildren(...kinds.map(([kind, count]) => {
      const label = element("label"), box = element("input");
      Object.assign(box, { type: "checkbox", value: kind, checked: !hidden.includes(kind) });
      label.append(box, element("span", kind), element("span", NUMBERS.format(count), "count"));
      return label;
    }));
    this.apply();
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
    const { run } = this, { lanes, find, hidden } = this.state, mask = hidden.length || find ? new Uint8Array(run.length) : null;
    const without = new Set(hidden), words = find.toLowerCase().split(/\s+/).filter(Boolean), found = [];
    let count = run.length;
    if (mask) {
      const kinds = run.strings.map((text) => !without.has(text)), has = (texts) => words.map((word) => texts.map((text) => text.toLowerCase().includes(word)));
      const inTexts = has(run.strings), inSets = has(run.sets), c = run.columns, texts = ["actor", "kind", "from", "to", "error", "detail"];
      count = 0;
      for (let i = 0; i < run.length; i++) {
        if (!kinds[c.kind[i]]) continue;
        if (!words.every((_, w) => inSets[w][c.partitions[i]] || texts.some((column) => inTexts[w][c[column][i]]))) continue;
        mask[i] = 1;
        count++;
        if (words.length) found.push(i);
      }
    }
    this.part("matches").textContent = mask ? `${NUMBERS.format(count)} of ${NUMBERS.format(run.length)} events` : `${NUMBERS.format(count)} events`;
    this.part("kinds").closest("details").classList.toggle("active", hidden.length > 0);
    this.timeline.filter({ hidden: without, mask, found, wanted: lanes.toLowerCase() });
    this.changed();
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
