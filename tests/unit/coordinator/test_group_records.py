"""Records as Kafka 4.3.1 wrote them, against what Kafka's own reader makes of the same bytes.

`tests/vectors/group_records.jsonl`: the records of a real run (joins, a static member, an expression, leaves,
a deleted group, a classic group), then one of each version that Kafka's writer still knows.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fencepost.coordinator.codec.fields import RecordForm
from fencepost.coordinator.codec.group_records import (
    _TYPES,
    MalformedRecord,
    OpaqueRecord,
    decode_record,
    encode_record,
)
from fencepost.coordinator.codec.reader import entity_reader
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol import streams_records as sr
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.streams import Tasks

VECTORS = Path(__file__).parents[2] / "vectors" / "group_records.jsonl"
LINES = [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]
KINDS = {
    0: r.OffsetCommitKey,
    1: r.OffsetCommitKey,
    2: r.GroupMetadataKey,
    3: r.ConsumerGroupMetadataKey,
    5: r.ConsumerGroupMemberMetadataKey,
    6: r.ConsumerGroupTargetAssignmentMetadataKey,
    7: r.ConsumerGroupTargetAssignmentMemberKey,
    8: r.ConsumerGroupCurrentMemberAssignmentKey,
    16: r.ConsumerGroupRegularExpressionKey,
    17: sr.StreamsGroupMetadataKey,
    19: sr.StreamsGroupMemberMetadataKey,
    20: sr.StreamsGroupTargetAssignmentMetadataKey,
    21: sr.StreamsGroupTargetAssignmentMemberKey,
    22: sr.StreamsGroupCurrentMemberAssignmentKey,
    23: sr.StreamsGroupTopologyKey,
}
RENAMED = {
    "groupInstanceId": "instance_id",
    "classicMemberMetadata": "classic",
    "assignedPartitions": "assigned",
    "partitionsPendingRevocation": "pending_revocation",
    "version": "image_version",
    **{
        name: f"{re.sub(r'(?=[A-Z])', '_', name).lower()}_ms"
        for name in (
            *("timestamp", "commitTimestamp", "expireTimestamp", "currentStateTimestamp"),
            *("assignmentTimestamp", "rebalanceTimeout", "sessionTimeout"),
        )
    },
}
"""Names that we have other words for, or with their units."""
WRITTEN = {1: {1, 4}, 2: {3}, **{kind: {0} for kind in (3, 5, 6, 7, 8, 16, 17, 19, 20, 21, 22, 23)}}
"""The versions that a broker of 4.3.1 writes, by type."""


def data(line: dict[str, Any]) -> tuple[bytes, bytes | None]:
    value = line["value"]
    return bytes.fromhex(line["key"]), None if value is None else bytes.fromhex(value)


def own_name(kafka: str) -> str:
    """Our name of a field, in Kafka's schema of the record too."""
    return RENAMED.get(kafka) or re.sub(r"(?=[A-Z])", "_", kafka).lower()


def check_fields(form: RecordForm, read: dict[str, Any], kafka: dict[str, Any]) -> None:
    """All fields of a value have what Kafka's reader found; a tagged one may be left out by either."""
    theirs = {own_name(name): value for name, value in kafka.items()}
    assert theirs.keys() <= {field.name for field in form.fields}
    for field in form.fields:
        ours = read.get(field.name, field.default)
        other = theirs.get(field.name, field.default)
        if field.struct is not None and other and ours:
            for one, its in zip(
                *((each if field.is_array else [each]) for each in (ours, other)), strict=True
            ):
                check_fields(field.struct, one, its)
        elif field.kafka_type == "bytes":
            assert base64.b64encode(ours).decode() == other, field
        else:
            assert ours == other, field


def check_older(value: Any, kafka: dict[str, Any]) -> None:
    """Compare the fields that older versions lack: there they have defaults."""
    if isinstance(value, r.OffsetCommitValue):
        assert value.leader_epoch == kafka.get("leaderEpoch", -1)
        assert value.expire_timestamp_ms == kafka.get("expireTimestamp", -1)
        assert value.topic_id == kafka.get("topicId")
    elif isinstance(value, r.GroupMetadataValue):
        assert value.current_state_timestamp_ms == kafka.get("currentStateTimestamp", -1)
        for member, theirs in zip(value.members, kafka["members"], strict=True):
            assert member.instance_id == theirs.get("groupInstanceId")
            assert member.rebalance_timeout_ms == theirs.get("rebalanceTimeout", theirs["sessionTimeout"])


def check_held(value: Any, kafka: dict[str, Any]) -> None:
    """Partitions and tasks have a form of their own in our values, which `check_fields` does not see."""
    active = kafka.get("activeTasks", []) + kafka.get("activeTasksPendingRevocation", [])
    match value:
        case r.ConsumerGroupCurrentMemberAssignmentValue():
            assert value.assigned == by_key(kafka["assignedPartitions"])
            assert value.pending_revocation == by_key(kafka["partitionsPendingRevocation"])
            active = kafka["assignedPartitions"] + kafka["partitionsPendingRevocation"]
        case sr.StreamsGroupTargetAssignmentMemberValue():
            assert value.tasks == roles(kafka)
            return
        case sr.StreamsGroupCurrentMemberAssignmentValue():
            assert value.assigned == roles(kafka)
            assert value.pending_revocation == roles(kafka, "PendingRevocation")
        case _:
            return
    epochs: dict[str, dict[int, int]] = {}
    for each in active:
        if (since := each.get("assignmentEpochs")) is not None:
            epochs.setdefault(key_of(each), {}).update(zip(each["partitions"], since, strict=True))
    assert value.assignment_epochs == {key: known for key, known in epochs.items() if known}


