"""What is judged of one Streams client, by histories made by hand: good ones, and one slip each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.member.streams.actions import Level, MoveRefused, StreamsMoved
from fencepost.member.streams.client_states import StreamClientEvent as E
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.thread_states import StreamThreadEvent
from fencepost.member.streams.thread_states import StreamThreadState as T
from fencepost.simulation.streams.checks import ClientJudge
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
    """A process whose one client and one thread do what a test says, and the judge that is told."""

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
        self.judge = ClientJudge(self, 1, lambda *finding: self.found.append(finding))

    def step(self, step: Step) -> None:
        """The client moves, and the observer is told."""
        source, event, target = step
        self.client.state = target
        self.client.is_running = target in (S.REBALANCING, S.RUNNING, S.DISCONNECTED)
        self.judge.on_step(StreamsMoved(Level.CLIENT, self.name, event, source, target))

    def hear(self, step: Step) -> None:
        """The application's listener is called."""
        self.judge.on_listener(step[2], step[0])

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
            self.judge.on_step(StreamsMoved(Level.THREAD, THREAD, event, source, target))

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
        self.judge.look()

    def end_thread(self) -> None:
        """The thread ends as it should."""
        self.thread_does(
            (T.RUNNING, StreamThreadEvent.SHUTDOWN, T.PENDING_SHUTDOWN),
            (T.PENDING_SHUTDOWN, StreamThreadEvent.ENDED, T.DEAD),
        )

    def ask(self, answer: str) -> None:
        """An exception left the thread, and the handler is asked."""
        self.judge.on_failure(THREAD, Injected(answer, "poll", ValueError).error)

    def look(self) -> None:
        """Everything has followed from what happened."""
        self.judge.look()

    def refuse(self, step: Step) -> None:
        """The client's machine refuses to move."""
        source, event, target = step
        self.judge.on_step(MoveRefused(Level.CLIENT, self.name, event, source, target))

    def leave(self, part: str, what: str) -> None:
        """A part of the engine is not ended."""
        setattr(getattr(self.engine, part), what, True)

    def stay(self, member_id: str) -> None:
        """The thread's member is not closed."""
        self.members[THREAD] = SimpleNamespace(member_id=member_id, closed=False)

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
    scene.judge.look()
    scene.thread_does(back)
    scene.client_does((S.DISCONNECTED, E.RUNNING, S.RUNNING))
    scene.judge.look()
    scene.client_does(CLOSES)
    scene.refuse((S.PENDING_SHUTDOWN, E.FAILED, S.PENDING_ERROR))
    scene.end_thread()
    scene.client_does(CLOSED)
    scene.judge.look()
    assert scene.found == []


def test_a_client_that_a_handler_shuts_down(scene: Scene) -> None:
    scene.ask("SHUTDOWN_CLIENT")
    scene.client_does(FAILED)
    scene.end_thread()
    scene.client_does(IN_ERROR)
    scene.judge.look()
    assert scene.found == []


REFUSED = S.PENDING_SHUTDOWN, E.FAILED, S.PENDING_ERROR
TOO_EARLY = "was called with REBALANCING to RUNNING, expected RUNNING to REBALANCING"
LISTENERS: dict[str, tuple[list[tuple[str, Step]], str]] = {
    "overtaken": ([("step", REBALANCES), ("step", RUNS), ("hear", RUNS), ("hear", REBALANCES)], TOO_EARLY),
    "unheard": ([("step", REBALANCES), ("client_does", RUNS)], TOO_EARLY),
    "heard twice": (
        [("client_does", REBALANCES), ("client_does", RUNS), ("hear", RUNS)],
        "was called with REBALANCING to RUNNING, expected nothing",
    ),
    "heard before it is taken": (
        [("hear", REBALANCES), ("step", REBALANCES), ("client_does", RUNS)],
        "was called with RUNNING to REBALANCING, expected nothing",
    ),
    "heard of what was refused": (
        [("client_does", CLOSES), ("refuse", REFUSED), ("hear", REFUSED)],
        "was called with PENDING_SHUTDOWN to PENDING_ERROR, expected nothing",
    ),
    "old and new mixed up": (
        [("step", CLOSES), ("hear", CLOSES[::-1])],
        "was called with PENDING_SHUTDOWN to RUNNING, expected RUNNING to PENDING_SHUTDOWN",
    ),
}


