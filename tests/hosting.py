"""Coordinators and their hosts whose time is moved by the test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.coordinator.assign.spec import Assignor
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.outcome import DeadlineReached, Event, Outcome, TopicsChanged
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.sac.coordinator import SacOutcome


def steps_due(host: CoordinatorHost[Any], now_ms: int) -> list[Any]:
    """Run all timers that are due; return the outcomes that wrote or did something, and all of SAC groups."""
    outcomes = []
    while (due_ms := host.coordinator.next_deadline()) is not None and due_ms <= now_ms:
        outcome = host.step(DeadlineReached(due_ms), now_ms)
        if outcome.records or outcome.effects or isinstance(outcome, SacOutcome):
            outcomes.append(outcome)
    return outcomes


class HostedScene:
    """One coordinator with its journal, at a time that tests move."""

    def __init__(self, assignors: Mapping[str, Assignor] | None = None, **config: Any) -> None:
        self.config = GroupCoordinatorConfig(**config)
        self.coordinator = GroupCoordinator(self.config, assignors)
        self.journal = MemoryJournal()
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        self.now_ms = 1_000
        self.image = TopicsImage()
        self.last = Outcome()

    def topics(self, **partitions: int) -> None:
        """Exactly these topics exist from now on, `_` standing for `-`; 0 means that there is none."""
        named = {name.replace("_", "-"): count for name, count in partitions.items() if count}
        topics = [Topic(topic_id=f"id-of-{n}", name=n, partitions=c) for n, c in named.items()]
        self.image = TopicsImage.of(topics, self.image.version + 1)
        self.process(TopicsChanged(image=self.image))

    def process(self, event: Event) -> Outcome:
        self.last = self.runtime.step(event, self.now_ms)
        return self.last

    def after(self, by_ms: int) -> list[Outcome]:
        """Time passes, and what is due happens."""
        self.now_ms += by_ms
        return steps_due(self.runtime, self.now_ms)

    def written(self) -> list[str]:
        """The records of the last step: their type's number, `-` for tombstones, and the member."""
        return [self.short(record) for record in self.last.records]

    @staticmethod
    def short(record: Record) -> str:
        number = type(record.key).__struct_config__.tag
        whom = getattr(record.key, "member_id", getattr(record.key, "regular_expression", ""))
        return f"{'-' if record.value is None else ''}{number}{':' if whom else ''}{whom}"

    def reload(self, *, compact: bool = False) -> None:
        """The coordinator fails over to a new one that loads the journal."""
        if compact:
            self.journal.compact()
        before = self.coordinator.hard_state()
        self.coordinator = GroupCoordinator(self.config)
        self.coordinator.replay(self.journal, self.now_ms)
        self.runtime = CoordinatorHost(self.coordinator, self.journal)
        assert self.coordinator.hard_state() == before
        self.process(TopicsChanged(image=self.image))
