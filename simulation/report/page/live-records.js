// The records of a partition, some at a time.

const RECORDS_SHOWN = 50;

class RecordBrowser {
  constructor(part, page) {
    Object.assign(this, { part, page });
    this.table = new LiveTable(part("records"), ["#offset", "time", "key", "value", "headers"], "No record.");
    part("records-form").addEventListener("submit", (event) => { event.preventDefault(); this.read(); });
    part("newest").addEventListener("click", () => this.newest());
    for (const [name, step] of [["older", -RECORDS_SHOWN], ["newer", RECORDS_SHOWN]]) {
      part(name).addEventListener("click", () => {
        part("since").value = Math.max(0, Number(part("since").value) + step);
        this.read();
      });
    }
    part("topic").addEventListener("change", () => this.choose());
    part("partition").addEventListener("change", () => this.newest());
  }

  show(topics) {
    const select = this.part("topic"), names = Object.keys(topics).sort((a, b) => a.startsWith("__") - b.startsWith("__") || byName(a, b));
    this.topics = topics;
    if (names.join() === this.names) return;
    this.names = names.join();
    const before = select.value;
    select.replaceChildren(...names.map((name) => element("option", name)));
    if (names.includes(before)) select.value = before;
    else this.choose();
  }

  choose() {
    this.part("partition").replaceChildren(...Array.from({ length: this.topics[this.part("topic").value] ?? 0 }, (_, n) => element("option", n)));
    this.newest();
  }

  async newest() {
    const found = await this.page.guarded(() => this.page.api.metrics(["log_end_offset"])), [topic, partition] = [this.part("topic").value, this.part("partition").value];
    const end = found?.log_end_offset.find((each) => each.topic === topic && each.partition === partition)?.value ?? 0;
    this.part("since").value = Math.max(0, end - RECORDS_SHOWN);
    await this.read();
  }

  async read() {
    const [topic, partition, since] = ["topic", "partition", "since"].map((name) => this.part(name).value);
    if (!topic) return;
    const records = await this.page.guarded(() => this.page.api.get(`records?${new URLSearchParams({ topic, partition, since: since || 0, most: RECORDS_SHOWN })}`));
    this.table.fill((records ?? []).map((each) => [each.offset, [each.offset, new Date(each.timestamp_ms).toISOString().replace("T", " ").slice(0, 23),
      shownBytes(each.key), shownBytes(each.value), each.headers.map(([name, value]) => `${name}: ${shownBytes(value)}`).join("\n")]]));
  }
}

function shownBytes(value) { return value === null ? "null" : shorten(typeof value === "string" ? value : `base64 ${value.base64}`, 2_000); }
