"""The shadow coordinator for observers. It repeats each step later than the coordinator that serves clients.

Observers inspect the coordinator after each step. Inspection takes longer than the step, so it runs on this
copy.
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
    """One step of the coordinator that serves clients."""

    shard: Shard
    event: Event
    outcome: Outcome
    failure: AppendFailed | None
    """The error if its records were not appended."""
    now_ms: int
    due_ms: int
    """The time of the step in the trace: a timer of a real loop fires a little late."""


class ShadowDiverged(Exception):
    """Raised if the same step led to a different outcome."""


class _Again:
    """A journal that fails for the same steps as the real one."""

    failure: AppendFailed | None = None

    def append(self, records: tuple[Record, ...]) -> None:
        if self.failure is not None:
            raise self.failure


class ShadowCoordinator:
    """A coordinator that repeats each step. Coordinators are pure: the same events at the same times lead to
    the same outcomes."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self.coordinator = coordinator
        """The coordinator after the last repeated step, which may be some steps behind."""
        self._journal = _Again()
        self._host = CoordinatorHost(coordinator, self._journal)

    def repeat(self, step: ObservedStep) -> None:
        """Repeat a step; its append fails if the original one failed.

        :raises ShadowDiverged: if it leads to a different outcome.
        """
        self._journal.failure = step.failure
        mine = self._host.step(step.event, step.now_ms)
        if mine != step.outcome:
            raise ShadowDiverged(f"{step.event} led to {step.outcome}, and to {mine} when it was taken again")


class ObservedHooks(ServedHooks):
    """The hooks of an observed host. `queue` receives each step once its records are applied.

    `catch_up` makes the shadow coordinator take all queued steps.
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
        """Queue one step; a step of a timer has the timer's own time."""
        due_ms = min(now_ms, event.due_ms) if type(event) is DeadlineReached else now_ms
        self._queue(ObservedStep(self._shard, event, outcome, self.host.failure, now_ms, due_ms))

    steady = stepped

    def configured(self, group_id: str, config: GroupConfig | None) -> None:
        """Give the shadow coordinator's group the same settings."""
        self._catch_up()
        self._shadow.coordinator.set_group_config(group_id, config)

    def closing(self) -> None:
        """Catch up: observers can't read the coordinator later."""
        self._catch_up()
