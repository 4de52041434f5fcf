import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, describe, it } from "node:test";
import { createInterface } from "node:readline";

import { Consumer, stringDeserializers } from "@platformatic/kafka";
import { Kafka, logLevel } from "kafkajs";

import { Control } from "./control.mjs";
import { Orders } from "./orders.mjs";

let server, brokers, control;

before(async () => {
  const words = ["serve", "--port", "0", "--control", "0", "--quick", "--brokers", "2"];
  server = spawn(process.env.FENCEPOST ?? "fencepost", words, { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: server.stdout })) {
    if (line.startsWith("fencepost ready control ")) {
      control = new Control(line.split(" ").at(-1));
      break;
    }
  }
  assert.ok(control, "fencepost ended before it was ready");
  brokers = (await control.get("bootstrap_servers")).split(",");
});

after(() => server.kill());

/** The scope of one test: a topic, a group, and the clients that use them. The end of the test closes them all. */
class Shop {
  charges = [];
  #look = () => {};

  static async open(test, partitions = 1) {
    const shop = new Shop();
    shop.scope = await control.scope("orders", { orders: partitions });
    shop.topic = shop.scope.name("orders");
    shop.groupId = shop.scope.name("billing");
    shop.group = `groups/${shop.groupId}`;
    shop.ends = [() => shop.scope.close()];
    test.after(async () => {
      for (const end of shop.ends.reverse()) await end();
    });
    return shop;
  }

  /** Start a service. `during` runs within each charge. */
  service(name, { during = async () => {}, ...settings } = {}) {
    const all = { brokers, clientId: this.scope.name(name), groupId: this.groupId, heartbeatInterval: 100, ...settings };
    const service = new Orders(all, this.topic, async (order) => {
      this.charges.push(order);
      await during(order);
      this.#look();
    });
    const ended = service.run();
    this.ends.push(async () => {
      await service.stop();
      await ended;
    });
    return service;
  }

  /** Start a consumer with what KafkaJS lacks: instance ids, and the protocol of KIP-848. */
  async consumer(name, settings) {
    const all = { bootstrapBrokers: brokers, clientId: this.scope.name(name), groupId: this.groupId, ...settings };
    const consumer = new Consumer({ ...all, deserializers: stringDeserializers, retryDelay: 20 });
    this.ends.push(() => consumer.close(true));
    const options = { topics: [this.topic], mode: "committed", fallbackMode: "earliest", autocommit: false };
    const orders = await consumer.consume({ ...options, maxWaitTime: 100 });
    orders.on("data", (order) => {
      this.charges.push(order.value);
      this.#look();
    });
    for (const each of [consumer, orders]) each.on("error", () => {}); // requests that outlive `close` may fail
    return consumer;
  }

  async producer(settings) {
    const kafka = new Kafka({ brokers, clientId: this.scope.name("shop"), logLevel: logLevel.NOTHING });
    const producer = kafka.producer({ retry: { initialRetryTime: 20 }, idempotent: true, ...settings });
    await producer.connect();
    this.ends.push(() => producer.disconnect());
    return producer;
  }

  /** Wait until all these orders are charged. */
  charged(...orders) {
    return new Promise((resolve) => {
      this.#look = () => orders.every((order) => this.charges.includes(order)) && resolve();
      this.#look();
    });
  }

  message = (value) => ({ topic: this.topic, messages: [{ value }] });
  produce = (...values) => this.scope.post("produce", { topic: this.topic, values });
  stored = async () => (await this.scope.get("records", { topic: this.topic })).map((record) => record.value);
  stable = (members) => this.scope.post(`${this.group}/wait_stable`, { members });
  committed = async () => (await this.scope.get(`${this.group}/offsets`))[0].offset;
}

/** A function for `during` that acts once, within the charge of one order. */
function once(wanted, act) {
  let isDone = false;
  return async (order) => {
    if (order === wanted && !isDone) {
      isDone = true;
      await act();
    }
  };
}

