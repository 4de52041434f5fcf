// The heat map: one measure over two parameters of the campaign's grid. A table, so that it is read out and walked by keys.

class HeatMap {
  constructor(section, grid, theme) {
    Object.assign(this, { grid, theme });
    this.part = (name) => section.querySelector(`[data-part="${name}"]`);
    const names = Object.keys(grid.axes);
    this.fill("x", names.map((name) => [name, name]), names[names.length - 1]);
    this.fill("y", names.map((name) => [name, name]), names[names.length - 2]);
    const seen = grid.measures.filter(({ key }) => grid.cells.some((cell) => cell.values[key] !== null));
    this.fill("measure", seen.map(({ key, title }) => [key, title]), seen[0].key);
    for (const name of ["x", "y", "measure"]) {
      const select = this.part(name);
      let before = select.value;
      select.addEventListener("change", () => {
        const other = this.part(name === "x" ? "y" : "x");
        if (name !== "measure" && other.value === select.value) other.value = before;
        before = select.value;
        this.draw();
      });
    }
    this.part("rest").addEventListener("change", () => this.draw());
    this.fixed = {};
    theme.listeners.push(() => this.draw());
    this.draw();
  }

  fill(name, options, chosen) {
    this.part(name).replaceChildren(...options.map(([value, text]) => {
      const option = element("option", text);
      option.value = value;
      return option;
    }));
    this.part(name).value = chosen;
  }

  // Parameters that are on neither axis have one value each, of the user's choice.
  drawRest(x, y) {
    for (const select of this.part("rest").querySelectorAll("select")) this.fixed[select.name] = select.value;
    this.part("rest").replaceChildren(...Object.entries(this.grid.axes).filter(([name]) => name !== x && name !== y).map(([name, values]) => {
      const label = element("label", name + " "), select = element("select");
      select.name = name;
      select.append(...values.map((value) => element("option", value)));
      select.value = this.fixed[name] ?? values[0];
      this.fixed[name] = select.value;
      label.append(select);
      return label;
    }));
  }

  draw() {
    const x = this.part("x").value, y = this.part("y").value, { axes } = this.grid;
    this.drawRest(x, y);
    const others = Object.keys(axes).filter((name) => name !== x && name !== y);
    const measure = this.grid.measures.find(({ key }) => key === this.part("measure").value);
    const cells = this.grid.cells.filter((cell) => others.every((name) => cell.at[name] === this.fixed[name]));
    const scale = new Scale(cells.map((cell) => cell.values[measure.key]).filter((value) => value !== null), this.theme);
    const made = element("table", undefined, "heat"), head = made.createTHead(), body = made.createTBody(), top = head.insertRow(), line = head.insertRow();
    made.createCaption().textContent = `${measure.title}, by ${y} and ${x}`;
    top.append(element("th", y));
    const across = element("th", x, "across");
    across.colSpan = axes[x].length;
    top.append(across);
    top.firstChild.rowSpan = 2;
    for (const value of axes[x]) line.append(heading(value, "col"));
    for (const down of axes[y]) {
      const row = body.insertRow();
      row.append(heading(down, "row"));
      for (const value of axes[x]) {
        const cell = cells.find((each) => each.at[x] === value && each.at[y] === down);
        row.append(this.cell(cell, measure, scale));
      }
    }
    this.part("table").replaceChildren(made);
    this.part("scale").replaceChildren(...scale.legend(measure));
  }

  cell(cell, measure, scale) {
    const made = element("td"), value = cell ? cell.values[measure.key] : null;
    if (!cell) return made;
    const button = element("button", value === null ? "–" : showMeasure(value, measure));
    button.type = "button";
    if (value !== null) Object.assign(button.style, scale.style(value));
    const count = cell.counts[measure.table];
    if (count !== null && value !== null) button.append(element("span", `of ${NUMBERS.format(count)} ${count === 1 ? measure.of.slice(0, -1) : measure.of}`, "count"));
    if (cell.values.violations) button.append(element("span", "▲", "broken"));
    const lines = this.grid.measures.filter(({ key }) => cell.values[key] !== null).map((each) => `${each.title}: ${showMeasure(cell.values[each.key], each)}`);
    button.title = [cell.label, ...lines].join("\n");
    button.addEventListener("click", () => {
      this.part("cell").replaceChildren(element("strong", cell.label), element("div", lines.join("  ·  "), "quiet"));
      document.dispatchEvent(new CustomEvent("cell", { detail: cell.label }));
    });
    made.append(button);
    return made;
  }
}

// Values to colours: by their logarithm if they differ by more than a factor of twenty; nearly equal values look alike.
class Scale {
  constructor(values, theme) {
    const above = values.filter((value) => value > 0);
    this.most = Math.max(...values, 0);
    this.least = Math.min(...values, this.most);
    this.smallest = Math.min(...above, this.most);
    this.logarithmic = this.smallest > 0 && this.most / this.smallest > 20;
    this.top = this.logarithmic ? this.most : Math.max(this.most, this.least + 0.2 * this.most);
    this.stops = Array.from({ length: PALETTE.heat }, (_, at) => theme.get("heat-" + at));
    Object.assign(this, theme.colours);
  }

  share(value) {
    if (!this.logarithmic) return (value - this.least) / (this.top - this.least || 1);
    return value <= 0 ? 0 : Math.log(value / this.smallest) / Math.log(this.most / this.smallest);
  }

  style(value) {
    const at = this.share(value) * (this.stops.length - 1), low = Math.min(Math.floor(at), this.stops.length - 2), part = at - low;
    const mixed = "#" + [1, 3, 5].map((i) => {
      const [a, b] = [this.stops[low], this.stops[low + 1]].map((colour) => parseInt(colour.slice(i, i + 2), 16));
      return Math.round(a + (b - a) * part).toString(16).padStart(2, "0");
    }).join("");
    return { background: mixed, color: lightness(mixed) > 0.195 ? this.ink : this.paper };
  }

  legend(measure) {
    if (!this.top) return [];
    const bar = element("i");
    bar.style.background = `linear-gradient(to right, ${this.stops.join(", ")})`;
    return [element("span", showMeasure(this.least, measure)), bar, element("span", showMeasure(this.top, measure)),
      element("span", this.logarithmic ? "logarithmic" : "", "quiet")];
  }
}

function heading(text, scope) {
  const made = element("th", text);
  made.scope = scope;
  return made;
}

function showMeasure(value, { unit }) {
  if (unit === "s") return showDuration(value * 1e6);
  return new Intl.NumberFormat("en", { maximumFractionDigits: value < 10 ? 2 : 0 }).format(value);
}

async function showHeatMap(theme) {
  const section = document.getElementById("heatmap");
  if (section) new HeatMap(section, JSON.parse(document.getElementById("grid").textContent), theme);
}

PARTS.push(showHeatMap);
