// Times and durations in words, and the small pieces that pages are made of.

// The functions that make the parts of the page, in their order.
const PARTS = [];

const NUMBERS = new Intl.NumberFormat("en");
const byName = new Intl.Collator("en", { numeric: true }).compare;

// `0:42`, `1:02:03`; with that many digits after the point: `0:42.125`.
function showTime(us, digits = 0) {
  const s = us / 1e6, h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60, rest = s % 60;
  const seconds = digits ? rest.toFixed(digits).padStart(digits + 3, "0") : String(Math.floor(rest + 1e-9)).padStart(2, "0");
  return h ? `${h}:${String(m).padStart(2, "0")}:${seconds}` : `${m}:${seconds}`;
}

function showDuration(us) {
  if (us >= 60e6) return `${Math.floor(us / 60e6)} min ${((us % 60e6) / 1e6).toFixed(0)} s`;
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  if (us >= 1e3) return `${(us / 1e3).toFixed(1)} ms`;
  return us ? `${us.toFixed(0)} µs` : "0 s";
}

// `45 s`, `2 min`, `1 h`, `3.5 days`: as short as can be.
function shortDuration(us) {
  const [unit, size] = us < 1e6 ? ["ms", 1e3] : us < 120e6 ? ["s", 1e6] : us < 3600e6 ? ["min", 60e6] : us < 86400e6 ? ["h", 3600e6] : ["days", 86400e6];
  const count = Number((us / size).toFixed(1));
  return `${count} ${count === 1 && unit === "days" ? "day" : unit}`;
}

// `STEPPING_DOWN` as `stepping down`: states are long, lanes are short.
function plainState(state) {
  return state === state.toUpperCase() ? state.toLowerCase().replaceAll("_", " ") : state.replace(/(?<=[a-z])[A-Z]/g, (c) => " " + c).toLowerCase();
}

function shorten(text, length) { return text.length > length ? text.slice(0, length) + " …" : text; }

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const ROWS_SHOWN = 25;

// A table; headings of columns of numbers begin with #. Cells are texts or elements. A long table has the number of further rows.
function table(headings, rows, empty, shown = ROWS_SHOWN) {
  if (!rows.length) return element("p", empty, "quiet");
  const made = element("table"), head = made.createTHead().insertRow(), body = made.createTBody();
  for (const heading of headings) {
    const cell = element("th", heading.replace(/^#/, ""), heading.startsWith("#") ? "number" : "");
    cell.scope = "col";
    head.append(cell);
  }
  const add = (cells) => {
    const line = body.insertRow();
    cells.forEach((value, column) => {
      const cell = line.insertCell();
      if (headings[column].startsWith("#")) cell.className = "number";
      cell.append(value instanceof Node ? value : String(value));
    });
  };
  rows.slice(0, shown).forEach(add);
  const scroll = element("div", undefined, "scroll");
  scroll.tabIndex = 0;
  scroll.append(made);
  if (rows.length <= shown) return scroll;
  const more = element("button", `${NUMBERS.format(rows.length - shown)} more`), both = element("div");
  more.type = "button";
  more.addEventListener("click", () => {
    rows.slice(shown).forEach(add);
    more.remove();
  });
  both.append(scroll, more);
  return both;
}

function jump(text, action) {
  const button = element("button", text, "link");
  button.type = "button";
  button.addEventListener("click", action);
  return button;
}

// Runs it once, after no further call for that long.
function later(milliseconds, action) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}

// The first index whose value is greater than t, in an ascending list (of objects under `key`, or of numbers).
function firstAfter(list, t, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((key ? list[middle][key] : list[middle]) > t) high = middle;
    else low = middle + 1;
  }
  return low;
}
