"""Assignors by name: the two that Kafka ships, and a user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fencepost.coordinator.assign.range_ import range_
from fencepost.coordinator.assign.spec import Assignor, GroupSpec
from fencepost.coordinator.assign.uniform import uniform
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicId

BUILT_IN: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}


class InvalidTarget(Exception):
    """A user's assignor returned something that is not a target; the text says what is wrong with it."""


def configured_assignors(
    names: Iterable[str], own: Mapping[str, Assignor] | None = None
) -> dict[str, Assignor]:
    """Return the assignors of `group.consumer.assignors`, in its order: the first is the default.

    `own` holds a user's assignors by name; their results are checked, and put into canonical form.

    :raises FencepostError: if a name is not registered, or an assignor of the user's takes the name of a
        built-in one.
    """
    registered = dict(BUILT_IN)
    for name, assignor in (own or {}).items():
        if not name.strip() or name in BUILT_IN:
            raise FencepostError(f"an assignor cannot be registered as {name!r}: choose a name of its own")
        registered[name] = checked(name, assignor)
    chosen = {}
    for name in names:
        if name not in registered:
            raise FencepostError(
                f"group.consumer.assignors: {name!r} is not registered; there are {', '.join(registered)}"
            )
        chosen[name] = registered[name]
    return chosen


def checked(name: str, assignor: Assignor) -> Assignor:
    """Return an assignor whose results are checked: group state must not depend on the care of a user.

    It raises InvalidTarget for partitions that do not exist, that a member does not subscribe to, or that are
    given twice. It does so for members outside of the group, too. A partition may be given to no member, as
    in Kafka.
    """

    def assign(spec: GroupSpec) -> Mapping[MemberId, Partitions]:
        answer = assignor(spec)
        if unknown := [member for member in answer if member not in spec.subscriptions]:
            raise InvalidTarget(f"assignor {name} gives partitions to {unknown[0]}, which is not a member")
        taken: dict[TopicId, set[int]] = {}
        target: dict[MemberId, Partitions] = {}
        for member in spec.subscriptions:
            partitions = answer.get(member, {})
            for topic, numbers in partitions.items():
                if topic not in spec.subscriptions[member]:
                    raise InvalidTarget(f"assignor {name} gives {member} of topic {topic}: not subscribed")
                _take(name, topic, numbers, spec.partitions[topic], taken.setdefault(topic, set()))
            old = spec.targets.get(member)
            canonical = {
                topic: tuple(sorted(partitions[topic])) for topic in sorted(partitions) if partitions[topic]
            }
            target[member] = old if old == canonical else canonical
        return target

    return assign


def _take(name: str, topic: TopicId, numbers: Iterable[int], count: int, taken: set[int]) -> None:
    for number in numbers:
        if not 0 <= number < count:
            raise InvalidTarget(f"assignor {name} gives partition {number} of {topic}, which has {count}")
        if number in taken:
            raise InvalidTarget(f"assignor {name} gives partition {number} of {topic} twice")
        taken.add(number)
