"""Checks of the requests that the threads of an application send as members of a streams group (KIP-1071).

Membership is that of a consumer group's member, and so are the rules. A thread's name stands for its host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest
from fencepost.simulation.judge.requests import Requests

if TYPE_CHECKING:
    from fencepost.simulation.streams.world import StreamsWorld


class ThreadRequests(Requests):
    """Checks heartbeats as the members' machines send them, and the tasks in what becomes of them.

    A subtopology has one topic: its id stands for the topic's.
    """

    world: StreamsWorld  # type: ignore[assignment]  # its scenario is of another kind

    def _learn_names(self) -> None:
        if not self._names:
            topics = self.world.scenario.topics
            self._names.update((str(number), topic.name) for number, topic in enumerate(topics))

    @property
    def _commits_by_itself(self) -> bool:
        return False

    def _asks_for_assignor(self, host: str, request: ConsumerGroupHeartbeatRequest) -> None:
        """Members of a streams group choose no assignor."""

    def on_tasks(self, host: str, request: StreamsGroupHeartbeatRequest) -> None:
        """Check the active tasks that a heartbeat lists, as it is sent to the coordinator."""
        if request.member_epoch > 0 and request.active_tasks is not None:
            self.report_all(self.processes[host].honest(request.active_tasks, request.member_epoch))
