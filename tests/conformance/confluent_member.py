"""A consumer in a process of its own, to be killed: prints its assignment after each change."""

from __future__ import annotations

import sys

from confluent_kafka import Consumer


def main(bootstrap_servers: str, group_id: str, topic: str, protocol: str = "consumer") -> None:
    classic = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
    consumer = Consumer(
        {
            **(classic if protocol == "classic" else {}),
            "bootstrap.servers": bootstrap_servers,
            "group.id": group_id,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    known = None
    while True:
        consumer.poll(0.05)
        assigned = sorted(one.partition for one in consumer.assignment())
        if assigned != known:
            known = assigned
            sys.stdout.write(f"{len(assigned)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
