// Tables that change under the eyes: rows stay while their key does, so that nothing loses the focus.

const LINES_SHOWN = 50;

class LiveTable {
  // Headings of columns of numbers begin with #; an empty one is of buttons, which `buttons` makes once for a key.
  constructor(box, headings, empty, buttons = () => []) {
    Object.assign(this, { headings, buttons, empty: element("p", empty, "quiet"), lines: new Map(), all: false });
    this.scroll = table(headings, [headings.map(() => "")], "");
    this.scroll.classList.add("live-table");
    this.body = this.scroll.querySelector("tbody");
    this.body.replaceChildren();
    this.more = jump("", () => { this.all = true; this.fill(this.rows, this.current); });
    box.replaceChildren(this.scroll, this.empty, this.more);
    this.fill([]);
  }

  // Rows are [key, cells]; a cell is a text, or a function that makes it once.
  fill(rows, current) {
    Object.assign(this, { rows, current });
    const shown = this.all ? rows : rows.slice(0, LINES_SHOWN), keys = new Set(shown.map(([key]) => key));
    for (const [key, line] of this.lines) if (!keys.has(key)) this.drop(key, line);
    shown.forEach(([key, cells], at) => {
      if (!this.lines.has(key)) this.lines.set(key, this.line(key, cells));
      const line = this.lines.get(key);
      if (this.body.rows[at] !== line) this.body.insertBefore(line, this.body.rows[at] ?? null);
      cells.forEach((text, column) => {
        if (typeof text !== "function" && line.cells[column].textContent !== String(text)) line.cells[column].textContent = text;
      });
      if (current === key) line.setAttribute("aria-current", "true");
      else line.removeAttribute("aria-current");
    });
    this.scroll.hidden = !rows.length;
    this.empty.hidden = rows.length > 0;
    this.more.hidden = rows.length <= shown.length;
    this.more.textContent = `${NUMBERS.format(rows.length - shown.length)} more`;
  }

  line(key, cells) {
    const line = element("tr");
    this.headings.forEach((heading, column) => {
      const cell = line.insertCell();
      cell.className = heading.startsWith("#") ? "number" : heading ? "" : "actions";
      if (heading === "") cell.append(...this.buttons(key));
      else if (typeof cells[column] === "function") cell.append(cells[column]());
    });
    return line;
  }

  drop(key, line) {
    this.lines.delete(key);
    line.remove();
  }
}
