"""What a step did is told behind its answer: before the next step, before anybody looks, and soon anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.checkers.coordination import Coordination
from fencepost.simulation.embedded import EmbeddedKafka, watch
from fencepost.simulation.trace.schema import Kind
from tests.unit.simulation.wire_member import WireMember


@pytest.fixture(autouse=True)
def _no_socket_is_left() -> Iterator[None]:
    yield
    WireMember.close_all()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that a checker was told of, in their order."""
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
    monkeypatch.setattr(watch, "_LATER_S", 3600.0)


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
    assert told == [JOINED], "before the next step"


@pytest.mark.parametrize(
    "look",
    [
        lambda kafka: [row for row in kafka.events() if row.kind == Kind.HEARTBEAT],
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
    known = kafka.endpoint.interference
    member = join(kafka)
    assert known.is_connected("m")
    member.heartbeat(-1)
    assert not known.is_connected("m")
    assert member.heartbeat(3).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert not known.is_connected("m")


def test_whoever_waits_is_woken_at_once(kafka: EmbeddedKafka) -> None:
    member = join(kafka)
    member.confirm()
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(kafka.group("g").wait_stable(members=0)))
    waiter.start()
    while not kafka.endpoint.watch.waiting:
        assert waiter.is_alive()
    member.heartbeat(-1)
    waiter.join(10)
    assert found == [[]]


@pytest.mark.real
def test_nobody_has_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threading.Event()
    with EmbeddedKafka(topics={"orders": 4}) as kafka:
        monkeypatch.setattr(kafka.endpoint.watch, "on_row", lambda row: seen.set())
        join(kafka)
        assert seen.wait(10)


@pytest.mark.real
@pytest.mark.usefixtures("_later")
def test_the_trace_in_a_topic_has_the_last_step_too() -> None:
    with EmbeddedKafka(topics=["trace"]) as kept:
        with EmbeddedKafka(topics={"orders": 4}, trace_topic=f"{kept.bootstrap_servers}/trace") as kafka:
            join(kafka)
        assert any(b"heartbeat" in (record.value or b"") for record in kept.records("trace"))
