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
    if (names.join() !== this.names) {
      this.names = names.join();
      const before = select.value;
      select.replaceChildren(...names.map((name) => element("option", name)));
      if (names.includes(before)) select.value = before;
      else return this.choose();
    }
    this.listPartitions();
  }

  choose() {
    this.part("partition").replaceChildren();
    this.listPartitions();
    this.newest();
  }

  // A topic may get more partitions, or be made anew with fewer.
  listPartitions() {
    const select = this.part("partition"), count = this.topics[this.part("topic").value] ?? 0;
    while (select.length > count) select.lastChild.remove();
    while (select.length < count) select.append(element("option", select.length));
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
    this.table.fill((records ?? []).map((each) => [each.offset, [each.offset, shownTime(each.timestamp_ms),
      shownBytes(each.key), shownBytes(each.value), each.headers.map(([name, value]) => `${name}: ${shownBytes(value)}`).join("\n")]]));
  }
}

// JavaScript's dates end before Kafka's times.
function shownTime(ms) { return Math.abs(ms) > 8.64e15 ? `${ms} ms` : new Date(ms).toISOString().replace("T", " ").slice(0, -1); }

function shownBytes(value) { return value === null ? "null" : shorten(typeof value === "string" ? value : `base64 ${value.base64}`, 2_000); }
