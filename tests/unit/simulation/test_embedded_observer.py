"""What a step did is told behind its answer: before the next step, before anybody looks, and soon anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.groups import LeaveGroupCall
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.classic import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
)
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolSubscription, write_subscription
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.simulation.embedded import observer
from fencepost.simulation.judge.coordination import Coordination
from fencepost.simulation.trace.schema import RowKind
from tests.unit.simulation.wire_member import WireMember


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that a judge was told of, in their order."""
    found: list[str] = []
    check = Coordination.on_coordinator_step

    def tell(self: Coordination, host: str, event: Any, outcome: Any, now_us: int) -> None:
        if self.world.coordinators[host].coordinator is not None:
            found.append(f"{type(event).__name__} {getattr(event, 'member_id', '')}".strip())
        check(self, host, event, outcome, now_us)

    monkeypatch.setattr(Coordination, "on_coordinator_step", tell)
    return found


JOINED = "ConsumerGroupHeartbeatRequest m"


@pytest.fixture
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_LAG_S", 3600.0)


@pytest.fixture
def kafka(told: list[str], _later: None) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}, brokers=2) as running:
        told.clear()
        yield running


def join(kafka: EmbeddedKafka, member_id: str = "m") -> WireMember:
    node = kafka.endpoint.brokers.groups.leader_id("g")
    leader = kafka.bootstrap_servers.split(",")[node - 1]
    member = WireMember(leader, "g", member_id)
    assert member.join("orders").error_code == 0
    return member


def test_a_member_has_its_answer_before_anybody_is_told(kafka: EmbeddedKafka, told: list[str]) -> None:
    join(kafka)
    assert told == []
    join(kafka, "n")
    assert told == []
    kafka.check()
    assert told == [JOINED, "ConsumerGroupHeartbeatRequest n"]


def test_who_never_rests_is_told_of_all_the_same(kafka: EmbeddedKafka, told: list[str]) -> None:
    member = join(kafka)
    for _ in range(observer._MAX_LAG):
        assert not told
        member.heartbeat()
    assert told == [JOINED, "ConsumerGroupHeartbeatRequest m"], "of one for all that are the same"


@pytest.mark.parametrize(
    "look",
    [
        lambda kafka: [row for row in kafka.events() if row.kind == RowKind.HEARTBEAT],
        lambda kafka: kafka.last_event > 2,
        lambda kafka: kafka.member_names(),
        lambda kafka: kafka.check() == [],
        lambda kafka: kafka.group("g").members()[0].assignment,
        lambda kafka: kafka.group("g").fence("m") is None,
        lambda kafka: kafka.move_coordinator("g") is None,
        lambda kafka: kafka.restart() is None,
        lambda kafka: kafka.create_topic("more") is None,
        lambda kafka: kafka.clock.advance(0) is None,
        lambda kafka: kafka.close() is None,
    ],
)
def test_whoever_looks_sees_all(
    kafka: EmbeddedKafka, told: list[str], look: Callable[[EmbeddedKafka], object]
) -> None:
    join(kafka)
    assert look(kafka)
    assert told[0] == JOINED


def test_a_static_member_that_comes_back_is_connected(kafka: EmbeddedKafka) -> None:
    member = join(kafka)
    member.heartbeat(-1)
    for epoch in (-2, -2):
        member.join("orders", instance_id="i")
        member.heartbeat(epoch, instance_id="i")
    member.join("orders", instance_id="i")
    kafka.clock.advance(60)
    assert [each.member_id for each in kafka.group("g").members()] == ["m"]
    kafka.disconnect("i")
    with pytest.raises(EOFError):
        member.heartbeat()


def test_who_left_is_forgotten(kafka: EmbeddedKafka) -> None:
    known = kafka.endpoint.faults
    member = join(kafka)
    assert "m" in known.connected
    member.heartbeat(-1)
    assert "m" not in known.connected
    assert member.heartbeat(3).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert "m" not in known.connected


def join_classic(member: WireMember, **fields: Any) -> str:
    """Join with an id that the coordinator gives; answers the id."""
    subscription = write_subscription(ConsumerProtocolSubscription(topics=("orders",)))
    request = JoinGroupRequest(
        group_id="g",
        protocol_type="consumer",
        protocols=(JoinGroupProtocol("range", subscription),),
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        **fields,
    )
    reply: JoinGroupResponse = member.ask(ApiKey.JOIN_GROUP, request, 5)
    if reply.error_code is ErrorCode.MEMBER_ID_REQUIRED:
        request = msgspec.structs.replace(request, member_id=reply.member_id)
        reply = member.ask(ApiKey.JOIN_GROUP, request, 5)
    assert reply.error_code is ErrorCode.NONE
    sync = SyncGroupRequest(
        group_id="g",
        generation=reply.generation,
        member_id=reply.member_id,
        instance_id=request.instance_id,
    )
    member.ask(ApiKey.SYNC_GROUP, sync, 3)
    return reply.member_id


@pytest.fixture
def classic(kafka: EmbeddedKafka) -> WireMember:
    node = kafka.endpoint.brokers.groups.leader_id("g")
    return WireMember(kafka.bootstrap_servers.split(",")[node - 1], "g", "aiokafka")


