"""What differs from Kafka 4.3.1 and 4.4.0 on purpose: the table in docs/deviations.md is made from this list.

A request that shows one of them ends its schedule, since the two sides may be in different states from
then on, except where `ends_schedule` says that they are not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.streams import TaskIds
from fencepost.simulation.lab.conform.exchange import ConformExchange
from fencepost.simulation.lab.conform.schedule import (
    Beat,
    ClassicJoinStep,
    ClassicSyncStep,
    DescribeStreams,
    StreamsBeat,
)

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
    ends_schedule: bool = True
    """Whether the two sides may be in different states from then on."""


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


def _changes_roles(x: ConformExchange, fields: Sequence[str]) -> bool:
    """Whether a member of a streams group is to have a task in another role than it has it in now."""
    if x.config.release_version is ReleaseVersion.V4_3 or x.before.streams is None or x.after.streams is None:
        return False
    old = x.before.streams.members.get(getattr(x.request, "member_id", ""))
    new = None if old is None else x.after.streams.targets.get(old.member_id)
    if old is None or new is None:
        return False
    had = (old.assigned.active, old.assigned.standby)
    return _overlaps(had[0], new.standby) or _overlaps(had[1], new.active)


def _static_streams_member(x: ConformExchange, fields: Sequence[str]) -> bool:
    return (
        isinstance(x.step, StreamsBeat)
        and x.config.release_version is not ReleaseVersion.V4_3
        and x.request.instance_id is not None
        and x.code is ErrorCode.INVALID_REQUEST
    )


def _overlaps(first: TaskIds, second: TaskIds) -> bool:
    return any(not set(numbers).isdisjoint(second.get(one, ())) for one, numbers in first.items())


def _waits_twice(x: ConformExchange, fields: Sequence[str]) -> bool:
    return x.answer is None and x.superseded and x.code is ErrorCode.REBALANCE_IN_PROGRESS


def _leaves_while_it_waits(x: ConformExchange, fields: Sequence[str]) -> bool:
    return x.answer is None and isinstance(x.step, ClassicSyncStep) and x.code is ErrorCode.UNKNOWN_MEMBER_ID


def _unexpected(x: ConformExchange) -> bool:
    return getattr(x.answer, "error_code", None) is ErrorCode.UNKNOWN_SERVER_ERROR


def _dynamic_id_made_static(x: ConformExchange, fields: Sequence[str]) -> bool:
    return (
        isinstance(x.step, ClassicJoinStep)
        and _unexpected(x)
        and x.request.instance_id is not None
        and x.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
    )


def _malformed_subscription(x: ConformExchange, fields: Sequence[str]) -> bool:
    return (
        isinstance(x.step, ClassicJoinStep)
        and _unexpected(x)
        and x.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


def _upgrades(x: ConformExchange) -> bool:
    return isinstance(x.step, Beat) and x.before.classic is not None


def _upgrade_without_protocol(x: ConformExchange, fields: Sequence[str]) -> bool:
    return _upgrades(x) and _unexpected(x) and x.code is ErrorCode.NONE


def _upgrade_of_two_owners(x: ConformExchange, fields: Sequence[str]) -> bool:
    return _upgrades(x) and _unexpected(x) and x.code is ErrorCode.GROUP_ID_NOT_FOUND


def _static_upgrade(x: ConformExchange, fields: Sequence[str]) -> bool:
    """Whether a static member converted its group, and ours alone begins an epoch by it."""
    returned = _upgrades(x) and x.request.instance_id is not None and x.code is ErrorCode.NONE
    return returned and x.after.group_epoch > x.answer.member_epoch


def _static_downgrade(x: ConformExchange, fields: Sequence[str]) -> bool:
    generation = all(field.startswith("generation: ") for field in fields)
    return x.history.static_downgrade or (x.rebalances_by_downgrade and generation)


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

WARMS_TASKS_UP = Deviation(
    name="streams-warm-up",
    kafka="4.4 has tasks with state warmed up by the member that they are to move to, if it is far behind.",
    fencepost="Tasks move at once, as in 4.3; of the other choices of 4.4 each is taken over.",
    why="Streams groups have the task assignor of 4.3.",
    explains=_never,
)
"""Told by the broker's target."""

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
        fencepost="Nobody is asked.",
        why="Nothing is warmed up.",
        explains=_task_offsets_wanted,
        ends_schedule=False,
    ),
    WARMS_TASKS_UP,
    Deviation(
        name="streams-static-members",
        kafka="4.4 has static members of streams groups.",
        fencepost="A heartbeat with an instance id is refused with INVALID_REQUEST, as in 4.3.",
        why="Streams groups follow the rules of 4.3.",
        explains=_static_streams_member,
    ),
    Deviation(
        name="streams-task-changes-role",
        kafka="4.4: a member that has a task as a standby and is to have it as an active one, or the other "
        "way round, is given the new role in the response that takes the old one away.",
        fencepost="As in 4.3: the old role is revoked first, and the new one given when that is confirmed.",
        why="Streams groups follow the rules of 4.3.",
        explains=_changes_roles,
    ),
    Deviation(
        name="classic-request-repeated",
        kafka="The first of two JoinGroup or SyncGroup requests of a member that waits is never answered.",
        fencepost="It is answered with REBALANCE_IN_PROGRESS.",
        why="Who waits must be answered; a client that sent again takes no notice.",
        explains=_waits_twice,
        ends_schedule=False,
    ),
    Deviation(
        name="classic-sync-left",
        kafka="SyncGroup of a member that leaves, or is removed, while it waits is never answered.",
        fencepost="It is answered with UNKNOWN_MEMBER_ID.",
        why="Who waits must be answered.",
        explains=_leaves_while_it_waits,
        ends_schedule=False,
    ),
    Deviation(
        name="classic-dynamic-made-static",
        kafka="JoinGroup with an instance id, under an id that was given to a dynamic member: "
        "UNKNOWN_SERVER_ERROR.",
        fencepost="UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member holds the instance id.",
        why="There is a code for it.",
        explains=_dynamic_id_made_static,
    ),
    Deviation(
        name="classic-subscription-malformed",
        kafka="JoinGroup of a consumer whose subscription can't be read: UNKNOWN_SERVER_ERROR from a "
        "consumer group; no answer from a classic one, if the bytes announce more than there is.",
        fencepost="INCONSISTENT_GROUP_PROTOCOL; from a classic group it joins, and is taken to subscribe to "
        "any topic.",
        why="Who waits must be answered.",
        explains=_malformed_subscription,
    ),
    Deviation(
        name="migration-without-protocol",
        kafka="A consumer that joins a classic group in its first round, when no protocol is chosen yet, "
        "gets UNKNOWN_SERVER_ERROR.",
        fencepost="The group is upgraded, by what each member offers first.",
        why="Nobody did anything wrong.",
        explains=_upgrade_without_protocol,
    ),
    Deviation(
        name="migration-of-two-owners",
        kafka="A consumer that joins a classic group whose leader has given one partition to two members "
        "gets UNKNOWN_SERVER_ERROR.",
        fencepost="GROUP_ID_NOT_FOUND, as for other assignments that can't be taken over.",
        why="The joining member did nothing wrong.",
        explains=_upgrade_of_two_owners,
    ),
    Deviation(
        name="migration-by-static-member",
        kafka="A static member that comes back with KIP-848 converts its group without a rebalance, even if "
        "the group is in a round, or if its topics have got partitions which no round has seen: these are "
        "taken for known, and nobody reads them until the group rebalances for another reason.",
        fencepost="The group rebalances.",
        why="Nobody would own what was about to move, or is new.",
        explains=_static_upgrade,
    ),
    Deviation(
        name="migration-back-by-static-member",
        kafka="A static member that comes back with the classic protocol converts its group without a "
        "rebalance, even if members wait for partitions, or have not taken up the last target. If another "
        "target is due, the group rebalances, and the member is told generation 0.",
        fencepost="The group rebalances in all of these cases, and the member is told its generation.",
        why="Nobody would own what was about to move, and SyncGroup would fail at generation 0.",
        explains=_static_downgrade,
    ),
)


def deviation_of(
    exchange: ConformExchange, fields: Sequence[str], *, ends_schedule: bool = True
) -> Deviation | None:
    """The first deviation of that sort that accounts for a difference, if there is one."""
    fitting = (one for one in DEVIATIONS if one.ends_schedule is ends_schedule)
    return next((one for one in fitting if one.explains(exchange, fields)), None)