@pytest.mark.parametrize(("steps", "told"), LISTENERS.values(), ids=list(LISTENERS))
def test_a_listener_that_does_not_hear_every_step_in_its_order(
    scene: Scene, steps: list[tuple[str, Step]], told: str
) -> None:
    for what, step in steps:
        getattr(scene, what)(step)
    assert scene.found[0] == ("streams-listener", f"client-1: {told}")
    assert scene.invariants == {"streams-listener"}


def test_a_listener_that_does_not_hear_the_last_step(scene: Scene) -> None:
    scene.client_does(CLOSES)
    scene.end_thread()
    scene.step(CLOSED)
    assert scene.found == []
    for _ in range(2):
        scene.judge.look()
        assert scene.found == [
            ("streams-listener", "client-1: was not called with PENDING_SHUTDOWN to NOT_RUNNING")
        ]


def test_a_listener_is_judged_although_whoever_observes_the_steps_is_told_wrongly_too(scene: Scene) -> None:
    """Both in the same wrong order: what the listener hears does not begin where it was told to be."""
    scene.client_does(RUNS, REBALANCES)
    assert scene.invariants == {"streams-transitions", "streams-listener"}
    told = [message for invariant, message in scene.found if invariant == "streams-listener"]
    assert told == ["client-1: was called with REBALANCING to RUNNING, and was last called with RUNNING"]


# -- the other invariants

TE = StreamThreadEvent
REVOKED = T.RUNNING, TE.REVOKED, T.PARTITIONS_REVOKED
LOST = T.RUNNING, TE.CONNECTION_LOST, T.DISCONNECTED
LOST_REVOKED = T.PARTITIONS_REVOKED, TE.CONNECTION_LOST, T.DISCONNECTED
BACK_RUNNING = T.DISCONNECTED, TE.CONNECTION_BACK, T.RUNNING
ASK, END, LOOK = ("ask", "SHUTDOWN_CLIENT"), ("end_thread",), ("look",)


def client(*steps: Step) -> tuple[Any, ...]:
    return "client_does", *steps


def thread(*steps: tuple[T, StreamThreadEvent, T]) -> tuple[Any, ...]:
    return "thread_does", *steps


@pytest.mark.parametrize(
    ("steps", "invariants"),
    [
        ([thread((T.RUNNING, TE.ASSIGNED, T.PARTITIONS_ASSIGNED))], "streams-transitions"),
        ([thread((T.PARTITIONS_ASSIGNED, TE.READY, T.RUNNING))], "streams-transitions"),
        ([("refuse", (S.RUNNING, E.CLOSE, S.PENDING_SHUTDOWN))], "streams-transitions"),
        (
            [ASK, client(FAILED), END, client(IN_ERROR, (S.ERROR, E.CLOSE, S.PENDING_SHUTDOWN))],
            "streams-terminal streams-transitions",
        ),
        ([ASK, END, client((S.RUNNING, E.FAILED, S.ERROR))], "streams-terminal streams-transitions"),
        ([client(CLOSES, CLOSED)], "streams-closed"),
        ([("leave", "recorder", "running"), client(CLOSES), END, client(CLOSED)], "streams-closed"),
        ([("leave", "directory", "locked"), client(CLOSES), END, client(CLOSED)], "streams-closed"),
        ([client(FAILED)], "streams-error-cause"),
        ([ASK, LOOK], "streams-error-due"),
        ([END, LOOK], "streams-live-threads"),
        ([("stay", "m"), END], "streams-dead-left"),
        ([thread(REVOKED), LOOK], "streams-derived"),
        ([thread(LOST), LOOK], "streams-derived"),
        ([thread(REVOKED, LOST_REVOKED, BACK_RUNNING)], "streams-reconnects"),
    ],
)
def test_a_client_that_slips(scene: Scene, steps: list[tuple[Any, ...]], invariants: str) -> None:
    for what, *arguments in steps:
        getattr(scene, what)(*arguments)
    assert scene.invariants == set(invariants.split())
