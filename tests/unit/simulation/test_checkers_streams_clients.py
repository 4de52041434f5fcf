"""What is judged of one Streams client, by histories made by hand: good ones, and one slip each."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.member.streams.actions import Level, MoveRefused, StreamsMoved
from fencepost.member.streams.client_states import StreamClientEvent as E
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.thread_states import StreamThreadEvent
from fencepost.member.streams.thread_states import StreamThreadState as T
from fencepost.simulation.streams.checks import ClientChecker
from fencepost.simulation.streams.failures import Injected

THREAD = "client-1-StreamThread-1"
Step = tuple[S, E, S]

STARTED = (S.CREATED, E.STARTED, S.REBALANCING)
RUNS = (S.REBALANCING, E.RUNNING, S.RUNNING)
REBALANCES = (S.RUNNING, E.REBALANCING, S.REBALANCING)
FAILED = (S.RUNNING, E.FAILED, S.PENDING_ERROR)
IN_ERROR = (S.PENDING_ERROR, E.CLOSED, S.ERROR)
CLOSES = (S.RUNNING, E.CLOSE, S.PENDING_SHUTDOWN)
CLOSED = (S.PENDING_SHUTDOWN, E.CLOSED, S.NOT_RUNNING)


class Scene:
    """A process whose one client and one thread do what a test says, and the checker that is told."""

    name = "client-1"

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.members: dict[str, Any] = {}
        self.thread = SimpleNamespace(name=THREAD, state=T.CREATED, underneath=T.CREATED, is_live=True)
        self.client = SimpleNamespace(
            state=S.CREATED, is_running=False, live=[self.thread], threads={THREAD: self.thread}
        )
        self.engine: Any = SimpleNamespace(
            client=self.client,
            workers={},
            cleaner=SimpleNamespace(running=False),
            recorder=SimpleNamespace(running=False),
            directory=SimpleNamespace(locked=False),
        )
        self.checker = ClientChecker(self, 1, lambda *finding: self.found.append(finding))

    def step(self, step: Step) -> None:
        """The client moves, and the observer is told."""
        source, event, target = step
        self.client.state = target
        self.client.is_running = target in (S.REBALANCING, S.RUNNING, S.DISCONNECTED)
        self.checker.on_step(StreamsMoved(Level.CLIENT, self.name, event, source, target))

    def hear(self, step: Step) -> None:
        """The application's listener is called."""
        self.checker.on_listener(step[2], step[0])

    def client_does(self, *steps: Step) -> None:
        """Both, as it should be."""
        for step in steps:
            self.step(step)
            self.hear(step)

    def thread_does(self, *steps: tuple[T, StreamThreadEvent, T]) -> None:
        """The thread moves."""
        for source, event, target in steps:
            self.thread.state = target
            if target is not T.DISCONNECTED:
                self.thread.underneath = target
            self.thread.is_live = target not in (T.PENDING_SHUTDOWN, T.DEAD)
            self.client.live = [self.thread] if self.thread.is_live else []
            self.checker.on_step(StreamsMoved(Level.THREAD, THREAD, event, source, target))

    def run(self) -> None:
        """All is well, and the client runs."""
        self.client_does(STARTED)
        self.thread_does(
            (T.CREATED, StreamThreadEvent.STARTED, T.STARTING),
            (T.STARTING, StreamThreadEvent.REVOKED, T.PARTITIONS_REVOKED),
            (T.PARTITIONS_REVOKED, StreamThreadEvent.ASSIGNED, T.PARTITIONS_ASSIGNED),
            (T.PARTITIONS_ASSIGNED, StreamThreadEvent.READY, T.RUNNING),
        )
        self.client_does(RUNS)
        self.checker.look()

    def end_thread(self) -> None:
        """The thread ends as it should."""
        self.thread_does(
            (T.RUNNING, StreamThreadEvent.SHUTDOWN, T.PENDING_SHUTDOWN),
            (T.PENDING_SHUTDOWN, StreamThreadEvent.ENDED, T.DEAD),
        )

    def ask(self, answer: str) -> None:
        """An exception left the thread, and the handler is asked."""
        self.checker.on_failure(THREAD, Injected(answer, "poll", ValueError).error)

    @property
    def invariants(self) -> set[str]:
        """Those that do not hold."""
        return {invariant for invariant, _ in self.found}


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.run()
    assert made.found == []
    return made