describe("orders", { concurrency: 4, timeout: 120_000 }, () => {
  for (const how of ["fence", "expire"]) {
    it(`are charged again after a charge with ${how}`, async (test) => {
      const shop = await Shop.open(test);
      await shop.produce("a", "b", "c");
      const service = shop.service("one", {
        during: once("b", () => shop.scope.post(`${shop.group}/${how}`, { member: shop.scope.name("one") })),
        heartbeatInterval: 10_000, // it learns of its end by the commit, and not before
      });
      await shop.charged("c");
      await service.stop();
      assert.deepEqual(shop.charges, ["a", "b", "b", "c"]);
      assert.equal(await shop.committed(), 3);
    });
  }

  it("are charged once if the response to a commit is lost", async (test) => {
    const shop = await Shop.open(test);
    const { fault } = await shop.scope.post("add_fault", { action: "lose_response", api: "OffsetCommit" });
    await shop.produce("a", "b");
    const service = shop.service("one");
    await shop.charged("b");
    await service.stop();
    assert.equal((await shop.scope.post(`faults/${fault}/wait_met`)).met, 1);
    assert.deepEqual(shop.charges, ["a", "b"]);
    assert.equal(await shop.committed(), 2);
    assert.deepEqual(await shop.scope.get("check"), []);
  });

  it("are all charged during a rolling deploy of three members", async (test) => {
    const shop = await Shop.open(test, 6);
    const olds = ["one", "two", "three"].map((name) => shop.service(name));
    await shop.stable(3);
    for (const [number, old] of olds.entries()) {
      await shop.produce(`a${number}`, `b${number}`, `c${number}`);
      await old.stop();
      shop.service(`new-${number}`);
      await shop.stable(3);
    }
    await shop.charged(...[0, 1, 2].flatMap((number) => [`a${number}`, `b${number}`, `c${number}`]));
    assert.deepEqual(await shop.scope.get("check"), []);
  });

  it("are stored once while their leader moves", async (test) => {
    const shop = await Shop.open(test);
    const producer = await shop.producer();
    await producer.send(shop.message("a"));
    await shop.scope.post("move_leader", { topic: shop.topic, partition: 0 });
    await producer.send(shop.message("b"));
    shop.service("one");
    await shop.charged("a", "b");
    assert.deepEqual(await shop.stored(), ["a", "b"]);
  });

  it("are charged if their producer is throttled", async (test) => {
    const shop = await Shop.open(test);
    const throttle = { action: "throttle", api: "Produce", seconds: 0.2 };
    const { fault } = await shop.scope.post("add_fault", throttle);
    await (await shop.producer()).send(shop.message("a"));
    shop.service("one");
    await shop.charged("a");
    assert.equal((await shop.scope.post(`faults/${fault}/wait_met`)).met, 1);
  });

  it("are not charged if their transaction was aborted", async (test) => {
    const shop = await Shop.open(test);
    const producer = await shop.producer({ transactionalId: shop.scope.name("shop"), maxInFlightRequests: 1 });
    const aborted = await producer.transaction();
    await aborted.send(shop.message("a"));
    await aborted.abort();
    const committed = await producer.transaction();
    await committed.send(shop.message("b"));
    await committed.commit();
    shop.service("one");
    await shop.charged("b");
    assert.deepEqual(shop.charges, ["b"]);
    assert.deepEqual(await shop.stored(), ["a", "b"]);
  });

  it("stay with their members while a static member is replaced", async (test) => {
    const shop = await Shop.open(test, 2);
    const old = await shop.consumer("old", { groupInstanceId: "one", heartbeatInterval: 100 });
    await shop.consumer("other", { groupInstanceId: "two", heartbeatInterval: 100 });
    const of = (members) => members.map((each) => [each.instance_id, each.epoch, each.assignment]).sort();
    const before = of(await shop.stable(2));
    const fenced = new Promise((resolve) => old.once("consumer:heartbeat:error", ({ error }) => resolve(error)));
    const replacement = await shop.consumer("new", { groupInstanceId: "one", heartbeatInterval: 100 });
    assert.ok((await fenced).findBy("apiId", "FENCED_INSTANCE_ID"));
    const members = await shop.stable(2);
    assert.deepEqual(of(members), before);
    assert.ok(members.some((each) => each.member_id === replacement.memberId));
  });

  it("are all charged while a classic group is migrated", async (test) => {
    const shop = await Shop.open(test, 2);
    const classic = shop.service("old");
    await shop.stable(1);
    await shop.produce("a", "b");
    await shop.consumer("new", { groupProtocol: "consumer" });
    assert.deepEqual((await shop.stable(2)).map((each) => each.protocol).sort(), ["classic", "consumer"]);
    await classic.stop();
    assert.deepEqual((await shop.stable(1)).map((each) => each.protocol), ["consumer"]);
    await shop.produce("c", "d");
    await shop.charged("a", "b", "c", "d");
  });
});

// Groups share coordinators. So this test is not at the same time as the others.
it("orders are charged after their coordinator has moved", { timeout: 120_000 }, async (test) => {
  const shop = await Shop.open(test);
  await shop.produce("a", "b");
  const move = () => control.post("move_coordinator", { group_id: shop.groupId });
  const service = shop.service("one", { during: once("a", move) });
  await shop.charged("b");
  await service.stop();
  assert.equal(await shop.committed(), 2);
});
