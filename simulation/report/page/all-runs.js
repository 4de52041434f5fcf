// The list of all runs, with the command that shows each.

const RUNS_SHOWN = 25;

class AllRuns {
  constructor(section, packed) {
    this.part = (name) => section.querySelector(`[data-part="${name}"]`);
    const { columns } = packed, names = Object.keys(columns);
    this.runs = columns.run_id.map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
    this.shown = RUNS_SHOWN;
    this.cell = null;
    this.part("search").addEventListener("input", later(80, () => { this.cell = null; this.shown = RUNS_SHOWN; this.draw(); }));
    this.part("more").addEventListener("click", () => { this.shown += 4 * RUNS_SHOWN; this.draw(); });
    document.addEventListener("cell", (event) => {
      this.part("search").value = this.cell = event.detail;
      this.shown = RUNS_SHOWN;
      this.draw();
    });
    this.draw();
  }

  draw() {
    const words = this.part("search").value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const found = this.runs.filter((run) => {
      if (this.cell !== null) return run.label === this.cell;  // members=1 is a part of members=10
      const text = `${run.run_id} ${run.label} ${run.outcome}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    this.part("found").textContent = found.length === this.runs.length ? NUMBERS.format(found.length) : `${NUMBERS.format(found.length)} of ${NUMBERS.format(this.runs.length)}`;
    this.part("list").replaceChildren(table(["run", "scenario", "#rebalances", "#heartbeats", "outcome"],
      found.slice(0, this.shown).map((run) => [jump(run.run_id, () => this.tell(run)), run.label, run.rebalances ?? "–",
        run.heartbeats === null ? "–" : NUMBERS.format(run.heartbeats), element("span", run.outcome, run.fine ? "" : "bad")]), "No run has all of these words.", this.shown));
    this.part("more").hidden = found.length <= this.shown;
  }

  tell(run) {
    const box = this.part("how"), inPage = document.querySelector(`script[data-run-id="${CSS.escape(run.run_id)}"]`);
    const lines = [element("strong", run.run_id)];
    if (inPage) lines.push(jump("its timeline is in this page", () => { location.hash = "#" + new URLSearchParams({ run: run.run_id }); }));
    for (const [why, command] of [["its timeline, from the trace", run.show], ["run it again", run.again]]) {
      if (!command) continue;
      const line = element("div", why + ": ");
      line.append(element("code", command));
      lines.push(line);
    }
    box.replaceChildren(...lines);
    box.scrollIntoView({ block: "nearest" });
  }
}

async function showAllRuns() {
  const section = document.getElementById("all-runs");
  if (section) new AllRuns(section, JSON.parse(await unpack("runs-data")));
}

PARTS.push(showAllRuns);
