"""A coordinator of which nothing is known but its journal, under the eyes of the judges of records."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.judge import real_judges
from fencepost.simulation.judge.coordination import ObservedCoordination
from fencepost.simulation.kernel.observers import Observer, RecordsObserved, hook_lists
from fencepost.simulation.lab.chaos.played import PlayedCoordinator
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.writer import TraceWriter


class PlayedGroup(Observer):
    """The world of one group; `played` takes what arrives of its journal."""

    def __init__(self, group_id: str, config: GroupCoordinatorConfig | None = None) -> None:
        self.group_id = group_id
        self.config = config or GroupCoordinatorConfig()
        self.members: dict[str, Any] = {}
        self.hosts_by_member: dict[str, str] = {}
        self.findings: list[tuple[str, str]] = []
        self.steps: list[RecordsObserved] = []
        self.rows: list[Any] = []
        self.recorder = TraceRows(world="real", group=group_id, sink=self)
        judges = [each for each in real_judges() if isinstance(each, ObservedCoordination)]
        observers = [TraceWriter(self.recorder), *judges]
        for observer in observers:
            observer.attach(
                self, lambda invariant, message, rule="": self.findings.append((invariant, message))
            )  # type: ignore[arg-type]
        hooks = hook_lists([*observers, self])  # type: ignore[list-item]
        self.played = PlayedCoordinator(group_id, config=self.config, hooks=hooks)

    @property
    def active(self) -> GroupCoordinator:
        return self.played.coordinator

    @property
    def topics(self) -> TopicsImage:
        return self.active.image

    def write(self, rows: Any, /) -> None:
        self.rows.extend(rows)

    def on_coordinator_step(self, host: str, event: Any, outcome: Any, now_us: int) -> None:
        self.steps.append(event)

    @property
    def broken(self) -> set[str]:
        return {invariant for invariant, _ in self.findings}
