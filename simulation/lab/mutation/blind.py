"""The judge of real runs, put before a simulated one: it sees records and members, and no request arrive."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import Any, Final

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.outcome import Outcome, Request
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.judge import real_judges
from fencepost.simulation.kernel.observers import FindingReport, Observer, StepEvent, WorldView, hook_lists
from fencepost.simulation.lab.chaos.group_log_tail import LoggedRecord
from fencepost.simulation.lab.chaos.observed import SETTLE_MS
from fencepost.simulation.lab.chaos.outcomes import outcomes
from fencepost.simulation.lab.chaos.played import Arrival, PlayedCoordinator

BLIND: Final = "blind "
"""The first part of the name of a rule that saw no request."""

_SEEN: Final = (
    "on_callback",
    "on_commit",
    "on_end",
    "on_fault",
    "on_faults_end",
    "on_loss",
    "on_member_host",
    "on_member_response",
    "on_member_state",
    "on_records_delivered",
    "on_records_processed",
    "on_round_trip",
)
"""The hooks that a real run calls too, as far as nothing else is done for them here."""


def _passed_on(hook: str) -> Callable[..., None]:
    def pass_on(judge: BlindJudge, *arguments: object) -> None:
        judge.tell(hook, *arguments)

    return pass_on


class _SeenWorld:
    """A simulated world of which only what a real one shows can be read."""

    def __init__(self, world: WorldView, active: GroupCoordinator) -> None:
        self._world = world
        self.active = active
        self.journal = MemoryJournal()

    def subscription_of(self, host: str) -> None:
        """Return None: no record shows what processes were told to subscribe to last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


class BlindJudge(Observer):
    """Judges a simulated run as if its brokers were real; for runs of one group of consumers.

    Its rules are those of `real_judges`, with `BLIND` before their names.
    """

    vars().update({hook: _passed_on(hook) for hook in _SEEN})

    def __init__(self, protocols: Container[str] = ("consumer",)) -> None:
        self._judges = real_judges(protocols)
        self._hooks = hook_lists(self._judges)
        self._changed_us: dict[TopicId, int] = {}
        self._image = TopicsImage()
        self._elections = self._offset = 0

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Start with an empty coordinator, to which the records of the world's are applied."""
        self._world = world
        self._played = PlayedCoordinator(world.group_id, config=world.config, hooks=self._hooks)
        seen: Any = _SeenWorld(world, self._played.coordinator)

        def pass_on(invariant: str, message: str, /, rule: str = "") -> None:
            report(invariant, message, BLIND + rule)

        for judge in self._judges:
            judge.attach(seen, pass_on)

    def tell(self, hook: str, *arguments: object) -> None:
        """Notify the rules by this hook."""
        for method in self._hooks[hook]:
            method(*arguments)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Play the records, cut into outcomes as those of a real log are."""
        live = self._world.coordinators[host].coordinator
        if live is None:
            return
        batch = [LoggedRecord(self._offset, now_us // 1_000, each) for each in outcome.records]
        unsettled = {topic for topic, at_us in self._changed_us.items() if now_us - at_us < SETTLE_MS * 1_000}
        for piece in outcomes(batch):
            self._offset += len(piece)
            arrival = Arrival(
                t_us=now_us,
                timestamp_ms=now_us // 1_000,
                offset=self._offset,
                leader=int(re.sub(r"\D", "", host) or 0),
                leader_epoch=self._elections,
                records=tuple(each.record for each in piece),  # type: ignore[misc]
                image=live.image,
                unsettled=frozenset(unsettled),
            )
            self._played.play(arrival, now_us)

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Count elections: the next record shows that another broker coordinates."""
        self._elections += what == "active"

    def on_member_request(self, host: str, request: Request, now_us: int) -> None:
        """Note a leave, and pass the request on as one that a member reports."""
        if isinstance(request, LeaveGroupRequest) or (
            isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch < 0
        ):
            self._played.left(request.member_id)
        self.tell("on_member_request", host, request, now_us)

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Note that the coordinator may not have seen the change yet."""
        before, now = self._image.by_id, self._world.topics.by_id
        self._changed_us.update(
            {each: now_us for each in {*before, *now} if before.get(each) != now.get(each)}
        )
        self._image = self._world.topics
        self.tell("on_topic", topic, what, partitions, now_us)
