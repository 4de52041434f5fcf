"""What `fail_next` answers, over sockets: each API that is spoken has its error where clients look for it."""

from __future__ import annotations

import dataclasses
import datetime
import io
import struct
import sys
import time
import types
import typing
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey
from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from fencepost.coordinator.server.turns import WORK_PER_TURN
from tests.kio_objects import milliseconds
from tests.unit.simulation.faulty_places import EMBEDDED, PLACES, faulty
from tests.unit.simulation.wire_member import WireMember

ERROR = "KAFKA_STORAGE_ERROR"
GROUP_FIRST = {
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, range(1)),
    (ApiKey.OFFSET_FETCH, range(2, 8)),
    (ApiKey.OFFSET_DELETE, range(1)),
    (ApiKey.LEAVE_GROUP, range(3, 6)),
}
"""Answers with one error for the group besides those of its parts: what is wrong with the group is there."""


class Client(WireMember):
    """One connection that speaks kio's messages."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers, "g", "me")

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:  # type: ignore[override]
        """The answer to a request that has these fields and others; EOFError if it hangs up instead."""
        schema = load_request_schema(key, version)
        if key == ApiKey.FETCH and version >= 7:  # else it would forget what it names
            fields = {"forgotten_topics_data": ()} | fields
        body = io.BytesIO()
        entity_writer(schema)(body, sample(schema, **fields))
        head = struct.pack(">hhih", key, version, next(self._numbers), 2) + b"me"
        frame = head + (b"\0" if schema.__flexible__ else b"") + body.getvalue()
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        kind = load_response_schema(key, version)
        flexible = kind.__flexible__ and key != ApiKey.API_VERSIONS
        return entity_reader(kind)(self.frame(), 5 if flexible else 4)[0]


def sample(kind: Any, **fields: Any) -> Any:
    """A message of kio's with one of everything, but for these fields."""
    if not dataclasses.is_dataclass(kind):
        return _value(kind)
    hints = typing.get_type_hints(kind)
    given = {field.name: _value(hints[field.name]) for field in dataclasses.fields(kind)}
    return kind(**{**given, **fields})  # type: ignore[operator]


