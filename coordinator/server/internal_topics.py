"""The internal topics of Streams applications: created when a group waits for them (KIP-1071).

A topic that can't be created is not tried again for a while; members are explained why instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from fencepost.coordinator.protocol.outcome import CreateInternalTopics
from fencepost.coordinator.protocol.streams import StatusCode, StreamsGroupHeartbeatResponse, TopicInfo

_SHOWN = 3
"""Number of failures that a status names."""


class InternalTopics:
    """Creates topics with `create`, which returns reasons for failures, and remembers failures by group."""

    def __init__(self) -> None:
        self.create: Callable[[Sequence[TopicInfo]], Mapping[str, str]] = lambda topics: {}
        self._failures: dict[str, dict[str, tuple[int, str]]] = {}
        """By group and topic: the time of the next attempt, and the reason for the failure."""

    def request(self, effect: CreateInternalTopics, *, now_ms: int, retry_ms: int) -> None:
        """Create the topics that a group waits for, except those that failed less than `retry_ms` ago."""
        before = self._failures.pop(effect.group_id, {})
        failures = {name: failure for name, failure in before.items() if failure[0] > now_ms}
        problems = self.create([topic for topic in effect.topics if topic.name not in failures])
        failures |= {name: (now_ms + retry_ms, problem) for name, problem in problems.items()}
        if failures:
            self._failures[effect.group_id] = failures

    def explained(
        self, group_id: str, reply: StreamsGroupHeartbeatResponse, now_ms: int
    ) -> StreamsGroupHeartbeatResponse:
        """Return the response to a member, with the reasons if topics of its group could not be created."""
        known = self._failures.get(group_id)
        if known is None or not reply.status:
            return reply
        failed = [f"{name} ({text})" for name, (until_ms, text) in known.items() if until_ms > now_ms]
        if not failed:
            return reply
        more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        problem = f"; Creation failed: {', '.join(failed[:_SHOWN])}{more}."
        status = tuple(
            msgspec.structs.replace(one, detail=one.detail + problem)
            if one.code is StatusCode.MISSING_INTERNAL_TOPICS
            else one
            for one in reply.status
        )
        return msgspec.structs.replace(reply, status=status)