def test_a_client_that_does_everything_right(scene: Scene) -> None:
    lost, back = (
        (T.RUNNING, StreamThreadEvent.CONNECTION_LOST, T.DISCONNECTED),
        (T.DISCONNECTED, StreamThreadEvent.CONNECTION_BACK, T.RUNNING),
    )
    scene.thread_does(lost)
    scene.client_does((S.RUNNING, E.DISCONNECTED, S.DISCONNECTED))
    scene.checker.look()
    scene.thread_does(back)
    scene.client_does((S.DISCONNECTED, E.RUNNING, S.RUNNING))
    scene.checker.look()
    scene.client_does(CLOSES)
    refused = MoveRefused(Level.CLIENT, scene.name, E.FAILED, S.PENDING_SHUTDOWN, S.PENDING_ERROR)
    scene.checker.on_step(refused)
    scene.end_thread()
    scene.client_does(CLOSED)
    scene.checker.look()
    assert scene.found == []


def test_a_client_that_a_handler_shuts_down(scene: Scene) -> None:
    scene.ask("SHUTDOWN_CLIENT")
    scene.client_does(FAILED)
    scene.end_thread()
    scene.client_does(IN_ERROR)
    scene.checker.look()
    assert scene.found == []


# -- what the listener hears --------------------------------------------------------------------------------


def overtaken(scene: Scene) -> None:
    scene.step(REBALANCES)
    scene.step(RUNS)
    scene.hear(RUNS)
    scene.hear(REBALANCES)


def unheard(scene: Scene) -> None:
    scene.step(REBALANCES)
    scene.client_does(RUNS)


def heard_twice(scene: Scene) -> None:
    scene.client_does(REBALANCES, RUNS)
    scene.hear(RUNS)


def heard_before_it_is_taken(scene: Scene) -> None:
    scene.hear(REBALANCES)
    scene.step(REBALANCES)
    scene.client_does(RUNS)


def heard_of_what_was_refused(scene: Scene) -> None:
    scene.client_does(CLOSES)
    refused = S.PENDING_SHUTDOWN, E.FAILED, S.PENDING_ERROR
    scene.checker.on_step(MoveRefused(Level.CLIENT, scene.name, refused[1], refused[0], refused[2]))
    scene.hear(refused)


def old_and_new_mixed_up(scene: Scene) -> None:
    scene.step(CLOSES)
    scene.checker.on_listener(CLOSES[0], CLOSES[2])


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        (overtaken, "was called with REBALANCING to RUNNING, expected RUNNING to REBALANCING"),
        (unheard, "was called with REBALANCING to RUNNING, expected RUNNING to REBALANCING"),
        (heard_twice, "was called with REBALANCING to RUNNING, expected nothing"),
        (heard_before_it_is_taken, "was called with RUNNING to REBALANCING, expected nothing"),
        (heard_of_what_was_refused, "was called with PENDING_SHUTDOWN to PENDING_ERROR, expected nothing"),
        (
            old_and_new_mixed_up,
            "was called with PENDING_SHUTDOWN to RUNNING, expected RUNNING to PENDING_SHUTDOWN",
        ),
    ],
)
def test_a_listener_that_does_not_hear_every_step_in_its_order(
    scene: Scene, slip: Callable[[Scene], None], told: str
) -> None:
    slip(scene)
    assert scene.found[0] == ("streams-listener", f"client-1: {told}")
    assert scene.invariants == {"streams-listener"}


def test_a_listener_that_does_not_hear_the_last_step(scene: Scene) -> None:
    scene.client_does(CLOSES)
    scene.end_thread()
    scene.step(CLOSED)
    assert scene.found == []
    for _ in range(2):
        scene.checker.look()
        assert scene.found == [
            ("streams-listener", "client-1: was not called with PENDING_SHUTDOWN to NOT_RUNNING")
        ]


def test_a_listener_is_judged_although_whoever_observes_the_steps_is_told_wrongly_too(scene: Scene) -> None:
    """Both in the same wrong order: what the listener hears does not begin where it was told to be."""
    scene.client_does(RUNS, REBALANCES)
    assert scene.invariants == {"streams-transitions", "streams-listener"}
    told = [message for invariant, message in scene.found if invariant == "streams-listener"]
    assert told == ["client-1: was called with REBALANCING to RUNNING, and was last called with RUNNING"]


