// A service that charges orders with KafkaJS. It commits an order after its charge, so an order may be charged twice,
// and is never lost.

import { Kafka, logLevel } from "kafkajs";

export class Orders {
  #consumer;
  #work;
  #isStopped = false;

  /** `settings` are the `brokers` and the `clientId` of KafkaJS, and those of its consumer, such as `groupId`. */
  constructor(settings, topic, charge) {
    this.settings = settings;
    this.topic = topic;
    this.charge = charge;
  }

  /** Run until `stop`. */
  async run() {
    // KafkaJS ends a consumer whose commit is refused, whatever `restartOnFailure` says: after a fence, or after the
    // end of its session. A service without this loop would hang then. The next consumer begins after the last commit.
    while (!this.#isStopped) await this.#consume();
  }

  /** End as a process does on SIGTERM: after the commit of the order that is being charged. */
  async stop() {
    this.#isStopped = true;
    await this.#work?.catch(() => {}); // KafkaJS drops commits while it stops
    await this.#consumer?.disconnect();
  }

  async #consume() {
    const { brokers, clientId, ...settings } = this.settings;
    const kafka = new Kafka({ brokers, clientId, logLevel: logLevel.NOTHING });
    const consumer = kafka.consumer({ maxWaitTimeInMs: 100, retry: { initialRetryTime: 20 }, ...settings });
    this.#consumer = consumer;
    const ended = new Promise((resolve) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || resolve());
      consumer.on(consumer.events.DISCONNECT, () => this.#isStopped && resolve());
    });
    await consumer.connect();
    await consumer.subscribe({ topic: this.topic, fromBeginning: true });
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        if (this.#isStopped) return;
        this.#work = (async () => {
          await this.charge(message.value.toString());
          const offset = (BigInt(message.offset) + 1n).toString();
          await consumer.commitOffsets([{ topic, partition, offset }]);
        })();
        await this.#work;
      },
    });
    if (this.#isStopped) await consumer.disconnect();
    await ended;
  }
}
