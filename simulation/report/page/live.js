// The page of a server that runs: it follows the events of the control API, and asks now and then for the rest.

const WINDOW_US = 30e6, POLL_MS = 1000, POLL_SHARE = 20, FEW_MEMBERS = 30, MOST_LIVE_ROWS = 400_000, GROWN_MS = 250, TOLD_MS = 8000;
const METRICS = ["requests_total", "group_members", "group_epoch", "group_state", "group_lag", "broker_up", "connections", "violations_total"];

// Events after which the members of a group may be others, or have other partitions.
const STEADY = new Set(["heartbeat", "commit", "records"]);

// The part of a query that asks for the events of one group, and of none.
function ofGroup(group) { return group ? `&${new URLSearchParams({ group_id: group })}` : ""; }

async function showLive(theme) {
  if (document.getElementById("live")) await new LivePage(theme).start();
}

class LivePage {
  constructor(theme) {
    const main = document.getElementById("live"), section = document.getElementById("run");
    main.page = this;  // for the console of a browser
    this.part = (name) => main.querySelector(`[data-part="${name}"]`);
    this.api = new Api();
    this.section = new RunSection(section, theme, false);
    this.timeline = this.section.timeline;
    this.known = { topic: [], group: [], group_id: [], member: [], fault: [], node_id: [], broker: [], scope: [] };
    this.names = new Map();
    this.follow(WINDOW_US);
    this.timeline.viewed = () => this.viewed();
    this.section.part("link").textContent = "follow ▸";
    this.section.part("link").title = "show what happens now";
    this.section.part("link").replaceWith(this.again = this.section.part("link").cloneNode(true));
    this.again.addEventListener("click", () => this.follow(this.lengthShown));
    this.section.part("events-fold").open = false;
    this.section.part("events-fold").addEventListener("toggle", () => this.timeline.run && this.section.list.fill());
    this.part("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.api.token = this.part("token").value;
      this.begin();
    });
  }

  async start() {
    if (document.documentElement.dataset.token && !this.api.token) this.askToken();
    else await this.begin();
  }

  askToken() {
    this.part("token-form").hidden = false;
    this.part("token").focus();
    this.state("needs the token", "");
  }

  // What goes wrong is told, and never stops the page.
  async guarded(action) {
    try {
      return await action();
    } catch (error) {
      if (error.status === 401) this.askToken();
      this.tell(error.message, "bad");
      return undefined;
    }
  }

  state(text, className) { Object.assign(this.part("state"), { textContent: text, className: `chip ${className}` }); }

  tell(text, className = "") {
    const told = this.part("told");
    Object.assign(told, { textContent: text, className: `told ${className}`, hidden: false });
    clearTimeout(this.telling);
    if (className) this.telling = setTimeout(() => { told.hidden = true; }, TOLD_MS);
  }

  async begin() {
    await this.guarded(async () => {
      this.description ??= await this.api.get("openapi.json");
      this.part("servers").textContent = `bootstrap.servers=${await this.api.get("bootstrap_servers")}`;
      this.part("token-form").hidden = true;
      this.part("body").hidden = false;
      this.build();
      if (this.follows) this.renew();
      else await this.load();
      this.follows ??= this.streamed();
      this.polls ??= this.polled();
      this.paints ??= requestAnimationFrame(() => this.paint());
    });
  }

  renew() {
    this.isOld = true;
    this.abort.abort();
  }

  build() {
    if (this.forms) return;
    this.forms = new OperationForms(this.part, this);
    for (const name of Object.keys(this.known)) this.part("lists").append(Object.assign(element("datalist"), { id: `known-${name}` }));
    const choose = (group) => () => jump(group, () => this.choose(group));
    this.chooser = choose;
    this.groups = new LiveTable(this.part("groups"), ["group", "state", "#epoch", "#members", "#lag", ""], "No group yet: connect a consumer.",
      (group) => this.forms.buttons("groups", [], { group }));
    this.requests = new LiveTable(this.part("requests"), ["API", "#per second", "", "#all"], "No request yet.", () => [element("span", undefined, "bar")]);
    this.brokers = new LiveTable(this.part("brokers"), ["broker", "state", ""], "", (broker) => this.forms.buttons("kafka", ["node_id"], { node_id: Number(broker) }));
    this.faults = new LiveTable(this.part("faults"), ["#", "fault", "#matched", "#met", "#of", ""], "No fault is in force.", (fault) => this.forms.buttons("faults", [], { fault }));
    this.records = new RecordBrowser(this.part, this);
  }

  // -- events ---------------------------------------------------------------------------------------------

  // All kept events of the chosen group but steady heartbeats, in place of those of another. Only streamed() calls it once that runs: events
  // that come during a load are in the stream after it, once.
  async load() {
    const { wanted } = this, groups = wanted === undefined ? Object.keys(await this.api.get("groups")).sort(byName) : [];
    const shown = wanted ?? (groups.includes(this.shown) ? this.shown : groups[0] ?? ""), seq = await this.api.get("last_event");
    const rows = await this.api.get(`events?steady=false${ofGroup(shown)}`);
    this.names = new Map(Object.entries(await this.api.get("member_names")));
    if (wanted !== this.wanted) return;  // another one was chosen meanwhile
    this.wanted = undefined;
    Object.assign(this, { shown, base: -Infinity, seq: Math.max(seq, rows.at(-1)?.seq ?? 0), isOld: false });
    this.run = new LiveRun(shown, this.names);
    this.add(rows);
    this.show();
  }

  // Rows without a group are in all runs. Those of the others are not kept.
  add(rows) {
    const own = rows.filter(({ group }) => !group || group === this.shown);
    if (!own.length) return false;
    this.base = Math.max(this.base, own.at(-1).t_us - performance.now() * 1e3);
    this.stale ||= own.some(({ kind }) => !STEADY.has(kind));
    return this.run.add(own);
  }

  take(rows) {
    if (!rows.length) return;
    this.seq = Math.max(this.seq, rows.at(-1).seq);
    this.changed = this.add(rows) || this.changed;
    this.grown = true;
  }

  async streamed() {
    for (;;) {
      const { signal } = this.abort = new AbortController();
      try {
        this.steady = this.known.member.length <= FEW_MEMBERS;
        if (this.wanted !== undefined || this.isOld || await this.api.get("last_event") < this.seq) await this.load();  // or it is another server
        this.state("live", "ok");
        await this.api.stream(`events?since=${this.seq}&steady=${this.steady}${ofGroup(this.shown)}`, signal, (rows) => this.take(rows));
      } catch (error) {
        if (error.status === 401) this.askToken();
      }
      if (!signal.aborted) this.state("reconnecting", "bad");
      await new Promise((resolve) => { setTimeout(resolve, signal.aborted ? 0 : POLL_MS); });
    }
  }

  choose(group) {
    this.wanted = group;
    this.abort?.abort();
  }

  show() {
    const { run } = this;
    this.stale = true;
    run.endAt(Math.max(run.end, this.now(run)), 1);
    this.section.show(run);
    this.members = new LiveTable(this.part("members"), ["member", "member id", "protocol", "#epoch", "partitions", "#lag", ""], "No member.",
      (member) => this.forms.buttons("groups", ["member"], { group: this.shown, member }));
    this.follow(this.lengthShown);
    this.poll();
  }

  // -- the timeline ---------------------------------------------------------------------------------------

  now(run) { return Math.max(1, this.base + performance.now() * 1e3 - run.gone); }

  follow(length) {
    this.lengthShown = length;
    this.timeline.follows = true;
    this.painted = 0;
  }

  // The view was moved: it follows again if it was moved to the end.
  viewed() {
    const t = this.timeline, length = t.until - t.from;
    t.follows = t.until >= t.run.whole - Math.max(3e5, length / 50);
    this.lengthShown = t.from <= 0 ? Math.max(WINDOW_US, length) : length;
    this.painted = 0;
    this.again.setAttribute("aria-pressed", t.follows);
    this.section.list.refresh();
  }

  paint() {
    requestAnimationFrame(() => this.paint());
    const t = this.timeline, { run } = t, at = performance.now();
    run.endAt(Math.max(run.end, this.now(run)), 1);
    if (this.grown && at - (this.grownAt ?? 0) > GROWN_MS) {
      this.section.grow(this.changed);
      Object.assign(this, { grown: false, changed: false, grownAt: at, painted: 0 });
      if (this.section.part("events-fold").open && !t.follows) this.section.list.refresh();
    }
    // Less than half a pixel is not seen.
    if (!t.follows || Math.abs(run.end - this.painted) * t.scale < 0.5) return;
    this.painted = t.until = run.end;
    t.from = t.until - this.lengthShown;
    t.painter.paint();
    document.documentElement.dataset.drawn ??= Math.round(at);
  }

  // -- the rest -------------------------------------------------------------------------------------------

  async polled() {
    for (;;) {
      const began = performance.now();
      if (!document.hidden) await this.asked().catch((error) => { if (error.status === 401) this.askToken(); });
      const took = performance.now() - began;
      await new Promise((resolve) => {
        this.poll = resolve;
        setTimeout(resolve, Math.max(POLL_MS, POLL_SHARE * took));
      });
    }
  }

  poll() { /* until polled() waits */ }

  async asked() {
    const found = await this.api.metrics(METRICS), faults = await this.api.get("faults"), topics = await this.api.get("topics");
    const { shown } = this, wants = this.stale;
    this.stale = false;
    if (wants && shown) this.memberList = await this.api.get(`groups/${encodeURIComponent(shown)}/members`);
    if (wants) await this.readNames();
    const of = (name) => new Map(found[name].map((each) => [each.group, each.value])), lags = Map.groupBy(found.group_lag, ({ group }) => group);
    const states = new Map(found.group_state.map((each) => [each.group, each.state])), epochs = of("group_epoch"), counts = of("group_members");
    const ids = [...new Set([...states.keys(), ...lags.keys()])].sort(byName), sum = (group) => (lags.get(group) ?? []).reduce((all, { value }) => all + value, 0);
    if (!this.shown && ids.length) this.choose(ids[0]);
    this.groups.fill(ids.map((id) => [id, [this.chooser(id), states.get(id) ?? "Empty", epochs.get(id) ?? "", counts.get(id) ?? 0, NUMBERS.format(sum(id))]]), shown);
    this.showMembers(lags.get(shown) ?? []);
    this.showRequests(found.requests_total);
    this.brokers.fill(found.broker_up.map(({ broker, value }) => [broker, [broker, value ? "runs" : "stopped"]]));
    this.faults.fill(faults.filter((each) => !each.is_over).map((each) => [String(each.fault), [each.fault, each.description, each.matched, each.met, each.times ?? "no limit"]]));
    this.records.show(topics);
    const violations = found.violations_total[0]?.value ?? 0;
    this.facts({ groups: ids.length, topics: Object.keys(topics).length, partitions: Object.values(topics).reduce((all, n) => all + n, 0),
      connections: found.connections[0]?.value, "requests per second": this.rate, violations });
    this.suggest({ topic: Object.keys(topics), group: ids, group_id: ids, fault: faults.map((each) => each.fault), node_id: found.broker_up.map((each) => each.broker),
      broker: found.broker_up.map((each) => each.broker), member: (this.memberList ?? []).map((each) => each.member_id) });
    if (this.steady !== this.known.member.length <= FEW_MEMBERS) this.abort.abort();
    if (this.run.length > MOST_LIVE_ROWS) this.renew();
  }

  // The names of members, as rows have their ids.
  async readNames() {
    const before = this.names.size;
    for (const [id, name] of Object.entries(await this.api.get("member_names"))) this.names.set(id, name);
    if (this.names.size === before) return;
    for (const lane of this.run.lanes) if (this.names.has(lane.name)) lane.label = this.names.get(lane.name);
    this.grown = true;
  }

  showMembers(lags) {
    const named = (each) => each.instance_id ?? each.client_id, list = this.shown ? (this.memberList ?? []).toSorted((a, b) => byName(named(a), named(b))) : [];
    const lag = new Map(lags.map((each) => [`${each.topic}-${each.partition}`, each.value]));
    this.part("members-title").textContent = this.shown ? `Members of ${this.shown}` : "";
    this.part("members").hidden = !this.shown;
    this.members.fill(list.map((each) => [each.member_id, [named(each), each.member_id, each.protocol, each.epoch,
      shorten(shortPartitions(each.assignment), 200) || "none", NUMBERS.format(each.assignment.reduce((all, { topic, partition }) => all + (lag.get(`${topic}-${partition}`) ?? 0), 0))]]));
  }

  showRequests(samples) {
    const at = performance.now(), before = this.requested, rows = samples.map(({ api, value }) => [api, value, before ? (value - (before.values.get(api) ?? 0)) / ((at - before.at) / 1e3) : 0]);
    const most = Math.max(1, ...rows.map(([, , rate]) => rate));
    this.requested = { at, values: new Map(samples.map(({ api, value }) => [api, value])) };
    this.rate = rows.reduce((all, [, , rate]) => all + rate, 0).toFixed(1);
    this.requests.fill(rows.map(([api, value, rate]) => [api, [api, rate.toFixed(1), () => "", NUMBERS.format(value)]]));
    for (const [api, , rate] of rows) if (this.requests.lines.has(api)) this.requests.lines.get(api).querySelector(".bar").style.width = `${Math.round(70 * rate / most)}px`;
  }

  facts(values) {
    const list = this.part("numbers");
    for (const [name, value] of Object.entries(values)) {
      let fact = list.querySelector(`[data-fact="${name}"]`);
      if (!fact) {
        fact = element("div");
        fact.dataset.fact = name;
        fact.append(element("dt", name), element("dd"));
        list.append(fact);
      }
      fact.lastChild.textContent = typeof value === "number" ? NUMBERS.format(value) : value;
      fact.lastChild.className = name === "violations" && value ? "bad" : "";
    }
  }

  suggest(values) {
    for (const [name, texts] of Object.entries(values)) {
      if (texts.join() === this.known[name].join()) continue;
      this.known[name] = texts;
      document.getElementById(`known-${name}`).replaceChildren(...texts.map((text) => Object.assign(element("option"), { value: text })));
    }
  }
}

PARTS.push(showLive);
