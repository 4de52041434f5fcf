"""The internal topics of Streams applications: created when a group waits for them (KIP-1071).

A topic that can't be created is not tried again for a while; members are explained why instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.acls import CLUSTER_NAME, AclOperation, AclResourceType
from fencepost.coordinator.protocol.outcome import CreateInternalTopics

if TYPE_CHECKING:
    from fencepost.coordinator.server.services import May

_SHOWN = 3
"""Number of failures that a status names."""


class InternalTopics:
    """Creates topics with `create`, which returns reasons for failures, and remembers failures by group."""

    def __init__(self) -> None:
        self.create: Callable[[Sequence[streams.TopicInfo]], Mapping[str, str]] = lambda topics: {}
        self._denied: dict[str, tuple[str, ...]] = {}
        """The topics of a group that the client whose request is handled may not create."""
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

    def deny(self, effect: CreateInternalTopics, may: May | None) -> bool:
        """Return true if a client may not create some of these topics: then none of them is created."""
        create = AclOperation.CREATE
        if may is None or may(create, AclResourceType.CLUSTER, CLUSTER_NAME):
            return False
        names = (topic.name for topic in effect.topics)
        denied = tuple(name for name in names if not may(create, AclResourceType.TOPIC, name))
        if denied:
            self._denied[effect.group_id] = denied
        return bool(denied)

    def explained(
        self, group_id: str, reply: streams.StreamsGroupHeartbeatResponse, now_ms: int
    ) -> streams.StreamsGroupHeartbeatResponse:
        """Return the response to a member, with the reasons if topics of its group could not be created."""
        denied = self._denied.pop(group_id, ())
        if denied:
            return _with_problem(reply, f"Unauthorized to CREATE on topics {', '.join(denied)}.")
        known = self._failures.get(group_id)
        if known is None or not reply.status:
            return reply
        failed = [f"{name} ({text})" for name, (until_ms, text) in known.items() if until_ms > now_ms]
        if not failed:
            return reply
        more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        return _with_problem(reply, f"Creation failed: {', '.join(failed[:_SHOWN])}{more}.")


def _with_problem(
    reply: streams.StreamsGroupHeartbeatResponse, problem: str
) -> streams.StreamsGroupHeartbeatResponse:
    """Return the response with a reason why its topics are missing."""
    status = tuple(
        msgspec.structs.replace(one, detail=f"{one.detail}; {problem}")
        if one.code is streams.StatusCode.MISSING_INTERNAL_TOPICS
        else one
        for one in reply.status or ()
    )
    if not any(one.code is streams.StatusCode.MISSING_INTERNAL_TOPICS for one in status):
        status += (streams.Status(code=streams.StatusCode.MISSING_INTERNAL_TOPICS, detail=problem),)
    return msgspec.structs.replace(reply, status=status)
