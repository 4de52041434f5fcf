"""The shadow coordinator: a second one, for observers. It takes the same steps, behind the one that answers.

An observer reads a coordinator as it was after a step, and that takes longer than the step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.protocol.outcome import DeadlineReached, Event, Outcome
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.server.groups import ServedHooks, Shard
from fencepost.coordinator.server.internal_topics import InternalTopics


class ObservedStep(NamedTuple):
    """One step of the coordinator that answers."""

    shard: Shard
    event: Event
    outcome: Outcome
    failure: AppendFailed | None
    """Why its records were not kept."""
    now_ms: int
    due_ms: int
    """The time that the trace gives it: a timer of a real loop fires a little late."""


class ShadowDiverged(Exception):
    """The same step led to something else."""


class _Again:
    """A journal that fails where the other one did."""

    failure: AppendFailed | None = None

    def append(self, records: tuple[Record, ...]) -> None:
        if self.failure is not None:
            raise self.failure


class ShadowCoordinator:
    """Coordinators are pure: the same events at the same times lead to the same outcomes."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self.coordinator = coordinator
        """As it was after the last step that was taken here, which may be some steps ago."""
        self._journal = _Again()
        self._host = CoordinatorHost(coordinator, self._journal)

    def repeat(self, step: ObservedStep) -> None:
        """Take a step again, and fail to append its records if they were not appended.

        :raises ShadowDiverged: if it leads to another one.
        """
        self._journal.failure = step.failure
        mine = self._host.step(step.event, step.now_ms)
        if mine != step.outcome:
            raise ShadowDiverged(f"{step.event} led to {step.outcome}, and to {mine} when it was taken again")


class ObservedHooks(ServedHooks):
    """The hooks of a served host that is observed. `queue` takes each step once its records are applied.

    `catch_up` lets the shadow coordinator take all steps that it has not taken yet.
    """

    __slots__ = ("_catch_up", "_queue", "_shadow", "_shard")

    def __init__(
        self,
        internal_topics: InternalTopics,
        shard: Shard,
        shadow: ShadowCoordinator,
        queue: Callable[[ObservedStep], None],
        catch_up: Callable[[], None],
    ) -> None:
        super().__init__(internal_topics)
        self._shard = shard
        self._shadow = shadow
        self._queue = queue
        self._catch_up = catch_up

    def stepped(self, event: Event, outcome: Outcome, now_ms: int) -> None:
        """Queue one step; what a timer did has the timer's own time."""
        due_ms = min(now_ms, event.due_ms) if type(event) is DeadlineReached else now_ms
        self._queue(ObservedStep(self._shard, event, outcome, self.host.failure, now_ms, due_ms))

    steady = stepped

    def configured(self, group_id: str, config: GroupConfig | None) -> None:
        """Give the shadow coordinator's group the same settings."""
        self._catch_up()
        self._shadow.coordinator.set_group_config(group_id, config)

    def closing(self) -> None:
        """Catch up: observers can't read the coordinator any more."""
        self._catch_up()
