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
from fencepost.simulation.streams.client_judge import ClientJudge
from fencepost.simulation.streams.failures import Injected
from tests.unit.simulation.member_worlds import Scripted

THREAD = "client-1-StreamThread-1"
Step = tuple[S, E, S]
TE = StreamThreadEvent

CLIENT: dict[str, Step] = {
    "started": (S.CREATED, E.STARTED, S.REBALANCING),
    "runs": (S.REBALANCING, E.RUNNING, S.RUNNING),
    "rebalances": (S.RUNNING, E.REBALANCING, S.REBALANCING),
    "failed": (S.RUNNING, E.FAILED, S.PENDING_ERROR),
    "fails": (S.RUNNING, E.FAILED, S.ERROR),
    "in-error": (S.PENDING_ERROR, E.CLOSED, S.ERROR),
    "closes": (S.RUNNING, E.CLOSE, S.PENDING_SHUTDOWN),
    "closes-late": (S.ERROR, E.CLOSE, S.PENDING_SHUTDOWN),
    "closed": (S.PENDING_SHUTDOWN, E.CLOSED, S.NOT_RUNNING),
    "refused": (S.PENDING_SHUTDOWN, E.FAILED, S.PENDING_ERROR),
    "disconnected": (S.RUNNING, E.DISCONNECTED, S.DISCONNECTED),
    "connected": (S.DISCONNECTED, E.RUNNING, S.RUNNING),
}
CLIENT["backwards"] = CLIENT["closes"][::-1]  # type: ignore[assignment]
THREADS: dict[str, tuple[T, StreamThreadEvent, T]] = {
    "started": (T.CREATED, TE.STARTED, T.STARTING),
    "revoked-first": (T.STARTING, TE.REVOKED, T.PARTITIONS_REVOKED),
    "assigned": (T.PARTITIONS_REVOKED, TE.ASSIGNED, T.PARTITIONS_ASSIGNED),
    "ready": (T.PARTITIONS_ASSIGNED, TE.READY, T.RUNNING),
    "shutdown": (T.RUNNING, TE.SHUTDOWN, T.PENDING_SHUTDOWN),
    "ended": (T.PENDING_SHUTDOWN, TE.ENDED, T.DEAD),
    "revoked": (T.RUNNING, TE.REVOKED, T.PARTITIONS_REVOKED),
    "lost": (T.RUNNING, TE.CONNECTION_LOST, T.DISCONNECTED),
    "lost-revoked": (T.PARTITIONS_REVOKED, TE.CONNECTION_LOST, T.DISCONNECTED),
    "back": (T.DISCONNECTED, TE.CONNECTION_BACK, T.RUNNING),
    "assigned-at-once": (T.RUNNING, TE.ASSIGNED, T.PARTITIONS_ASSIGNED),
}


class Scene(Scripted):
    """A process whose one client and one thread do what a test says, and the judge that is told."""

    name = "client-1"

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.members: dict[str, Any] = {}
        self.machine = SimpleNamespace(name=THREAD, state=T.CREATED, underneath=T.CREATED, is_live=True)
        self.client = SimpleNamespace(
            state=S.CREATED, is_running=False, live=[self.machine], threads={THREAD: self.machine}
        )
        self.engine: Any = SimpleNamespace(
            client=self.client,
            workers={},
            cleaner=SimpleNamespace(running=False),
            recorder=SimpleNamespace(running=False),
            directory=SimpleNamespace(locked=False),
        )
        self.judge = ClientJudge(self, 1, lambda *finding: self.found.append(finding))

    def step(self, name: str) -> None:
        """The client moves, and the observer is told."""
        source, event, target = CLIENT[name]
        self.client.state = target
        self.client.is_running = target in (S.REBALANCING, S.RUNNING, S.DISCONNECTED)
        self.judge.on_step(StreamsMoved(Level.CLIENT, self.name, event, source, target))

    def hear(self, name: str) -> None:
        """The application's listener is called."""
        source, _, target = CLIENT[name]
        self.judge.on_listener(target, source)

    def moves(self, *names: str) -> None:
        """Both, as it should be."""
        for name in names:
            self.step(name)
            self.hear(name)

    def thread(self, *names: str) -> None:
        for name in names:
            source, event, target = THREADS[name]
            self.thread_moves(target)
            self.judge.on_step(StreamsMoved(Level.THREAD, THREAD, event, source, target))

    def thread_moves(self, target: T) -> None:
        self.machine.state = target
        if target is not T.DISCONNECTED:
            self.machine.underneath = target
        self.machine.is_live = target not in (T.PENDING_SHUTDOWN, T.DEAD)
        self.client.live = [self.machine] if self.machine.is_live else []

    def run(self) -> None:
        """All is well, and the client runs."""
        self.play("moves started; thread started revoked-first assigned ready; moves runs; look")

    def end(self) -> None:
        """The thread ends as it should."""
        self.thread("shutdown", "ended")

    def ask(self) -> None:
        """An exception left the thread, and the handler says that the client is shut down."""
        self.judge.on_failure(THREAD, Injected("SHUTDOWN_CLIENT", "poll", ValueError).error)

    def look(self) -> None:
        """Everything has followed from what happened."""
        self.judge.look()

    def refuse(self, name: str) -> None:
        """The client's machine refuses to move."""
        source, event, target = CLIENT[name]
        self.judge.on_step(MoveRefused(Level.CLIENT, self.name, event, source, target))

    def leave(self, part: str, what: str) -> None:
        """A part of the engine is not ended."""
        setattr(getattr(self.engine, part), what, True)

    def stay(self) -> None:
        """The thread's member is not closed."""
        self.members[THREAD] = SimpleNamespace(member_id="m", closed=False)


