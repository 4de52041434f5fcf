"""What differs from Kafka 4.3.1 and 4.4.0 on purpose: the table in docs/deviations.md is made from this list.

A request that shows one of them ends its schedule, since the two sides may be in different states from
then on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.lab.conform.exchange import ConformExchange
from fencepost.simulation.lab.conform.schedule import DescribeStreams

_DECLARED = re.compile(
    r"groups\[0\]\.subtopologies\[\d+\]\.(?:state_changelog|repartition_source)_topics\[\d+\]\.partitions: "
)


class Deviation(NamedTuple):
    """One deliberate deviation, and how to recognize it."""

    name: str
    kafka: str
    fencepost: str
    why: str
    explains: Callable[[ConformExchange, Sequence[str]], bool]
    """Whether it accounts for all of these differing fields."""


def _subscription_changed_silently(x: ConformExchange) -> bool:
    """Whether the member's subscription is another one than before although the epoch did not rise."""
    old, new = getattr(x, "known", None), x.member
    if new is None or x.bumped:
        return False
    before = ((), None) if old is None else (old.subscribed_topic_names, old.regex)
    return old is None or before != (new.subscribed_topic_names, new.regex)


def _stale_subscription_type(x: ConformExchange, fields: Sequence[str]) -> bool:
    return all(field.startswith("target: ") for field in fields) and _subscription_changed_silently(x)


def _takes_instance_id(x: ConformExchange, fields: Sequence[str]) -> bool:
    return x.merges or x.history.merged


def _abandoned_instance_id(x: ConformExchange, fields: Sequence[str]) -> bool:
    asked = {getattr(x.request, "instance_id", None)}
    asked |= {member.instance_id for member in getattr(x.request, "members", ())}
    return not asked.isdisjoint(x.history.abandoned)


def _simple_group_ended(x: ConformExchange, fields: Sequence[str]) -> bool:
    return not x.before.exists and not x.before.has_offsets and x.group_id in x.history.simple


def _full_for_an_instance(x: ConformExchange, fields: Sequence[str]) -> bool:
    refused = getattr(x.answer, "error_code", None) is ErrorCode.GROUP_MAX_SIZE_REACHED
    return refused and getattr(x.request, "instance_id", None) in x.before.instances


def _described_as_declared(x: ConformExchange, fields: Sequence[str]) -> bool:
    return isinstance(x.step, DescribeStreams) and all(_DECLARED.match(field) for field in fields)


def _tied(x: ConformExchange, fields: Sequence[str]) -> bool:
    """Whether no assignor had more votes than any other, before the request or after it."""
    if x.config.release_version is ReleaseVersion.V4_3:
        return False
    for view in (x.before, x.after):
        votes = Counter(each.server_assignor for each in view.members.values() if each.server_assignor)
        first, *others = [count for _, count in votes.most_common(2)] or [0]
        if first in others:
            return True
    return False


def _task_offsets_wanted(x: ConformExchange, fields: Sequence[str]) -> bool:
    return all(field.startswith("task_offset_interval_ms: ") for field in fields)


def _never(x: ConformExchange, fields: Sequence[str]) -> bool:
    return False


NOTHING_MATCHES = Deviation(
    name="expression-matches-nothing",
    kafka="When a member changes to an expression that turns out to match nothing, the target stays what it "
    "was: it gives that member partitions of its earlier subscription, which nobody reads.",
    fencepost="The group's epoch is raised, and the target follows.",
    why="A partition with subscribers must have a reader.",
    explains=_never,
)
"""Told by the group's epoch once expressions are matched, not by a request."""

TAKES_INSTANCE_ID = Deviation(
    name="dynamic-member-becomes-static",
    kafka="A known dynamic member that joins again, now with an instance id, is given the target of that "
    "instance id, which is empty if nobody had it: it loses all partitions until the next epoch. If "
    "it takes over from a static member that is away, it waits for its own partitions, and the expression "
    "that it had before goes on counting: another one that matches nothing else raises no epoch.",
    fencepost="It keeps its target, or takes over the other's; what it had before counts as released, its "
    "expression too.",
    why="A partition with subscribers must have a reader.",
    explains=_takes_instance_id,
)
"""Told by requests, and by the group's epoch once expressions are matched."""

DEVIATIONS: tuple[Deviation, ...] = (
    NOTHING_MATCHES,
    Deviation(
        name="stale-subscription-type",
        kafka="When a member joins without topics, or changes to an expression that is not resolved yet, "
        "just when a new target is due, the assignors are told of the subscriptions as they were before. "
        "`uniform` may give that member partitions which it does not subscribe to, `range` may give some to "
        "nobody. They have no reader until the next epoch.",
        fencepost="The subscriptions are counted with the member that sends the heartbeat.",
        why="A partition with subscribers must have a reader.",
        explains=_stale_subscription_type,
    ),
    Deviation(
        name="abandoned-instance-id",
        kafka="A static member that joins again under another instance id keeps the old one too, until it "
        "leaves (KAFKA-20747, mended after 4.3.1): nobody else can have it.",
        fencepost="The old instance id is free.",
        why="It is a defect, and mended in later releases.",
        explains=_abandoned_instance_id,
    ),
    TAKES_INSTANCE_ID,
    Deviation(
        name="static-member-of-a-full-group",
        kafka="A full group refuses a known instance id under another member id, so a static member cannot "
        "return to it (KAFKA-20601, mended after 4.3.1).",
        fencepost="It returns; it is no additional member.",
        why="It is a defect, and mended in later releases.",
        explains=_full_for_an_instance,
    ),
    Deviation(
        name="simple-group-without-offsets",
        kafka="A group that consists of committed offsets stays in memory when its last offset is deleted, "
        "or when its first commit is refused for its metadata, or is one of a transaction that is aborted: "
        "it is listed, and can be deleted. A restart of the broker, or the next sweep, ends it.",
        fencepost="It is gone with its last offset.",
        why="What is in no record does not exist: a coordinator must not answer differently after a restart.",
        explains=_simple_group_ended,
    ),
    Deviation(
        name="streams-topology-described",
        kafka="StreamsGroupDescribe shows the internal topics of a topology with the numbers of partitions "
        "that the application declared, 0 as a rule, until another record is written to the same partition "
        "of `__consumer_offsets` after the topics were found; then with those that were decided.",
        fencepost="The numbers that were decided are shown as soon as they are.",
        why="An answer about one group must not depend on what other groups do.",
        explains=_described_as_declared,
    ),
    Deviation(
        name="assignors-tied",
        kafka="4.4: while as many members ask for one assignor as for another, heartbeats that change "
        "nothing raise the group's epoch again and again, and the group does not settle.",
        fencepost="The epoch is raised when a member asks for another assignor and that decides.",
        why="A group must come to rest.",
        explains=_tied,
    ),
    Deviation(
        name="streams-task-offsets",
        kafka="4.4 asks members of streams groups how far their tasks have got, to warm tasks up before "
        "they move.",
        fencepost="Nobody is asked, and tasks move at once, as in 4.3.",
        why="Streams groups follow the rules of 4.3.",
        explains=_task_offsets_wanted,
    ),
)


def deviation_of(exchange: ConformExchange, fields: Sequence[str]) -> Deviation | None:
    """The first deviation that accounts for a difference, if there is one."""
    return next((one for one in DEVIATIONS if one.explains(exchange, fields)), None)