def key_of(entry: dict[str, Any]) -> str:
    return str(entry.get("topicId") or entry["subtopologyId"])


def by_key(entries: list[dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    return {key_of(each): tuple(sorted(each["partitions"])) for each in entries}


def roles(kafka: dict[str, Any], suffix: str = "") -> Tasks:
    return Tasks(*(by_key(kafka[f"{role}Tasks{suffix}"]) for role in ("active", "standby", "warmup")))


def test_it_reads_what_kafka_reads() -> None:
    for line in LINES:
        _check_line(line)


def _check_line(line: dict[str, Any]) -> None:
    kafka = line["kafka"]
    record = decode_record(*data(line))
    if kafka["type"] not in KINDS:
        key = kafka["key"]
        assert isinstance(record, OpaqueRecord)
        assert (record.record_type, record.version) == (kafka["type"], kafka.get("version"))
        assert record.group_id == key["groupId"]
        return
    assert isinstance(record, Record)
    assert type(record.key) is KINDS[kafka["type"]]
    assert [getattr(record.key, field) for field in record.key.__struct_fields__] == [*kafka["key"].values()]
    assert (record.value is None) == (kafka["value"] is None)
    if record.value is not None:
        form = _TYPES[kafka["type"]].value_schema.at(kafka["version"])
        read, _ = entity_reader(form)(data(line)[1] or b"", 2)
        check_fields(form, read, kafka["value"])
        check_older(record.value, kafka["value"])
        check_held(record.value, kafka["value"])


def test_it_writes_what_a_broker_writes() -> None:
    lines = [
        line
        for line in LINES
        if line["kafka"].get("version", min(WRITTEN.get(line["kafka"]["type"], {-1})))
        in WRITTEN.get(line["kafka"]["type"], ())
    ]
    assert len(lines) > 50
    for line in lines:
        record = decode_record(*data(line))
        assert isinstance(record, Record), line
        key, value = encode_record(record)
        assert key == data(line)[0], line
        assert sorted(value or b"") == sorted(data(line)[1] or b""), (
            line
        )  # a broker's sets have orders of their own
        assert decode_record(key, value) == record, line


def test_every_type_and_version_is_among_the_vectors() -> None:
    seen = {(line["kafka"]["type"], line["kafka"]["version"]) for line in LINES if line["value"] is not None}
    assert seen >= {(1, version) for version in range(5)} | {(2, version) for version in range(5)}
    assert seen >= {(kind, 0) for kind in KINDS}
    assert {line["kafka"]["type"] for line in LINES if line["value"] is None} >= {1, 3, 4, 5, 6, 7, 8, 16}


def test_what_is_newer_comes_back_as_it_is() -> None:
    assert decode_record(b"\x03\xe7more", b"\x00\x00x") == OpaqueRecord(
        999, 0, None, b"\x03\xe7more", b"\x00\x00x"
    )
    key = encode_record(Record(r.ConsumerGroupMetadataKey("g"), None))[0]
    assert decode_record(key, b"\x00\x01new") == OpaqueRecord(3, 1, "g", key, b"\x00\x01new")


def test_tags_of_later_versions_are_passed_over() -> None:
    record = Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(5))
    key, value = encode_record(record)
    assert value is not None
    assert decode_record(key, value[:-1] + b"\x01\x07\x02ab") == record


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, None, "record type"),
        (b"\x00", None, "record type"),
        (b"\x00\x03\x00\x05ab", None, "key of type 3"),
        (b"\x00\x03\x00\x01gX", None, "key of type 3 has 5 bytes"),
        (b"\x00\x0b\x00\x05ab", None, "key of type 11"),
        (b"\x00\x03\x00\x01g", b"\x00", "version"),
        (b"\x00\x03\x00\x01g", b"\x00\x00\x00\x00", "value of type 3"),
        (b"\x00\x03\x00\x01g", b"\x00\x00\x00\x00\x00\x05\x00\x00", "has 7 bytes, 8 are there"),
        (b"\x00\x05\x00\x01g\x00\x01m", b"\x00\x00\x00\x00\x02c\x02h\x01\x01\x00\x00\x00\x01", "type 5"),
    ],
)
def test_malformed_bytes_are_named(key: bytes | None, value: bytes | None, why: str) -> None:
    with pytest.raises(MalformedRecord, match=why):
        decode_record(key, value)


def test_epochs_that_do_not_fit_their_partitions_are_malformed() -> None:
    current = r.ConsumerGroupCurrentMemberAssignmentValue(
        3, 2, 0, {"Qrl94gisRa6Dob-bDfRD8g": (0, 1)}, {}, {"Qrl94gisRa6Dob-bDfRD8g": {0: 1, 1: 2}}
    )
    key, value = encode_record(Record(r.ConsumerGroupCurrentMemberAssignmentKey("g", "m"), current))
    assert value is not None
    two = b"\x09\x03\x00\x00\x00\x01\x00\x00\x00\x02"
    assert two in value
    with pytest.raises(MalformedRecord, match="2 partitions with 1 assignment epochs"):
        decode_record(key, value.replace(two, b"\x05\x02\x00\x00\x00\x01"))


def test_a_key_that_is_too_long_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="longer"):
        encode_record(Record(r.ConsumerGroupMetadataKey("g" * 32_768), None))
