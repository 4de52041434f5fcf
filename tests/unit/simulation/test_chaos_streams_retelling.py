"""A real run of an application told again: what was heard, in the order of time, and what is wrong in it."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.actions import Level
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.events import (
    HostNoted,
    MemberEvent,
    MessageLost,
    RunEvents,
    StreamsMemberHeard,
)
from fencepost.simulation.lab.chaos.replayed_application import ReplayedApplication
from fencepost.simulation.trace.rows import TraceRows

SECOND = 1_000_000
BOUND_US = 10 * SECOND
PLACE = TopicPartition("orders", 0)
THREAD = "client-1-StreamThread-1"


class Run:
    """Happenings of one client with one thread that runs, told when `tell` is called."""

    def __init__(self) -> None:
        self._happenings = RunEvents()
        self.add(m.Up(1, ""))
        self.client(2, "CREATED", "REBALANCING")
        for at, (source, target) in enumerate((("CREATED", "STARTING"), ("STARTING", "RUNNING")), 3):
            self.add(m.Stepped(at, Level.THREAD, THREAD, "x", source, target, False))
        self.client(5, "REBALANCING", "RUNNING")

    def add(self, event: m.Event) -> None:
        self._happenings.add(event.t_us, "client-1", event)

    def client(self, t_us: int, source: str, target: str) -> None:
        self.add(m.Stepped(t_us, Level.CLIENT, "client-1", "x", source, target, False))

    def world(self, t_us: int, hook: str, *arguments: object) -> None:
        self._happenings.add(t_us, "", MemberEvent(hook, arguments))

    def lose(self, t_us: int) -> None:
        self._happenings.add(t_us, "", MessageLost("client-1", "broker-1", "response", "Request"))

    def note(self, t_us: int, what: str) -> None:
        self._happenings.add(t_us, "client-1", HostNoted(what))

    def heard(self, t_us: int, epoch: int) -> None:
        self._happenings.add(t_us, "client-1", StreamsMemberHeard(epoch, heartbeat=True))

    def tell(self, *members: str, request_timeout_us: int | None = None) -> ReplayedApplication:
        self.world(60 * SECOND, "on_look", members)
        self.world(60 * SECOND, "on_end")
        recorder = TraceRows(world="real", group="g")
        replayed = ReplayedApplication(
            ["client-1"], recorder, BOUND_US, request_timeout_us=request_timeout_us
        )
        replayed.tell_all(self._happenings, 61 * SECOND)
        return replayed


def found(replayed: ReplayedApplication) -> list[str]:
    return [violation.invariant for violation in replayed.application.violations]


def test_what_is_in_order_settles() -> None:
    run = Run()
    run.add(m.Processed(7, PLACE, 0, 5, (1, 2, 3, 4, 5)))
    run.add(m.OffsetsCommitted(8, ((PLACE, 5),)))
    for epoch in (1, 1, 3):
        run.heard(9, epoch)
    told = run.tell(THREAD)
    assert found(told) == []
    assert told.settled
    assert (told.heartbeats, told.rebalances) == (3, 2)
    assert told.application.figures == {"records": 5}


def test_a_member_too_many_or_too_few_has_not_settled() -> None:
    assert found(Run().tell()) == ["streams-settles"]
    assert found(Run().tell(THREAD, "somebody")) == ["streams-settles"]
    gone = Run()
    gone.add(m.Stopped(9, "ERROR"))
    assert found(gone.tell()) == ["streams-settles"]


def test_it_is_enough_that_all_is_in_order_once() -> None:
    run = Run()
    run.world(50 * SECOND, "on_look", (THREAD,))
    assert found(run.tell()) == []


def test_a_shutdown_that_nobody_asked_for_is_seen() -> None:
    run = Run()
    run.add(m.ShutdownTold(7))
    assert "streams-shutdown-cause" in found(run.tell(THREAD))


def test_a_late_leave_may_shut_down_the_next_incarnation() -> None:
    """The leave that asks for the shutdown arrives once the group is empty (KAFKA-19190)."""
    run = Run()
    run.add(m.HandlerAsked(7, THREAD, "SHUTDOWN_APPLICATION", "poll"))
    run.add(m.ShutdownTold(8))
    run.add(m.Stopped(9, "ERROR"))
    run.add(m.Up(60 * SECOND + 1, ""))
    run.add(m.ShutdownTold(60 * SECOND + 2))
    assert found(run.tell()) == []


def test_a_shutdown_must_reach_its_client_in_time() -> None:
    asked = m.HandlerAsked(7, THREAD, "SHUTDOWN_APPLICATION", "poll")
    run = Run()
    run.add(asked)
    assert found(run.tell(THREAD)) == ["streams-shutdown-reaches"]
    ends = Run()
    ends.add(asked)
    ends.add(m.ShutdownTold(8))
    ends.add(m.Stopped(9 * SECOND, "ERROR"))
    told = ends.tell()
    assert found(told) == []
    assert told.application.figures["clients_shut_down"] == 1


@pytest.mark.parametrize("request_timeout_us", [None, 2 * SECOND])
def test_who_has_no_threads_can_not_be_told_of_a_shutdown(request_timeout_us: int | None) -> None:
    def run(name: str) -> list[str]:
        made = Run()
        made.add(m.Stepped(6, Level.THREAD, name, "x", "RUNNING", "PENDING_SHUTDOWN", False))
        made.add(m.ShutdownTold(7))
        return found(made.tell(request_timeout_us=request_timeout_us))

    assert "streams-shutdown-reaches" not in run(THREAD)
    assert "streams-shutdown-reaches" in run("another")


def test_who_is_cut_off_or_dies_is_not_waited_for() -> None:
    for what in ("cut_off", "crash"):
        run = Run()
        run.add(m.HandlerAsked(7, THREAD, "SHUTDOWN_APPLICATION", "poll"))
        if what == "crash":
            run.note(8, "crash")
        else:
            run.world(8, "cut_off", "client-1", 30 * SECOND)
        assert "streams-shutdown-reaches" not in found(run.tell(THREAD))


@pytest.mark.parametrize("what", ["on_loss", "on_coordinator_state"])
def test_in_a_classic_group_who_is_disturbed_when_others_know_already_is_not_waited_for(what: str) -> None:
    def run(lost_us: int) -> list[str]:
        made = Run()
        if what == "on_loss":
            made.lose(lost_us)
        else:
            made.world(lost_us, what, "broker-2", "active")
        made.add(m.HandlerAsked(20 * SECOND, THREAD, "SHUTDOWN_APPLICATION", "poll"))
        made.add(m.ShutdownTold(21 * SECOND))
        return found(made.tell(THREAD, request_timeout_us=2 * SECOND))

    assert run(22 * SECOND) == []
    for before_or_after in (20_500_000, 30 * SECOND):
        assert set(run(before_or_after)) == {"streams-shutdown-reaches"}


def test_in_a_classic_group_who_was_cut_off_while_others_were_told_is_not_waited_for() -> None:
    def run(since_us: int, until_us: int) -> list[str]:
        made = Run()
        made.world(since_us, "cut_off", "client-1", until_us)
        made.add(m.HandlerAsked(20 * SECOND, THREAD, "SHUTDOWN_APPLICATION", "poll"))
        made.add(m.ShutdownTold(21 * SECOND))
        return found(made.tell(THREAD, request_timeout_us=2 * SECOND))

    assert run(10 * SECOND, 22 * SECOND) == run(22 * SECOND, 40 * SECOND) == []
    assert set(run(10 * SECOND, 19 * SECOND)) == {"streams-shutdown-reaches"}
    assert set(run(24 * SECOND, 40 * SECOND)) == {"streams-shutdown-reaches"}


def test_in_a_classic_group_who_asks_is_waited_for_unless_rounds_begin_anew_or_it_is_cut_off() -> None:
    def run(at_us: int, hook: str, *arguments: object) -> list[str]:
        made = Run()
        made.add(m.HandlerAsked(20 * SECOND, THREAD, "SHUTDOWN_APPLICATION", "poll"))
        if hook == "on_loss":
            made.lose(at_us)
        else:
            made.world(at_us, hook, *arguments)
        return found(made.tell(THREAD, request_timeout_us=2 * SECOND))

    assert run(25 * SECOND, "cut_off", "client-1", 28 * SECOND) == []
    assert run(25 * SECOND, "on_coordinator_state", "broker-2", "active") == []
    assert set(run(25 * SECOND, "on_loss")) == {"streams-shutdown-reaches"}


def test_a_record_that_was_skipped_or_committed_too_early_is_seen() -> None:
    run = Run()
    run.add(m.Processed(7, PLACE, 1, 5, (2, 3, 4, 5)))
    assert found(run.tell(THREAD)) == ["streams-at-least-once"]
    early = Run()
    early.add(m.OffsetsCommitted(8, ((PLACE, 5),)))
    early.add(m.Processed(9, PLACE, 0, 5, (1, 2, 3, 4, 5)))
    assert found(early.tell(THREAD)) == ["streams-at-least-once"]


def test_what_a_process_found_is_reported_at_its_time() -> None:
    run = Run()
    run.add(m.CheckFound(9, "streams-derived", "client-1: RUNNING, and its threads are not"))
    (violation,) = run.tell(THREAD).application.violations
    assert (violation.invariant, violation.t_us) == ("streams-derived", 9)
