"""One stream thread, as a pure state machine, and the base that it shares with the client's machine."""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.member.streams.actions import Action, Level, MoveRefused, StreamsMoved
from fencepost.member.streams.thread_states import CONNECTED, RUNNING, STREAM_THREAD
from fencepost.member.streams.thread_states import StreamThreadEvent as E
from fencepost.member.streams.thread_states import StreamThreadState as S

StateT = TypeVar("StateT", bound=enum.StrEnum)
EventT = TypeVar("EventT", bound=enum.StrEnum)


class Moving(Generic[StateT, EventT]):
    """A state that moves along its table, reports each step to `out`, and counts the moves that the table
    refuses."""

    __slots__ = ("_out", "_table", "level", "name", "refusals", "state")

    def __init__(self, table: StateTable[StateT, EventT], level: Level, name: str, out: list[Action]) -> None:
        self._table = table
        self._out = out
        self.level = level
        self.name = name
        self.state: StateT = table.initial
        self.refusals = 0
        """Number of moves that were refused without an error."""

    def move(self, event: EventT, target: StateT) -> bool:
        """Take the arrow. Return false, and change nothing, if the table refuses the move.

        :raises IllegalTransition: if the table neither has the arrow nor refuses the move.
        """
        source = self.state
        if self._table.refuses(source, target):
            self.refusals += 1
            self._out.append(MoveRefused(self.level, self.name, event, source, target))
            return False
        self._table.check(source, event, target)
        self._out.append(StreamsMoved(self.level, self.name, event, source, target))
        self.state = target
        return True


class StreamThread(Moving[S, E]):
    """A thread's state, and the one that a lost connection hides; `<client id>-StreamThread-<index>`."""

    __slots__ = ("_hidden", "index", "launched", "number")

    def __init__(self, client_id: str, index: int, number: int, out: list[Action]) -> None:
        super().__init__(STREAM_THREAD, Level.THREAD, f"{client_id}-StreamThread-{index}", out)
        self.index = index
        self.number = number
        """The number of its static member. A replacement has the number of the thread that it replaces, which
        may be closing still."""
        self.launched = False
        """True if a shell was asked to run it: only then there is anything to wait for when it ends."""
        self._hidden = S.STARTING

    # -- state -------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True if it is started and not about to end, connected or not (KIP-457)."""
        return self.state in RUNNING

    @property
    def is_live(self) -> bool:
        """True if it is not about to end: also before it has started."""
        return self.state is S.CREATED or self.state in RUNNING

    @property
    def underneath(self) -> S:
        """The state, or while disconnected the state before."""
        return self._hidden if self.state is S.DISCONNECTED else self.state

    # -- events ------------------------------------------------------------------------------------------

    def started(self) -> bool:
        """Note that it runs. Return false if it was stopped before: then it has nothing to do."""
        return self.move(E.STARTED, S.STARTING)

    def revoked(self) -> None:
        """Note that a rebalance begins: partitions are taken away, or none are; or all are lost."""
        self.move(E.REVOKED, S.PARTITIONS_REVOKED)

    def assigned(self) -> None:
        """Note that a rebalance has given it partitions, or none. One without revocations begins here."""
        if self.state is not S.PARTITIONS_REVOKED and self.is_running:
            self.revoked()
        self.move(E.ASSIGNED, S.PARTITIONS_ASSIGNED)

    def ready(self) -> None:
        """Note that all its tasks are restored. It has an effect in PARTITIONS_ASSIGNED only."""
        if self.state is S.PARTITIONS_ASSIGNED:
            self.move(E.READY, S.RUNNING)

    def connection(self, *, connected: bool) -> None:
        """Take in the result of its member's `is_connected()`."""
        if connected and self.state is S.DISCONNECTED:
            self.move(E.CONNECTION_BACK, self._hidden)
        elif not connected and self.state in CONNECTED:
            self._hidden = self.state
            self.move(E.CONNECTION_LOST, S.DISCONNECTED)

    def shut_down(self) -> bool:
        """Stop it. Return false if it was stopped before: the first stop decides what follows."""
        return self.move(E.SHUTDOWN, S.PENDING_SHUTDOWN)

    def ended(self) -> None:
        """Note that everything of it is closed."""
        if self.is_live:
            self.shut_down()
        self.move(E.ENDED, S.DEAD)
