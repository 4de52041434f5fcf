"""Records as Kafka 4.3.1 wrote them, against what Kafka's own reader makes of the same bytes.

`tests/vectors/group_records.jsonl`: the records of a real run (joins, a static member, an expression, leaves,
a deleted group, a classic group), then one of each version that Kafka's writer still knows.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from fencepost.coordinator.codec.group_records import (
    MalformedRecord,
    OpaqueRecord,
    decode_record,
    encode_record,
)
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol import streams as t
from fencepost.coordinator.protocol import streams_records as sr
from fencepost.coordinator.protocol.records import Record

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
WRITTEN = {1: {1, 4}, 2: {3}, **{kind: {0} for kind in (3, 5, 6, 7, 8, 16, 17, 19, 20, 21, 22, 23)}}
"""The versions that a broker of 4.3.1 writes, by type."""


def data(line: dict[str, Any]) -> tuple[bytes, bytes | None]:
    value = line["value"]
    return bytes.fromhex(line["key"]), None if value is None else bytes.fromhex(value)


def text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def pairs(topics: Any) -> set[tuple[str, int]]:
    return {(topic["topicId"], number) for topic in topics for number in topic["partitions"]}


def held(partitions: Any) -> set[tuple[str, int]]:
    return {(topic_id, number) for topic_id, numbers in partitions.items() for number in numbers}


def check_offset(value: r.OffsetCommitValue, kafka: Any) -> None:
    assert value.offset == kafka["offset"]
    assert value.metadata == kafka["metadata"]
    assert value.commit_timestamp_ms == kafka["commitTimestamp"]
    assert value.leader_epoch == kafka.get("leaderEpoch", -1)
    assert value.expire_timestamp_ms == kafka.get("expireTimestamp", -1)
    assert value.topic_id == kafka.get("topicId")


def check_classic(value: r.GroupMetadataValue, kafka: Any) -> None:
    assert value.protocol_type == kafka["protocolType"]
    assert (value.generation, value.protocol, value.leader) == (
        kafka["generation"],
        kafka["protocol"],
        kafka["leader"],
    )
    assert value.current_state_timestamp_ms == kafka.get("currentStateTimestamp", -1)
    for member, theirs in zip(value.members, kafka["members"], strict=True):
        assert member.member_id == theirs["memberId"]
        assert member.instance_id == theirs.get("groupInstanceId")
        assert (member.client_id, member.client_host) == (theirs["clientId"], theirs["clientHost"])
        assert member.session_timeout_ms == theirs["sessionTimeout"]
        assert member.rebalance_timeout_ms == theirs.get("rebalanceTimeout", theirs["sessionTimeout"])
        assert text(member.subscription) == theirs["subscription"]
        assert text(member.assignment) == theirs["assignment"]


def check_member(value: r.ConsumerGroupMemberMetadataValue, kafka: Any) -> None:
    assert (value.instance_id, value.rack_id) == (kafka["instanceId"], kafka["rackId"])
    assert (value.client_id, value.client_host) == (kafka["clientId"], kafka["clientHost"])
    assert list(value.subscribed_topic_names) == kafka["subscribedTopicNames"]
    assert value.subscribed_topic_regex == kafka["subscribedTopicRegex"]
    assert value.rebalance_timeout_ms == kafka["rebalanceTimeoutMs"]
    assert value.server_assignor == kafka["serverAssignor"]
    classic = kafka["classicMemberMetadata"]
    assert (value.classic is None) == (classic is None)
    if value.classic is not None:
        assert value.classic.session_timeout_ms == classic["sessionTimeoutMs"]
        assert [(name, text(raw)) for name, raw in value.classic.supported_protocols] == [
            (each["name"], each["metadata"]) for each in classic["supportedProtocols"]
        ]


def check_current(value: r.ConsumerGroupCurrentMemberAssignmentValue, kafka: Any) -> None:
    assert value.member_epoch == kafka["memberEpoch"]
    assert value.previous_member_epoch == kafka["previousMemberEpoch"]
    assert value.state == kafka["state"]
    assert held(value.assigned) == pairs(kafka["assignedPartitions"])
    assert held(value.pending_revocation) == pairs(kafka["partitionsPendingRevocation"])
    epochs = {
        (topic["topicId"], number): epoch
        for topic in kafka["assignedPartitions"] + kafka["partitionsPendingRevocation"]
        if topic.get("assignmentEpochs") is not None
        for number, epoch in zip(topic["partitions"], topic["assignmentEpochs"], strict=True)
    }
    ours = {
        (topic_id, number): epoch
        for topic_id, of_topic in value.assignment_epochs.items()
        for number, epoch in of_topic.items()
    }
    assert ours == epochs


def check_value(value: Any, kafka: Any) -> None:
    match value:
        case r.OffsetCommitValue():
            check_offset(value, kafka)
        case r.GroupMetadataValue():
            check_classic(value, kafka)
        case r.ConsumerGroupMetadataValue():
            assert (value.epoch, value.metadata_hash) == (kafka["epoch"], kafka.get("metadataHash", 0))
        case r.ConsumerGroupMemberMetadataValue():
            check_member(value, kafka)
        case r.ConsumerGroupTargetAssignmentMetadataValue():
            assert value.assignment_epoch == kafka["assignmentEpoch"]
            assert value.assignment_timestamp_ms == kafka.get("assignmentTimestamp", 0)
        case r.ConsumerGroupTargetAssignmentMemberValue():
            assert held(value.partitions) == pairs(kafka["topicPartitions"])
        case r.ConsumerGroupCurrentMemberAssignmentValue():
            check_current(value, kafka)
        case r.ConsumerGroupRegularExpressionValue():
            assert list(value.topics) == kafka["topics"]
            assert (value.image_version, value.timestamp_ms) == (kafka["version"], kafka["timestamp"])
        case _:
            check_streams(value, kafka)


def named(entries: Any) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in entries or ()}


def tasks(entries: Any) -> dict[str, tuple[int, ...]]:
    return {entry["subtopologyId"]: tuple(entry["partitions"]) for entry in entries}


def roles(kafka: Any, suffix: str = "") -> t.Tasks:
    return t.Tasks(*(tasks(kafka[f"{role}Tasks{suffix}"]) for role in ("active", "standby", "warmup")))


def internal(entries: Any) -> tuple[t.TopicInfo, ...]:
    return tuple(
        t.TopicInfo(
            entry["name"],
            entry["partitions"],
            entry["replicationFactor"],
            tuple(named(entry["topicConfigs"]).items()),
        )
        for entry in entries
    )


def check_streams(value: Any, kafka: Any) -> None:
    match value:
        case sr.StreamsGroupMetadataValue():
            assert (value.epoch, value.metadata_hash) == (kafka["epoch"], kafka["metadataHash"])
            assert value.validated_topology_epoch == kafka.get("validatedTopologyEpoch", -1)
            assert value.last_assignment_configs == named(kafka.get("lastAssignmentConfigs"))
        case sr.StreamsGroupMemberMetadataValue():
            assert [value.instance_id, value.rack_id, value.client_id, value.client_host] == [
                kafka[name] for name in ("instanceId", "rackId", "clientId", "clientHost")
            ]
            assert [value.rebalance_timeout_ms, value.topology_epoch, value.process_id] == [
                kafka[name] for name in ("rebalanceTimeoutMs", "topologyEpoch", "processId")
            ]
            at = kafka["userEndpoint"]
            assert value.user_endpoint == (None if at is None else (at["host"], at["port"]))
            assert value.client_tags == named(kafka["clientTags"])
        case sr.StreamsGroupTargetAssignmentMetadataValue():
            assert value.assignment_epoch == kafka["assignmentEpoch"]
            assert value.assignment_timestamp_ms == kafka.get("assignmentTimestamp", 0)
        case sr.StreamsGroupTargetAssignmentMemberValue():
            assert value.tasks == roles(kafka)
        case sr.StreamsGroupCurrentMemberAssignmentValue():
            assert [value.member_epoch, value.previous_member_epoch, value.state] == [
                kafka[name] for name in ("memberEpoch", "previousMemberEpoch", "state")
            ]
            assert (value.assigned, value.pending_revocation) == (
                roles(kafka),
                roles(kafka, "PendingRevocation"),
            )
            epochs = {
                (entry["subtopologyId"], number): epoch
                for entry in kafka["activeTasks"] + kafka["activeTasksPendingRevocation"]
                for number, epoch in zip(entry["partitions"], entry["assignmentEpochs"], strict=True)
            }
            ours = {(one, n): e for one, known in value.assignment_epochs.items() for n, e in known.items()}
            assert ours == epochs
        case _:
            assert value.epoch == kafka["epoch"]
            for one, theirs in zip(value.subtopologies, kafka["subtopologies"], strict=True):
                assert (one.subtopology_id, list(one.source_topics)) == (
                    theirs["subtopologyId"],
                    theirs["sourceTopics"],
                )
                assert list(one.repartition_sink_topics) == theirs["repartitionSinkTopics"]
                assert one.state_changelog_topics == internal(theirs["stateChangelogTopics"])
                assert one.repartition_source_topics == internal(theirs["repartitionSourceTopics"])
                assert [
                    (list(group.source_topics), list(group.repartition_source_topics))
                    for group in one.copartition_groups
                ] == [
                    (group["sourceTopics"], group["repartitionSourceTopics"])
                    for group in theirs["copartitionGroups"]
                ]


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
        check_value(record.value, kafka["value"])


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
