"""The input and the output of an assignor. An assignor is a plain function from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicId


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A group's subscriptions, the existing partitions, and the target of the previous epoch.

    `partitions` has the count of each existing topic with a subscriber. Members are in the order of their
    ids. An assignor's result depends on nothing else.
    """

    subscriptions: Mapping[MemberId, tuple[TopicId, ...]]
    """Existing topics of each member's effective subscription, ascending; equal ones are one object."""
    partitions: Mapping[TopicId, int]
    targets: Mapping[MemberId, Partitions] = {}
    """The current target; members without one may be missing, members that left are not in it.

    No partition is in two targets, and none is beyond its topic's count: a topic never shrinks.
    """
    instance_ids: Mapping[MemberId, str] = {}
    """The static members among them."""
    homogeneous: bool = True
    """True if all members have the same subscription."""


Assignor: TypeAlias = Callable[[GroupSpec], Mapping[MemberId, Partitions]]
"""Returns the target of each member; members that are missing in the result get nothing."""


def may_assign_again(computed_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Return true if the interval since a group's last target has passed (KIP-1263); 0 if there was no
    target."""
    return computed_ms == 0 or interval_ms == 0 or now_ms >= computed_ms + interval_ms
