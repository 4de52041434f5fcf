"""What stands between clients and brokers: rules about answers, and connections that are closed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest, MetadataRequest
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.simulation.trace.schema import RowKind
from tests.unit.simulation.faulty_places import EMBEDDED, PLACES, faulty
from tests.unit.simulation.wire_member import WireMember, kinds


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kafka(place: str) -> Iterator[EmbeddedKafka]:
    with faulty(place, topics={"orders": 4}) as running:
        yield running


def test_a_lost_response_was_carried_out(kafka: EmbeddedKafka, place: str) -> None:
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    kafka.lose_next_response("ConsumerGroupHeartbeat", "m")
    with pytest.raises(EOFError):
        one.join("orders")
    assert [each.member_id for each in kafka.group("g").members()] == ["m"]
    one.connect()
    assert one.join("orders").error_code is ErrorCode.NONE
    one.confirm()
    rows = [row.actor for row in kinds(kafka, RowKind.RESPONSE_LOST)]
    assert rows == ["m"] * (place == "embedded"), "a proxy has no trace"
    assert kafka.check() == []


def test_a_rule_is_about_one_member_and_counts(kafka: EmbeddedKafka, member: WireMember) -> None:
    other = WireMember(kafka.bootstrap_servers, "g", "other")
    kafka.fail_next(ApiKey.CONSUMER_GROUP_HEARTBEAT, "COORDINATOR_NOT_AVAILABLE", "other", times=2)
    assert member.heartbeat().error_code is ErrorCode.NONE
    assert other.join("orders").error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert other.join("orders").error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [each.member_id for each in kafka.group("g").members()] == ["m"]
    assert other.join("orders").error_code is ErrorCode.NONE


def test_rules_come_one_after_the_other(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.fail_next("FIND_COORDINATOR", ErrorCode.COORDINATOR_NOT_AVAILABLE)
    kafka.lose_next_response("FindCoordinator")
    wanted = FindCoordinatorRequest(keys=("g",))
    with pytest.raises(EOFError):
        member.ask(ApiKey.FIND_COORDINATOR, wanted)
    member.connect()
    (found,) = member.ask(ApiKey.FIND_COORDINATOR, wanted).coordinators
    assert found.error_code is ErrorCode.NONE, "both were about one request"


def test_a_request_fails_once_and_the_next_rule_waits_for_the_next(
    kafka: EmbeddedKafka, member: WireMember
) -> None:
    for error in ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_LOAD_IN_PROGRESS"):
        kafka.fail_next("ConsumerGroupHeartbeat", error)
    kafka.fail_next("ConsumerGroupHeartbeat", "UNKNOWN_SERVER_ERROR", "nobody")
    told = [member.heartbeat().error_code.name for _ in range(4)]
    assert told == ["NOT_COORDINATOR", *["COORDINATOR_LOAD_IN_PROGRESS"] * 2, "NONE"]
    kafka.lose_next_response("ConsumerGroupHeartbeat")
    kafka.lose_next_response("ConsumerGroupHeartbeat")
    for _ in range(2):
        with pytest.raises(EOFError):
            member.heartbeat()
        member.connect()
    assert member.heartbeat().error_code is ErrorCode.NONE


def test_a_delay_holds_answers_back_until_it_is_ended(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.delay("ConsumerGroupHeartbeat", 0.2, "m")
    began = time.monotonic()
    member.heartbeat()
    assert time.monotonic() - began >= 0.2
    kafka.delay("ConsumerGroupHeartbeat", 30.0, "m")
    kafka.delay("ConsumerGroupHeartbeat", 0, "m")
    assert member.heartbeat().error_code is ErrorCode.NONE


@EMBEDDED
def test_a_delay_of_nobody_in_particular_ends_for_all(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.delay("ConsumerGroupHeartbeat", 60.0, "m")
    kafka.delay("ConsumerGroupHeartbeat", 60.0)
    kafka.delay("ConsumerGroupHeartbeat", 0)
    assert member.heartbeat().error_code is ErrorCode.NONE
    delays = [row.state_to for row in kinds(kafka, RowKind.FAULT) if row.actor == "delay"]
    assert delays == ["begin", "begin", "end", "end"]


def test_what_met_no_request_is_told(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.fail_next("OffsetCommit", "NOT_COORDINATOR", "m")
    kafka.fail_next("ConsumerGroupHeartbeat", "COORDINATOR_LOAD_IN_PROGRESS", times=2)
    kafka.lose_next_response("Fetch")
    kafka.delay("Produce", 0.5, times=3)
    kafka.delay("Metadata", 0.5)
    member.heartbeat()
    assert kafka.unmet() == [
        "fail_next('OffsetCommit', 'NOT_COORDINATOR', 'm') met 0 of 1",
        "fail_next('ConsumerGroupHeartbeat', 'COORDINATOR_LOAD_IN_PROGRESS') met 1 of 2",
        "lose_next_response('Fetch') met 0 of 1",
        "delay('Produce', 0.5) met 0 of 3",
    ]
    member.heartbeat()
    assert not [each for each in kafka.unmet() if "Heartbeat" in each]


def test_a_fence_leaves_nothing_unmet(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.group("g").fence("m")
    assert kafka.unmet() == []
    assert member.heartbeat().error_code is ErrorCode.FENCED_MEMBER_EPOCH


def test_who_is_disconnected_may_come_back(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.disconnect("m")
    with pytest.raises((EOFError, OSError)):
        member.heartbeat()
    with pytest.raises(FencepostError, match="no connection of a member or client 'm' is open"):
        kafka.disconnect("m")
    member.connect()
    assert member.heartbeat().error_code is ErrorCode.NONE
    kafka.disconnect(kafka.group("g").members()[0])


@EMBEDDED
def test_who_is_disconnected_is_known_by_any_of_its_names(kafka: EmbeddedKafka, member: WireMember) -> None:
    static = WireMember(kafka.bootstrap_servers, "g", "s")
    static.join("orders", instance_id="desk")
    kafka.disconnect("desk")
    with pytest.raises((EOFError, OSError)):
        static.heartbeat()
    static.client_id = "cashier"
    static.connect()
    static.heartbeat(instance_id="desk")
    kafka.disconnect("cashier")
    with pytest.raises((EOFError, OSError)):
        static.heartbeat(instance_id="desk")
    assert [row.detail for row in kinds(kafka, RowKind.FAULT)] == ["s", "s"]
    assert member.heartbeat().error_code is ErrorCode.NONE, "the other one stays"


@EMBEDDED
def test_who_is_no_member_is_disconnected_by_its_client_id(kafka: EmbeddedKafka, member: WireMember) -> None:
    stranger = WireMember(kafka.bootstrap_servers, "g", "nobody")
    stranger.client_id, stranger.epoch = "stranger", 5
    stranger.connect()
    assert stranger.heartbeat().error_code is ErrorCode.UNKNOWN_MEMBER_ID
    kafka.disconnect("stranger")
    with pytest.raises((EOFError, OSError)):
        stranger.heartbeat()
    assert [row.detail for row in kinds(kafka, RowKind.FAULT)] == ["stranger"]
    assert member.heartbeat().error_code is ErrorCode.NONE, "the other one stays"
    with pytest.raises(FencepostError, match="'stranger' is open"):
        kafka.disconnect("stranger")


def test_who_asked_what_others_had_asked_is_known_by_its_client_id(kafka: EmbeddedKafka) -> None:
    strangers = [WireMember(kafka.bootstrap_servers, "g", name) for name in ("one", "two")]
    for each in strangers:
        assert each.ask(ApiKey.METADATA, MetadataRequest(topics=()), 12).topics == ()
    kafka.disconnect("two")
    with pytest.raises((EOFError, OSError)):
        strangers[1].ask(ApiKey.METADATA, MetadataRequest(topics=()), 12)
    assert strangers[0].ask(ApiKey.METADATA, MetadataRequest(topics=()), 12).topics == ()


def test_a_rule_about_one_client_waits_for_it_though_others_ask_the_same(kafka: EmbeddedKafka) -> None:
    one, two = (WireMember(kafka.bootstrap_servers, "g", name) for name in ("one", "two"))

    def errors(client: WireMember) -> set[ErrorCode]:
        answer = client.ask(ApiKey.METADATA, MetadataRequest(topics=None), 12)
        return {topic.error_code for topic in answer.topics}

    kafka.fail_next("Metadata", "LEADER_NOT_AVAILABLE", "two")
    assert [errors(each) for each in (one, one, two, one, two)] == [
        {ErrorCode.NONE},
        {ErrorCode.NONE},
        {ErrorCode.LEADER_NOT_AVAILABLE},
        {ErrorCode.NONE},
        {ErrorCode.NONE},
    ]