CALLED = "client-1: was called with"
TOO_EARLY = f"{CALLED} REBALANCING to RUNNING, expected RUNNING to REBALANCING"


@pytest.mark.parametrize(
    ("script", "invariants", "told"),
    [
        # All is right: a connection that is lost and back, a close, and a handler that shuts the client down.
        ("thread lost; moves disconnected; look; thread back; moves connected; look; moves closes;"
         "refuse refused; end; moves closed; look", "", None),
        ("ask; moves failed; end; moves in-error; look", "", None),
        # A listener hears every step in its order, after it was taken, and until the last one.
        ("step rebalances; step runs; hear runs; hear rebalances", "streams-listener", TOO_EARLY),
        ("step rebalances; moves runs", "streams-listener", TOO_EARLY),
        ("moves rebalances; moves runs; hear runs", "streams-listener",
         f"{CALLED} REBALANCING to RUNNING, expected nothing"),
        ("hear rebalances; step rebalances; moves runs", "streams-listener",
         f"{CALLED} RUNNING to REBALANCING, expected nothing"),
        ("moves closes; refuse refused; hear refused", "streams-listener",
         f"{CALLED} PENDING_SHUTDOWN to PENDING_ERROR, expected nothing"),
        ("step closes; hear backwards", "streams-listener",
         f"{CALLED} PENDING_SHUTDOWN to RUNNING, expected RUNNING to PENDING_SHUTDOWN"),
        ("moves closes; end; step closed", "", None),
        ("moves closes; end; step closed; look; look", "streams-listener",
         "client-1: was not called with PENDING_SHUTDOWN to NOT_RUNNING"),
        # Whoever observes the steps is told wrongly too: the listener does not begin where it was told to be.
        ("moves runs rebalances", "streams-transitions streams-listener",
         f"{CALLED} REBALANCING to RUNNING, and was last called with RUNNING"),
        # The other invariants.
        ("thread assigned-at-once", "streams-transitions", None),
        ("thread ready", "streams-transitions", None),
        ("refuse closes", "streams-transitions", None),
        ("ask; moves failed; end; moves in-error closes-late", "streams-terminal streams-transitions", None),
        ("ask; end; moves fails", "streams-terminal streams-transitions", None),
        ("moves closes closed", "streams-closed", None),
        ("leave recorder running; moves closes; end; moves closed", "streams-closed", None),
        ("leave directory locked; moves closes; end; moves closed", "streams-closed", None),
        ("moves failed", "streams-error-cause", None),
        ("ask; look", "streams-error-due", None),
        ("end; look", "streams-live-threads", None),
        ("stay; end", "streams-dead-left", None),
        ("thread revoked; look", "streams-derived", None),
        ("thread lost; look", "streams-derived", None),
        ("thread revoked lost-revoked back", "streams-reconnects", None),
    ],
)  # fmt: skip
def test_a_client_and_its_listener(script: str, invariants: str, told: str | None) -> None:
    scene = Scene()
    scene.run()
    assert scene.found == []
    found = scene.play(script)
    assert {invariant for invariant, _ in found} == set(invariants.split())
    texts = [text for invariant, text in found if invariant == "streams-listener"]
    assert texts[:1] == ([told] if told else [])
    assert "look; look" not in script or len(texts) == 1