def _value(hint: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        return (sample(typing.get_args(hint)[0]),)
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        return _value(next(each for each in typing.get_args(hint) if each is not types.NoneType))
    if dataclasses.is_dataclass(hint):
        return sample(hint)
    if issubclass(hint, bool):
        return False
    if issubclass(hint, str):
        return hint("t")
    if issubclass(hint, uuid.UUID):
        return uuid.UUID(int=3)
    if issubclass(hint, datetime.timedelta):
        return milliseconds(100)
    if issubclass(hint, float):
        return hint(1.0)
    return hint(1) if issubclass(hint, int) else b""


def codes(entity: Any, *, inside: bool = False) -> Iterator[tuple[bool, str]]:
    """The errors of an answer, each with whether it is that of a part."""
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if field.name in {"error_code", "partition_error_code"}:
            yield inside, value.name.upper()
        elif isinstance(value, tuple):
            for each in filter(dataclasses.is_dataclass, value):
                yield from codes(each, inside=True)


def has_errors_in_parts(key: int, version: int) -> bool:
    module = sys.modules[load_response_schema(key, version).__module__]
    kinds = [each for each in vars(module).values() if dataclasses.is_dataclass(each)]
    names = {
        field.name
        for kind in kinds
        if kind is not load_response_schema(key, version) and kind.__module__ == module.__name__
        for field in dataclasses.fields(kind)
    }
    return bool(names & {"error_code", "partition_error_code"})


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def kafka(place: str) -> Iterator[EmbeddedKafka]:
    with faulty(place, topics={"t": 2}, auto_create_topics=True) as running:
        yield running


@pytest.fixture
def client(kafka: EmbeddedKafka) -> Iterator[Client]:
    one = Client(kafka.bootstrap_servers)
    yield one
    one.close()
    kafka.remove_faults()


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_the_error_is_in_each_part_of_the_answer(
    kafka: EmbeddedKafka, client: Client, place: str, key: ApiKey
) -> None:
    api = REGISTRY[key]
    acks = {"acks": -1} if key is ApiKey.PRODUCE else {}
    is_unread = place == "proxy" and key is ApiKey.SASL_HANDSHAKE  # bare tokens follow version 0
    for version in range(api.min_version + is_unread, api.max_version + 1):
        kafka.fail_next(key, ERROR)
        answer = client.ask(key, version, **acks)
        top = [code for inside, code in codes(answer) if not inside]
        parts = [code for inside, code in codes(answer) if inside]
        at_the_top = any(key is each and version in versions for each, versions in GROUP_FIRST)
        if has_errors_in_parts(key, version) and not at_the_top:
            assert parts, f"version {version} has no parts: {answer}"
            assert set(parts) == {ERROR}, f"version {version}: {answer}"
        else:
            assert (top, parts) == ([ERROR], []), f"version {version}: {answer}"
    assert set(kafka.topics()) == {"t"}, "nothing else was done"


@pytest.mark.parametrize(
    ("key", "version", "error", "options"),
    [
        (ApiKey.OFFSET_FETCH, 1, "NOT_COORDINATOR", {}),
        (ApiKey.OFFSET_FETCH, 5, "UNSTABLE_OFFSET_COMMIT", {}),
        (ApiKey.OFFSET_DELETE, 0, "GROUP_SUBSCRIBED_TO_TOPIC", {}),
        (ApiKey.LEAVE_GROUP, 3, "UNKNOWN_MEMBER_ID", {}),
        (ApiKey.FETCH, 4, "FETCH_SESSION_ID_NOT_FOUND", {}),
        (ApiKey.FETCH, 12, "OFFSET_OUT_OF_RANGE", {}),
        (ApiKey.DESCRIBE_LOG_DIRS, 2, "CLUSTER_AUTHORIZATION_FAILED", {}),
        # Errors of the whole, which may be put into each element.
        (ApiKey.OFFSET_FETCH, 5, "NOT_COORDINATOR", {"at_top": False}),
        (ApiKey.OFFSET_FETCH, 8, "NOT_COORDINATOR", {"at_top": False}),
        (ApiKey.OFFSET_DELETE, 0, "GROUP_ID_NOT_FOUND", {"at_top": False}),
        (ApiKey.LEAVE_GROUP, 5, "NOT_COORDINATOR", {"at_top": False}),
        (ApiKey.FETCH, 12, "FETCH_SESSION_ID_NOT_FOUND", {"at_top": False}),
        (ApiKey.DESCRIBE_LOG_DIRS, 4, "CLUSTER_AUTHORIZATION_FAILED", {"at_top": False}),
    ],
)
def test_what_is_wrong_with_a_part_is_not_told_of_the_whole(
    kafka: EmbeddedKafka, client: Client, key: ApiKey, version: int, error: str, options: dict[str, bool]
) -> None:
    kafka.add_fault("error", key, error=error, **options)
    found = list(codes(client.ask(key, version)))
    assert (True, error) in found
    assert {code for inside, code in found if not inside} <= {"NONE"}


@pytest.mark.parametrize(
    ("key", "version", "error"),
    [
        (ApiKey.OFFSET_DELETE, 0, "GROUP_ID_NOT_FOUND"),
        (ApiKey.LEAVE_GROUP, 2, "UNKNOWN_MEMBER_ID"),
        (ApiKey.FETCH, 7, "INVALID_FETCH_SESSION_EPOCH"),
        (ApiKey.FETCH, 18, "FETCH_SESSION_ID_NOT_FOUND"),
        (ApiKey.HEARTBEAT, 4, "COORDINATOR_LOAD_IN_PROGRESS"),
        (ApiKey.DESCRIBE_LOG_DIRS, 3, "CLUSTER_AUTHORIZATION_FAILED"),
    ],
)
def test_what_is_wrong_with_the_whole_is_told_once(
    kafka: EmbeddedKafka, client: Client, key: ApiKey, version: int, error: str
) -> None:
    kafka.fail_next(key, error)
    assert list(codes(client.ask(key, version))) == [(False, error)]


def fetch(kafka: EmbeddedKafka, client: Client, session: tuple[int, int], *partitions: int) -> Any:
    """Fetch version 17 from the topic's beginning, in a session of that id and epoch."""
    module = sys.modules[load_request_schema(ApiKey.FETCH, 17).__module__]
    wanted = tuple(
        sample(
            module.FetchPartition,
            partition=number,
            current_leader_epoch=-1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            partition_max_bytes=1000,
        )
        for number in partitions
    )
    brokers = getattr(kafka, "behind", kafka).endpoint.brokers
    topic_id = uuid_from_topic_id(brokers.cluster.image.by_name["t"].topic_id)
    topics = (sample(module.FetchTopic, topic_id=topic_id, partitions=wanted),) if wanted else ()
    return client.ask(
        ApiKey.FETCH,
        17,
        max_wait=milliseconds(0),
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=(),
    )


def errors(answer: Any) -> dict[int, str]:
    (topic,) = answer.responses
    return {one.partition_index: one.error_code.name for one in topic.partitions}


@EMBEDDED
def test_a_fetch_that_names_no_partitions_fails_for_those_of_its_session(
    kafka: EmbeddedKafka, client: Client
) -> None:
    session_id = fetch(kafka, client, (0, 0), 0, 1).session_id
    assert session_id
    assert fetch(kafka, client, (session_id, 1)).responses == ()
    kafka.fail_next("Fetch", "OFFSET_OUT_OF_RANGE")
    failed = fetch(kafka, client, (session_id, 2))
    assert (failed.session_id, failed.error_code.name) == (session_id, "none")
    assert errors(failed) == {0: "offset_out_of_range", 1: "offset_out_of_range"}
    after = fetch(kafka, client, (session_id, 3))
    assert after.error_code.name == "none", "the session goes on"
    assert errors(after) == {0: "none", 1: "none"}


@pytest.mark.parametrize("place", ["proxy"], scope="module")
def test_a_proxy_ends_the_session_of_a_fetch_that_fails(kafka: EmbeddedKafka, client: Client) -> None:
    session_id = fetch(kafka, client, (0, 0), 0, 1).session_id
    kafka.fail_next("Fetch", "OFFSET_OUT_OF_RANGE")
    failed = fetch(kafka, client, (session_id, 1))
    assert (failed.session_id, failed.error_code.name) == (0, "none")
    assert errors(failed) == {0: "offset_out_of_range", 1: "offset_out_of_range"}
    assert fetch(kafka, client, (0, 0), 0, 1).error_code.name == "none"


@EMBEDDED
def test_a_session_may_begin_with_errors(kafka: EmbeddedKafka, client: Client) -> None:
    kafka.fail_next("Fetch", "NOT_LEADER_OR_FOLLOWER")
    failed = fetch(kafka, client, (0, 0), 1)
    assert errors(failed) == {1: "not_leader_or_follower"}
    assert errors(fetch(kafka, client, (failed.session_id, 1))) == {1: "none"}


@pytest.mark.parametrize("session", [(12_345, 7), (0, -1)], ids=["unknown session", "no session"])
def test_a_fetch_of_nothing_at_all_fails_at_the_top(
    kafka: EmbeddedKafka, client: Client, session: tuple[int, int]
) -> None:
    kafka.fail_next("Fetch", "OFFSET_OUT_OF_RANGE")
    failed = fetch(kafka, client, session)
    assert (failed.error_code.name, failed.responses) == ("offset_out_of_range", ())


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (ApiKey.PRODUCE, 9, {"acks": 0}),
        (ApiKey.FETCH, 4, {"topics": ()}),
        (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ()}),
        (ApiKey.DELETE_RECORDS, 2, {"topics": ()}),
    ],
)
def test_where_an_answer_has_no_place_for_it_the_connection_ends(
    kafka: EmbeddedKafka, client: Client, key: ApiKey, version: int, fields: dict[str, Any]
) -> None:
    kafka.fail_next(key, ERROR)
    with pytest.raises((EOFError, ConnectionResetError)):
        client.ask(key, version, **fields)


