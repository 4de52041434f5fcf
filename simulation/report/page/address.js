// The part of the page's address behind the #: which run, which time, which event, what filter.

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1)), view = { run: given.get("run") };
  const [from, until] = (given.get("t") ?? "").split("-").map(Number);
  if (given.has("t") && from >= 0 && until > from) Object.assign(view, { from: from * 1e3, until: until * 1e3 });
  if (/^\d+$/.test(given.get("event") ?? "")) view.event = Number(given.get("event"));
  view.filter = { lanes: given.get("lanes") ?? "", find: given.get("find") ?? "", hidden: (given.get("without") ?? "").split(",").filter(Boolean) };
  return view;
}

// Times are in milliseconds. Values that are unchanged from the start are left out.
function addressOf(timeline, filters, event = timeline.selected) {
  const { run } = timeline, given = new URLSearchParams(), { lanes, find, hidden } = filters.state;
  given.set("run", run.id);
  if (timeline.until - timeline.from < run.end) given.set("t", `${tidy(timeline.from / 1e3)}-${tidy(timeline.until / 1e3)}`);
  if (event !== null) given.set("event", run.seq[event]);
  if (lanes) given.set("lanes", lanes);
  if (find) given.set("find", find);
  if (hidden.length) given.set("without", hidden.join(","));
  return "#" + given.toString().replaceAll("%2C", ",");
}

function tidy(number) { return String(Math.round(number * 1e3) / 1e3); }

function writeAddress(address) {
  try { history.replaceState(null, "", address); } catch { /* a browser may not let a file do that */ }
}
