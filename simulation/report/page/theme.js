// Colours and patterns as the canvas needs them, and the switch between light and dark.

class Theme {
  constructor() {
    this.listeners = [];
    this.asked = kept("theme");
    this.apply();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.apply());
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      button.addEventListener("click", () => this.flip());
    }
  }

  get dark() { return this.asked ? this.asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches; }

  flip() {
    this.asked = this.dark ? "light" : "dark";
    keep("theme", this.asked);
    this.apply();
  }

  apply() {
    if (this.asked) document.documentElement.dataset.theme = this.asked;
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      button.textContent = this.dark ? "☀ light" : "☾ dark";
      button.setAttribute("aria-label", this.dark ? "show the page light" : "show the page dark");
    }
    this.read();
    for (const listener of this.listeners) listener();
  }

  read() {
    const style = getComputedStyle(document.documentElement);
    this.get = (name) => style.getPropertyValue("--" + name).trim();
    this.colours = {};
    for (const name of ["text", "muted", "line", "panel", "stripe", "heading", "accent", "bad", "warn", "fault", "beat", "cursor",
      "shade", "ink", "paper", "ok"]) this.colours[name] = this.get(name);
    this.faultLine = this.get("fault-line");
    this.faultSpan = this.get("fault-span");
    this.fills = new Map();
    this.downs = { down: "host-down", left: "host-down", stopped: "host-stopped", frozen: "host-frozen", loading: "state-moving", active: "state-good" };
  }

  // A fill is a colour, the pattern on it, and the ink for words on it.
  fill(name, pattern) {
    const key = name + pattern;
    if (!this.fills.has(key)) {
      const colour = this.get(name), ink = lightness(colour) > 0.195 ? this.colours.ink : this.colours.paper;
      this.fills.set(key, { colour, ink, pattern: pattern === "plain" ? null : makePattern(pattern, ink) });
    }
    return this.fills.get(key);
  }

  about(state) { return PALETTE.about[spelt(state)] ?? "idle"; }

  state(state) { return this.fill("state-" + this.about(state), PALETTE.variants[spelt(state)] ?? PALETTE.patterns[this.about(state)]); }

  owner(number) {
    const turn = Math.floor(number / PALETTE.owners) % PALETTE.turns.length;
    return this.fill("owner-" + (number % PALETTE.owners), PALETTE.turns[turn]);
  }

  down(sort) { return this.fill(this.downs[sort] ?? "host-down", "plain"); }

  callback(sort) {
    return this.get(sort === "assigned" || sort === "activated" ? "callback-assigned" : sort === "lost" ? "bad" : "callback-revoked");
  }
}

function spelt(state) { return state.replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase(); }

// The position of the switch is remembered if the browser allows that to a file.
function kept(name) {
  try { return localStorage.getItem("fencepost-" + name); } catch { return null; }
}

function keep(name, value) {
  try { localStorage.setItem("fencepost-" + name, value); } catch { /* then not */ }
}

function lightness(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const c = parseInt(colour.slice(at, at + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function makePattern(name, ink) {
  const tile = element("canvas"), ratio = window.devicePixelRatio || 1;
  tile.width = tile.height = 8 * ratio;
  const c = tile.getContext("2d");
  c.scale(ratio, ratio);
  c.strokeStyle = c.fillStyle = ink;
  c.globalAlpha = 0.26;
  c.lineWidth = 1.4;
  const line = (x, y, toX, toY) => { c.beginPath(); c.moveTo(x, y); c.lineTo(toX, toY); c.stroke(); };
  if (name === "rising" || name === "crossed") for (const x of [-8, 0, 8]) line(x, 8, x + 8, 0);
  if (name === "falling" || name === "crossed") for (const x of [-8, 0, 8]) line(x, 0, x + 8, 8);
  if (name === "upright") for (const x of [2, 6]) line(x, 0, x, 8);
  if (name === "dots") for (const [x, y] of [[2, 2], [6, 6]]) { c.beginPath(); c.arc(x, y, 1.1, 0, 7); c.fill(); }
  const pattern = c.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

// Fills a box; narrow ones get the colour alone.
function paintBox(c, fill, x, y, width, height) {
  c.fillStyle = fill.colour;
  c.fillRect(x, y, width, height);
  if (fill.pattern && width >= 5) {
    c.fillStyle = fill.pattern;
    c.fillRect(x, y, width, height);
  }
}