def test_metadata_of_topics_fails_and_creates_none(kafka: EmbeddedKafka, client: Client) -> None:
    kafka.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
    brokers = client.ask(ApiKey.METADATA, 9, topics=())
    assert brokers.topics == ()
    assert len(brokers.brokers) == 1, "what asks for no topics is passed over"
    answer = client.ask(ApiKey.METADATA, 9, topics=None)
    assert [(each.name, each.error_code.name) for each in answer.topics] == [("t", "leader_not_available")]
    assert len(answer.brokers) == 1
    kafka.fail_next("Metadata", "UNKNOWN_TOPIC_OR_PARTITION")
    module = sys.modules[load_request_schema(ApiKey.METADATA, 9).__module__]
    new = sample(module.MetadataRequestTopic, name="new")
    answer = client.ask(ApiKey.METADATA, 9, topics=(new,), allow_auto_topic_creation=True)
    assert [each.error_code.name for each in answer.topics] == ["unknown_topic_or_partition"]
    assert "new" not in kafka.topics()


def test_metadata_that_takes_some_turns_of_the_loop_fails_too() -> None:
    with EmbeddedKafka(topics={"t": 1, "large": 2 * WORK_PER_TURN}) as kafka:
        client = Client(kafka.bootstrap_servers)
        kafka.fail_next("Metadata", "LEADER_NOT_AVAILABLE")
        failed = client.ask(ApiKey.METADATA, 9, topics=None)
        assert [each.error_code.name for each in failed.topics] == ["leader_not_available"] * 2
        kafka.delay("Metadata", 0.01)
        (large, _) = client.ask(ApiKey.METADATA, 9, topics=None).topics
        assert len(large.partitions) == 2 * WORK_PER_TURN
        client.close()


def test_an_answer_that_is_known_by_heart_fails_as_well_and_is_right_again(
    kafka: EmbeddedKafka, client: Client
) -> None:
    first = [client.ask(ApiKey.METADATA, 9, topics=None) for _ in range(2)]
    assert first[0] == first[1]
    kafka.fail_next("Metadata", "LEADER_NOT_AVAILABLE", times=2)
    for _ in range(2):
        failed = client.ask(ApiKey.METADATA, 9, topics=None)
        assert [each.error_code.name for each in failed.topics] == ["leader_not_available"]
    assert kafka.unmet() == []
    assert client.ask(ApiKey.METADATA, 9, topics=None) == first[0]
    kafka.delay("Metadata", 0.05)
    began = time.monotonic()
    assert client.ask(ApiKey.METADATA, 9, topics=None) == first[0]
    assert time.monotonic() - began >= 0.05
    kafka.delay("Metadata", 0)
    kafka.create_topic("late", 1)
    assert len(client.ask(ApiKey.METADATA, 9, topics=None).topics) == 2