# -- the other invariants -----------------------------------------------------------------------------------


def arrow_that_is_none(scene: Scene) -> None:
    scene.thread_does((T.RUNNING, StreamThreadEvent.ASSIGNED, T.PARTITIONS_ASSIGNED))


def arrow_from_elsewhere(scene: Scene) -> None:
    scene.thread_does((T.PARTITIONS_ASSIGNED, StreamThreadEvent.READY, T.RUNNING))


def refused_what_is_no_mistake(scene: Scene) -> None:
    scene.checker.on_step(MoveRefused(Level.CLIENT, scene.name, E.CLOSE, S.RUNNING, S.PENDING_SHUTDOWN))


def error_is_left(scene: Scene) -> None:
    scene.ask("SHUTDOWN_CLIENT")
    scene.client_does(FAILED)
    scene.end_thread()
    scene.client_does(IN_ERROR, (S.ERROR, E.CLOSE, S.PENDING_SHUTDOWN))


def error_at_once(scene: Scene) -> None:
    scene.ask("SHUTDOWN_CLIENT")
    scene.end_thread()
    scene.client_does((S.RUNNING, E.FAILED, S.ERROR))


def closed_with_a_thread(scene: Scene) -> None:
    scene.client_does(CLOSES, CLOSED)


def closed_with_services(scene: Scene) -> None:
    scene.engine.recorder.running = True
    scene.client_does(CLOSES)
    scene.end_thread()
    scene.client_does(CLOSED)


def closed_and_locked(scene: Scene) -> None:
    scene.engine.directory.locked = True
    scene.client_does(CLOSES)
    scene.end_thread()
    scene.client_does(CLOSED)


def error_without_a_cause(scene: Scene) -> None:
    scene.client_does(FAILED)


def goes_on_although_it_is_shut_down(scene: Scene) -> None:
    scene.ask("SHUTDOWN_CLIENT")
    scene.checker.look()


def a_thread_too_few(scene: Scene) -> None:
    scene.end_thread()
    scene.checker.look()


def dead_and_still_a_member(scene: Scene) -> None:
    scene.members[THREAD] = SimpleNamespace(member_id="m", closed=False)
    scene.end_thread()


def runs_while_its_thread_rebalances(scene: Scene) -> None:
    scene.thread_does((T.RUNNING, StreamThreadEvent.REVOKED, T.PARTITIONS_REVOKED))
    scene.checker.look()


def runs_without_a_connection(scene: Scene) -> None:
    scene.thread_does((T.RUNNING, StreamThreadEvent.CONNECTION_LOST, T.DISCONNECTED))
    scene.checker.look()


def back_to_another_place(scene: Scene) -> None:
    scene.thread_does(
        (T.RUNNING, StreamThreadEvent.REVOKED, T.PARTITIONS_REVOKED),
        (T.PARTITIONS_REVOKED, StreamThreadEvent.CONNECTION_LOST, T.DISCONNECTED),
        (T.DISCONNECTED, StreamThreadEvent.CONNECTION_BACK, T.RUNNING),
    )


@pytest.mark.parametrize(
    ("slip", "invariants"),
    [
        (arrow_that_is_none, {"streams-transitions"}),
        (arrow_from_elsewhere, {"streams-transitions"}),
        (refused_what_is_no_mistake, {"streams-transitions"}),
        (error_is_left, {"streams-terminal", "streams-transitions"}),
        (error_at_once, {"streams-terminal", "streams-transitions"}),
        (closed_with_a_thread, {"streams-closed"}),
        (closed_with_services, {"streams-closed"}),
        (closed_and_locked, {"streams-closed"}),
        (error_without_a_cause, {"streams-error-cause"}),
        (goes_on_although_it_is_shut_down, {"streams-error-due"}),
        (a_thread_too_few, {"streams-live-threads"}),
        (dead_and_still_a_member, {"streams-dead-left"}),
        (runs_while_its_thread_rebalances, {"streams-derived"}),
        (runs_without_a_connection, {"streams-derived"}),
        (back_to_another_place, {"streams-reconnects"}),
    ],
)
def test_a_client_that_slips(scene: Scene, slip: Callable[[Scene], None], invariants: set[str]) -> None:
    slip(scene)
    assert scene.invariants == invariants
