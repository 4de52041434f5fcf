"""The metadata of Kafka Streams 4.3.1 in the classic protocol, byte for byte.

`tests/vectors/streams_metadata.jsonl` is what its own classes encoded, by java/StreamsMetadata.java.
"""

from __future__ import annotations

import json
import random
import uuid
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.streams import TaskId
from fencepost.member.classic.assignors import assignment_info, subscription_info
from fencepost.member.classic.assignors.streams_metadata import HostInfo

VECTORS = Path(__file__).parents[1] / "vectors" / "streams_metadata.jsonl"
LINES = [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]

Value = dict[str, Any]


def subscription(value: Value) -> subscription_info.SubscriptionInfo:
    return subscription_info.SubscriptionInfo(
        version=value["version"],
        latest_supported_version=value["latest"],
        process_id=uuid.UUID(value["process"]),
        user_endpoint=value["endpoint"],
        task_offset_sums={TaskId(*task): offset_sum for *task, offset_sum in value["sums"]},
        unique_field=value["unique"],
        error_code=value["error"],
        client_tags=dict(value["tags"]),
    )


def partitions(rows: list[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(*row) for row in rows)


def assignment(value: Value) -> assignment_info.AssignmentInfo:
    return assignment_info.AssignmentInfo(
        version=value["version"],
        commonly_supported_version=value["common"],
        active_tasks=tuple(TaskId(*task) for task in value["active"]),
        standby_tasks={TaskId(*task): partitions(rows) for task, rows in value["standby"]},
        partitions_by_host={HostInfo(*host): partitions(rows) for *host, rows in value["hosts"]},
        standby_partitions_by_host={
            HostInfo(*host): partitions(rows) for *host, rows in value["standby_hosts"]
        },
        error_code=value["error"],
        next_rebalance_ms=value["next"],
    )


def written(kind: str, value: Value) -> str:
    if kind == "subscription":
        return subscription_info.write_subscription_info(subscription(value)).hex()
    return assignment_info.write_assignment_info(assignment(value)).hex()


def carried(kind: str, value: Value) -> Value:
    """What is left of a value in its version, as Java's decoder tells it: without order."""
    value, version = deepcopy(value), value["version"]
    if kind == "assignment":
        unordered = {name: sorted(value[name], key=str) for name in ("hosts", "standby_hosts", "standby")}
        for rows in unordered.values():
            for row in rows:
                row[-1] = sorted(row[-1])
        return {**value, **unordered}
    return {
        **{name: value[name] for name in ("version", "latest", "process", "endpoint")},
        "sums": sorted(value["sums"], key=str),
        "error": value["error"] if version >= 9 else 0,
        "tags": sorted(value["tags"]) if version >= 11 else [],
    }


def told(kind: str, data: bytes) -> Value:
    """What our decoder makes of bytes, as `carried`."""
    if kind == "subscription":
        info = subscription_info.read_subscription_info(data)
        value = {
            "version": info.version,
            "latest": info.latest_supported_version,
            "process": str(info.process_id),
            "endpoint": info.user_endpoint,
            "sums": [[*task, offset_sum] for task, offset_sum in info.task_offset_sums.items()],
            "error": info.error_code,
            "tags": [list(tag) for tag in info.client_tags.items()],
        }
    else:
        given = assignment_info.read_assignment_info(data)
        value = {
            "version": given.version,
            "common": given.commonly_supported_version,
            "active": [list(task) for task in given.active_tasks],
            "standby": [[list(task), _rows(rows)] for task, rows in given.standby_tasks.items()],
            "hosts": [[*host, _rows(rows)] for host, rows in given.partitions_by_host.items()],
            "standby_hosts": [
                [*host, _rows(rows)] for host, rows in given.standby_partitions_by_host.items()
            ],
            "error": given.error_code,
            "next": given.next_rebalance_ms,
        }
    return carried(kind, value)


def _rows(rows: tuple[TopicPartition, ...]) -> list[list[Any]]:
    return [list(row) for row in rows]


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['kind']}-{line['value']['version']}")
def test_the_bytes_are_those_that_kafka_wrote(line: Value) -> None:
    kind, value = line["kind"], line["value"]
    assert written(kind, value) == line["hex"]
    data = bytes.fromhex(line["hex"])
    assert told(kind, data) == carried(kind, value)
    if kind == "subscription":
        assert subscription_info.read_subscription_info(data).unique_field == (
            value["unique"] if value["version"] >= 8 else 0
        )


def drawn(rng: random.Random, kind: str, version: int) -> Value:
    """Some value of a version, with texts and numbers of every size."""

    def number(bits: int) -> int:
        return rng.choice([0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), rng.getrandbits(bits - 1)])

    def text() -> str:
        return rng.choice(["", "a", "é", "\0", "𝄞", "orders", "x" * 300]) + rng.choice(["", "-1", "語"])

    def tasks(count: int) -> list[list[Any]]:
        named = [None, None, "payments"] if version >= 10 else [None]
        rows = {
            (rng.choice([0, 1, 2, 17, 40]), rng.randrange(100), rng.choice(named)): None
            for _ in range(rng.randrange(count))
        }
        return [list(row) for row in rows]

    def some_partitions(count: int) -> list[list[Any]]:
        rows = {(f"topic-{rng.randrange(20)}", rng.randrange(30)): None for _ in range(rng.randrange(count))}
        return [list(row) for row in rows]

    def hosts() -> list[list[Any]]:
        rows = {(text(), rng.randrange(65536)): None for _ in range(rng.randrange(4))}
        return [[*row, some_partitions(40)] for row in rows]

    if kind == "assignment":
        return {
            "version": version,
            "common": number(32),
            "active": tasks(30),
            "standby": [[task, some_partitions(4)] for task in tasks(10)],
            "hosts": hosts(),
            "standby_hosts": hosts(),
            "error": number(32),
            "next": rng.choice([0, assignment_info.NO_REBALANCE_MS, number(64)]),
        }
    return {
        "version": version,
        "latest": rng.randint(version, 13),
        "process": str(uuid.UUID(int=rng.getrandbits(128))),
        "endpoint": text() or None,
        "sums": [[*task, rng.choice([-2, -3, number(64)])] for task in tasks(60)],
        "unique": number(8),
        "error": number(32),
        "tags": [[key, text()] for key in sorted({text() for _ in range(rng.randrange(4))})],
    }


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(240)
def test_kafkas_own_classes_write_and_read_the_same(java_programs, streams_jars, java_process) -> None:
    java = java_process(java_programs.command("StreamsMetadata", *streams_jars))

    def ask(question: Value) -> Value:
        java.tell(json.dumps(question))
        return json.loads(java.wait(lambda line: line.startswith("{")))

    rng = random.Random(11)
    for number in range(150):
        kind, version = ("subscription", "assignment")[number % 2], rng.randint(7, 11)
        value = drawn(rng, kind, version)
        ours = written(kind, value)
        assert ask({"kind": kind, "value": value}) == {"hex": ours}, value
        answer = ask({"kind": kind, "hex": ours})
        assert carried(kind, answer["value"]) == carried(kind, value)
        assert told(kind, bytes.fromhex(ours)) == carried(kind, value)
    for line in LINES:
        assert ask({"kind": line["kind"], "value": line["value"]}) == {"hex": line["hex"]}
    future = "0000000c0000000c" + "ff" * 20
    assert ask({"kind": "subscription", "hex": future})["value"]["latest"] == 12
    assert subscription_info.read_subscription_info(bytes.fromhex(future)).latest_supported_version == 12
