"""Kafka's log of groups, told as rows: what real brokers wrote, and stories of groups."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.coordinator.codec.group_records import encode_record
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol import streams_records as s
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment, write_assignment
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import Tasks
from fencepost.simulation.analyses.run_pass import rows_of_task, take_rows
from fencepost.simulation.analyses.run_views import RunViews
from fencepost.simulation.live.group_log import GroupLog, LogRecord
from fencepost.simulation.trace.schema import Row, RowKind
from tests.unit.simulation.analyses.compared_views import table_of

VECTORS = Path(__file__).parents[2] / "vectors" / "group_records.jsonl"
ORDERS = "AAAAAAAAAAAAAAAAAAAAAQ"
NAMES = {ORDERS: "orders"}
STABLE, REVOKING, WAITING = (
    each.code
    for each in (
        ConsumerGroupMemberState.STABLE,
        ConsumerGroupMemberState.UNREVOKED_PARTITIONS,
        ConsumerGroupMemberState.UNRELEASED_PARTITIONS,
    )
)


def name_of(topic_id: str) -> str:
    return NAMES.get(topic_id, topic_id)


def vectors(group_id: str) -> Iterator[LogRecord]:
    for number, line in enumerate(VECTORS.read_text().splitlines()):
        each = json.loads(line)
        if each["kafka"]["key"].get("groupId") == group_id:
            value = None if each["value"] is None else bytes.fromhex(each["value"])
            yield LogRecord(number * 100, bytes.fromhex(each["key"]), value)


def logged(t_ms: int, *records: Record) -> list[LogRecord]:
    return [LogRecord(t_ms, *encode_record(record)) for record in records]


def epoch(number: int) -> Record:
    return Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(number))


def target(number: int) -> Record:
    return Record(
        r.ConsumerGroupTargetAssignmentMetadataKey("g"),
        r.ConsumerGroupTargetAssignmentMetadataValue(number),
    )


def member(name: str) -> Record:
    value = r.ConsumerGroupMemberMetadataValue(None, None, name, "/h", ("orders",), None, 1_000, None)
    return Record(r.ConsumerGroupMemberMetadataKey("g", name), value)


def placed(name: str, at: int, state: int, held: tuple[int, ...], leaving: tuple[int, ...] = ()) -> Record:
    value = r.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=at,
        previous_member_epoch=at - 1,
        state=state,
        assigned={ORDERS: held} if held else {},
        pending_revocation={ORDERS: leaving} if leaving else {},
    )
    return Record(r.ConsumerGroupCurrentMemberAssignmentKey("g", name), value)


def removed(name: str) -> list[Record]:
    keys = (
        r.ConsumerGroupCurrentMemberAssignmentKey,
        r.ConsumerGroupTargetAssignmentMemberKey,
        r.ConsumerGroupMemberMetadataKey,
    )
    return [Record(key("g", name), None) for key in keys]


def story() -> list[LogRecord]:
    """A joins and has all; B comes and takes a half; A goes."""
    return [
        *logged(5_000, member("A"), epoch(1), target(1), placed("A", 1, STABLE, (0, 1))),
        *logged(6_000, member("B"), epoch(2), target(2), placed("B", 2, WAITING, ())),
        *logged(6_500, placed("A", 1, REVOKING, (0,), (1,))),
        *logged(7_000, placed("A", 2, STABLE, (0,))),
        *logged(7_200, placed("B", 2, STABLE, (1,))),
        *logged(9_000, *removed("A"), epoch(3)),
        *logged(9_100, target(3), placed("B", 3, STABLE, (0, 1))),
    ]


def told(rows: list[Row]) -> list[tuple[int, str, str, str]]:
    """Milliseconds, kind, actor, and what most tells."""
    return [
        (
            row.t_us // 1_000,
            row.kind,
            row.actor,
            f"{row.state_from}>{row.state_to}" if row.state_from or row.state_to else row.detail,
        )
        for row in rows
    ]


def parts(row: Row) -> list[int]:
    assert {each.topic for each in row.partitions} <= {"orders"}
    return [each.partition for each in row.partitions]


def test_a_group_is_told_as_it_moves() -> None:
    rows = GroupLog("g", name_of).take(story())
    groups = [each for each in told(rows) if each[1].startswith("group.")]
    assert groups == [
        (0, "group.epoch", "", ">Stable"),
        (0, "group.target", "", ""),
        (0, "group.state", "", ">Stable"),
        (1_000, "group.epoch", "", ">Reconciling"),
        (1_000, "group.target", "", ""),
        (1_000, "group.state", "", "Stable>Reconciling"),
        (2_200, "group.state", "", "Reconciling>Stable"),
        (4_000, "group.epoch", "", ">Assigning"),
        (4_000, "group.state", "", "Stable>Assigning"),
        (4_100, "group.target", "", ""),
        (4_100, "group.state", "", "Assigning>Stable"),
    ]
    assert [row.detail for row in rows if row.kind == RowKind.GROUP_EPOCH] == ["join", "join", "gone"]
    assert [row.group_epoch for row in rows if row.kind == RowKind.TARGET] == [1, 2, 3]
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert {(row.world, row.group) for row in rows} == {("kafka", "g")}


def test_members_are_told_by_what_they_are_given() -> None:
    rows = GroupLog("g", name_of).take(story())
    held = [(row.state_to, parts(row)) for row in rows if row.kind == RowKind.ASSIGNMENT and row.actor == "A"]
    assert held == [
        ("STABLE", [0, 1]),
        ("UNREVOKED_PARTITIONS", [0, 1]),
        ("STABLE", [0]),
        ("", []),
    ]
    rows = [row for row in rows if row.kind != RowKind.ASSIGNMENT]
    assert [(row.kind, row.detail, parts(row)) for row in rows if row.actor == "A" and row.partitions] == [
        ("callback.begin", "assigned", [0, 1]),
        ("callback.end", "assigned", [0, 1]),
        ("member.state", "STABLE", [0, 1]),
        ("callback.begin", "revoked", [1]),
        ("member.state", "UNREVOKED_PARTITIONS", [0]),
        ("callback.end", "revoked", [1]),
        ("member.state", "STABLE", [0]),
    ]
    states = [row.state_to for row in rows if row.actor == "B" and row.kind == RowKind.MEMBER_STATE]
    assert states == ["JOINING", "RECONCILING", "STABLE"]
    gone = [(row.t_us, row.kind, row.detail) for row in rows if row.actor == "A"][-2:]
    assert gone == [(4_000_000, "member.removed", "gone"), (4_000_000, "host", "stopped")]


@pytest.mark.parametrize("cut", range(1, 20))
def test_what_is_kept_is_enough_to_go_on(cut: int) -> None:
    records = story()
    # A step is not cut here: what lies at one time is told together.
    while cut < len(records) and records[cut].timestamp_ms == records[cut - 1].timestamp_ms:
        cut += 1
    first = GroupLog("g", name_of)
    rows = first.take(records[:cut])
    rows += GroupLog("g", name_of, first.keep()).take(records[cut:])
    assert rows == GroupLog("g", name_of).take(records)


def test_the_log_of_a_real_broker() -> None:
    log = GroupLog("group-a", lambda topic_id: "orders")
    rows = log.take(vectors("group-a"))
    assert log.unreadable <= 1
    states = [row.state_to for row in rows if row.kind == RowKind.GROUP_STATE]
    assert states[:4] == ["Assigning", "Reconciling", "Stable", "Reconciling"]
    epochs = [row.group_epoch for row in rows if row.kind == RowKind.GROUP_EPOCH]
    assert epochs == sorted(set(epochs))
    owners: dict[int, str] = {}
    for row in (row for row in rows if row.kind != RowKind.ASSIGNMENT):
        for part in parts(row):
            if row.kind == RowKind.CALLBACK_END and row.detail == "assigned":
                assert part not in owners, "a coordinator gives no partition twice"
                owners[part] = row.actor
            elif row.kind == RowKind.CALLBACK_END:
                assert owners.pop(part) == row.actor
        if row.kind == RowKind.MEMBER_REMOVED:
            owners = {part: actor for part, actor in owners.items() if actor != row.actor}


def test_offsets_of_one_time_are_one_commit() -> None:
    def committed(part: int, offset: int) -> Record:
        return Record(r.OffsetCommitKey("g", "orders", part), r.OffsetCommitValue(offset, -1, "", 0))

    expired = Record(r.OffsetCommitKey("g", "orders", 0), None)
    records = [
        *logged(1_000, committed(1, 7), committed(0, 5), committed(1, 8)),
        *logged(2_000, committed(0, 6)),
        *logged(3_000, expired),
    ]
    rows = [row for row in GroupLog("g", name_of).take(records) if row.kind == RowKind.COMMIT]
    assert [(row.t_us, row.detail, parts(row)) for row in rows] == [
        (0, "orders-0:5 orders-1:8", [0, 1]),
        (1_000_000, "orders-0:6", [0]),
    ]


def generation(number: int, **held: list[int]) -> Record:
    members = tuple(
        r.GroupMetadataMember(
            name,
            None,
            name,
            "/h",
            1,
            1,
            b"",
            write_assignment(ConsumerProtocolAssignment(partitions={"orders": numbers})),  # type: ignore[dict-item]
        )
        for name, numbers in held.items()
    )
    value = r.GroupMetadataValue("consumer", number, "range" if held else None, None, 0, members)
    return Record(r.GroupMetadataKey("g"), value)


def test_a_classic_group_is_told_by_its_generations() -> None:
    records = [
        *logged(1_000, generation(1, A=[0, 1])),
        *logged(2_000, generation(2, A=[0], B=[1])),
        *logged(3_000, generation(3)),
        *logged(4_000, Record(r.GroupMetadataKey("g"), None)),
    ]
    rows = GroupLog("g", name_of).take(records)
    assert [each for each in told(rows) if each[1].startswith("group.")] == [
        (0, "group.epoch", "", ">Stable"),
        (0, "group.target", "", ""),
        (0, "group.state", "", ">Stable"),
        (1_000, "group.epoch", "", ">Stable"),
        (1_000, "group.target", "", ""),
        (2_000, "group.epoch", "", ">Empty"),
        (2_000, "group.target", "", ""),
        (2_000, "group.state", "", "Stable>Empty"),
        (3_000, "group.state", "", "Empty>Dead"),
    ]
    moved = [
        (row.t_us, row.actor, row.detail, parts(row)) for row in rows if row.kind == RowKind.CALLBACK_END
    ]
    assert moved == [
        (0, "A", "assigned", [0, 1]),
        (1_000_000, "A", "taken", [1]),
        (1_000_000, "B", "assigned", [1]),
    ]
    assert [row.actor for row in rows if row.kind == RowKind.MEMBER_REMOVED] == ["A", "B"]


def views_of(records: list[LogRecord]) -> tuple[list[Any], list[Any]]:
    """Rebalances and handovers, as the analyses find them in the rows of these records."""
    with rows_of_task() as connection:
        take_rows(connection, table_of(GroupLog("g", name_of).take(records)).to_reader())
        views = RunViews(connection)
        rebalances, handovers = views.view("rebalance"), views.view("handover")
    columns = ("cause", "settled", "seconds", "heartbeats", "bytes", "forms")
    found = sorted(rebalances.to_pylist(), key=lambda each: each["begin_seq"])
    given = sorted(handovers.to_pylist(), key=lambda each: (each["from_us"], each["partition"]))
    return (
        [tuple(each[name] for name in columns) for each in found],
        [
            (each["from_us"] // 1_000, each["partition"], each["actor"], each["cause"], each["gap_us"])
            for each in given
        ],
    )


def test_what_a_log_does_not_tell_has_no_length() -> None:
    rebalances, handovers = views_of(story())
    assert rebalances == [
        ("join", "Stable", 0.0, None, None, True),
        ("join", "Stable", 1.2, None, None, False),
        ("gone", "Stable", 0.1, None, None, False),
    ]
    assert handovers == [
        (0, 0, "A", None, None),
        (0, 1, "A", None, None),
        (2_200, 1, "B", "revoked", 700_000),
        (4_100, 0, "B", "gone", None),  # A left, or read nothing for a whole session before
    ]


def test_generations_tell_only_what_was_released_in_an_earlier_one() -> None:
    records = [
        *logged(1_000, generation(1, A=[0, 1], B=[2])),
        *logged(2_000, generation(2, A=[0], B=[2], C=[])),
        *logged(2_500, generation(3, A=[0], B=[2], C=[1])),  # A revoked 1 in generation 2
        *logged(3_000, generation(4, A=[0], C=[2, 1])),  # B died some time before
        *logged(4_000, generation(5, A=[1], C=[2, 0])),  # all gave up everything, some time before
        *logged(5_000, generation(6, A=[1], C=[2, 0])),
    ]
    rebalances, handovers = views_of(records)
    assert [(cause, seconds, forms) for cause, _, seconds, _, _, forms in rebalances] == [
        ("generation: joined", None, True),
        ("generation: joined", None, False),
        ("generation: same members", None, False),
        ("generation: gone", None, False),
        ("generation: same members", None, False),
        ("generation: same members", None, False),
    ]
    assert handovers[3:] == [
        (1_500, 1, "C", "revoked", 500_000),
        (2_000, 2, "C", "gone", None),
        (3_000, 0, "C", "taken", None),
        (3_000, 1, "A", "taken", None),
    ]


def test_a_static_member_that_is_away_has_released_its_partitions() -> None:
    records = [
        *logged(1_000, member("A"), epoch(1), target(1), placed("A", 1, STABLE, (0, 1))),
        *logged(5_000, placed("A", -2, STABLE, (0, 1))),
        *logged(9_000, *removed("A"), member("B"), placed("B", 1, STABLE, (0, 1))),
    ]
    _, handovers = views_of(records)
    assert handovers[2:] == [(8_000, 0, "B", "revoked", 4_000_000), (8_000, 1, "B", "revoked", 4_000_000)]


def test_a_member_has_its_client_s_name_and_a_run_the_time_of_the_clock() -> None:
    info = r.ConsumerGroupMemberMetadataValue(None, None, "shop", "/h", ("orders",), None, 1_000, None)
    key = r.ConsumerGroupMemberMetadataKey("g", "A")
    records = logged(1_700_000_000_000, Record(key, info), placed("A", 1, STABLE, (0,)))
    rows = GroupLog("g", name_of).take(records)
    assert {row.actor for row in rows if row.actor} == {"shop-A"}
    assert rows[0].detail == "g - - 2023-11-14T22:13:20.000Z"
    with rows_of_task() as connection:
        take_rows(connection, table_of(rows).to_reader())
        (traced,) = RunViews(connection).view("traced").to_pylist()
    assert traced["began_at"] == datetime.datetime.fromisoformat("2023-11-14T22:13:20")
    assert (traced["scenario"], traced["violations"]) == ("g", None)


def test_a_streams_group_is_told_by_its_tasks() -> None:
    info = s.StreamsGroupMemberMetadataValue(None, None, "c", "/h", 1, 0, "p")
    held = s.StreamsGroupCurrentMemberAssignmentValue(1, 0, 0, Tasks({"0": (0, 1)}))
    records = logged(
        1_000,
        Record(s.StreamsGroupMemberMetadataKey("g", "A"), info),
        Record(s.StreamsGroupMetadataKey("g"), s.StreamsGroupMetadataValue(1)),
        Record(
            s.StreamsGroupTargetAssignmentMetadataKey("g"), s.StreamsGroupTargetAssignmentMetadataValue(1)
        ),
        Record(s.StreamsGroupCurrentMemberAssignmentKey("g", "A"), held),
    )
    rows = GroupLog("g", name_of).take(records)
    (given,) = (row for row in rows if row.kind == RowKind.CALLBACK_END)
    assert given.partitions == (TopicPartition("0", 0), TopicPartition("0", 1))
    assert [row.state_to for row in rows if row.kind == RowKind.GROUP_STATE] == ["Stable"]


def test_what_compaction_left_is_told_as_far_as_it_goes() -> None:
    records = [
        LogRecord(900, b"\x00\x08\x00\x01g\x00\x01Z", None),
        *logged(
            1_000, placed("A", 4, STABLE, (0,)), Record(r.ConsumerGroupMemberMetadataKey("g", "X"), None)
        ),
        *logged(500, target(4), epoch(4)),
    ]
    rows = GroupLog("g", lambda topic_id: topic_id).take(records)
    assert [row.state_to for row in rows if row.kind == RowKind.GROUP_STATE] == ["Stable"]
    assert rows[-1].t_us == 100_000, "time does not go back, whatever a broker's clock does"
    (given,) = (row for row in rows if row.kind == RowKind.CALLBACK_END)
    assert given.partitions == (TopicPartition(ORDERS, 0),), "the topic is gone: its id is all there is"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"", b""),
        (b"\x00", None),
        (b"\x00\x03\x00\x01g", b"\x00\x00"),
        (b"\x7f\xff", b"\x00\x00"),
    ],
)
def test_what_is_no_record_is_counted(key: bytes | None, value: bytes | None) -> None:
    log = GroupLog("g", name_of)
    assert log.take([LogRecord(1, key, value)]) == []
    assert log.unreadable == 1


def test_tombstones_of_what_is_not_told_are_no_news() -> None:
    log = GroupLog("g", name_of)
    partition_metadata = b"\x00\x04\x00\x01g"
    assert log.take([LogRecord(1, partition_metadata, None)]) == []
    assert log.unreadable == 0
    assert log.take([LogRecord(1, partition_metadata, b"\x00\x00\x01\x00")]) == []
    assert log.unreadable == 1