@pytest.mark.parametrize("version", [2, 3])
def test_a_classic_member_that_left_is_forgotten(
    kafka: EmbeddedKafka, classic: WireMember, version: int
) -> None:
    known = kafka.endpoint.faults
    member_id = join_classic(classic)
    assert known.connected == {member_id}
    leaving = LeaveGroupCall(group_id="g", members=(LeaveGroupRequest(group_id="g", member_id=member_id),))
    classic.ask(ApiKey.LEAVE_GROUP, leaving, version)
    assert known.connected == set()
    with pytest.raises(FencepostError, match="is open"):
        kafka.disconnect(member_id)


def test_a_classic_member_that_was_replaced_or_expired_is_forgotten(
    kafka: EmbeddedKafka, classic: WireMember
) -> None:
    known = kafka.endpoint.faults
    first = join_classic(classic, instance_id="desk")
    second = join_classic(classic, instance_id="desk")
    assert first != second
    assert known.connected == {second}
    kafka.group("g").expire(second)
    assert known.connected == set()
    third = join_classic(classic, instance_id="desk")
    kafka.disconnect("desk")
    assert [row.detail for row in kafka.events() if row.actor == "disconnect"] == [third]


def test_members_of_a_group_that_changes_its_protocol_stay_known(
    kafka: EmbeddedKafka, classic: WireMember
) -> None:
    member_id = join_classic(classic)
    member = join(kafka)
    assert {each.protocol for each in kafka.group("g").members()} == {"classic", "consumer"}
    assert kafka.endpoint.faults.connected == {member_id, "m"}
    member.heartbeat(-1)
    assert kafka.endpoint.faults.connected == {member_id}


def test_closed_connections_are_forgotten(kafka: EmbeddedKafka) -> None:
    known = kafka.endpoint.faults
    for _ in range(200):
        member = join(kafka)
        member.heartbeat(-1)
        WireMember.close_all()
    assert len(known._members) < 150


def test_whoever_waits_is_woken_at_once(kafka: EmbeddedKafka) -> None:
    member = join(kafka)
    member.confirm()
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(kafka.group("g").wait_stable(members=0)))
    waiter.start()
    while not kafka.endpoint.observer.waiting:
        assert waiter.is_alive()
    member.heartbeat(-1)
    waiter.join(10)
    assert found == [[]]


@pytest.mark.real
def test_nobody_has_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threading.Event()
    with EmbeddedKafka(topics={"orders": 4}) as kafka:
        monkeypatch.setattr(kafka.endpoint.observer.trace, "on_row", lambda row: seen.set())
        join(kafka)
        assert seen.wait(10)


@pytest.mark.real
@pytest.mark.usefixtures("_later")
def test_the_trace_in_a_topic_has_the_last_step_too() -> None:
    with EmbeddedKafka(topics=["trace"]) as kept:
        with EmbeddedKafka(topics={"orders": 4}, trace_topic=f"{kept.bootstrap_servers}/trace") as kafka:
            join(kafka)
        assert any(b"heartbeat" in (record.value or b"") for record in kept.records("trace"))


def test_a_coordinator_that_is_not_as_its_follower_is_seen(kafka: EmbeddedKafka) -> None:
    join(kafka)
    assert kafka.check() == []
    coordinator = kafka.endpoint.brokers.groups.shard_of("g").coordinator
    assert coordinator is not None
    coordinator.groups["g"].metadata_hash += 1
    (found,) = kafka.check()
    assert found.invariant == "journal-replay"
    assert "of the shadow coordinator differ from the live state" in found.message


def test_what_a_timer_shows_is_listed_under_its_group() -> None:
    """Its step names no group: a session ends, and one epoch is left out."""
    with EmbeddedKafka(topics={"orders": 4}) as kafka:
        join(kafka)
        observer = kafka.endpoint.observer
        shard = kafka.endpoint.brokers.groups.shard_of("g")
        assert kafka.check() == []
        for coordinator in (shard.coordinator, observer._shards[shard.number].replayed.active):
            assert coordinator is not None
            coordinator.groups["g"].group_epoch += 4
        WireMember.close_all()  # else its session goes on
        kafka.clock.advance(120)

        async def found(prefix: str) -> set[str]:
            return {each.invariant for each in observer.check(prefix)}

        assert "epoch-caused" in kafka.thread.submit(found("g")).result()
        assert not kafka.thread.submit(found("other-")).result()


def test_repeated_heartbeats_are_counted_and_traced_each(kafka: EmbeddedKafka) -> None:
    """They take a shorter way, which ends when a fault waits for one of them."""
    member = WireMember(kafka.bootstrap_servers, "repeated", "m")
    member.join("orders")
    since, before = kafka.last_event, kafka.endpoint.faults.requests[ApiKey.CONSUMER_GROUP_HEARTBEAT]
    for _ in range(5):
        assert member.heartbeat().error_code is ErrorCode.NONE
    kafka.fail_next("ConsumerGroupHeartbeat", "COORDINATOR_NOT_AVAILABLE")
    assert member.heartbeat().error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    for _ in range(5):
        assert member.heartbeat().error_code is ErrorCode.NONE
    assert kafka.endpoint.faults.requests[ApiKey.CONSUMER_GROUP_HEARTBEAT] == before + 11
    beats = [row for row in kafka.events(since) if row.kind == "heartbeat" and row.group == "repeated"]
    assert len(beats) == 10
    assert kafka.check() == []


def test_a_fence_ends_the_shorter_way_at_once(kafka: EmbeddedKafka) -> None:
    member = WireMember(kafka.bootstrap_servers, "repeated", "m")
    member.join("orders")
    for _ in range(3):
        member.heartbeat()
    kafka.group("repeated").fence("m")
    assert member.heartbeat().error_code is ErrorCode.FENCED_MEMBER_EPOCH
