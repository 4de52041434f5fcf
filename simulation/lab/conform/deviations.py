"""Deliberate differences from Kafka 4.3.1 and 4.4.0: the table in docs/deviations.md is made from this list.

A request that shows one of them ends its schedule, unless `ends_schedule` is false: the two sides may be in
different states from then on.
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
    Fetch,
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
    """Returns true if the deviation accounts for all of these differing fields."""
    ends_schedule: bool = True
    """True if the two sides may be in different states from then on."""


def _subscription_changed_silently(x: ConformExchange) -> bool:
    """Return true if the member's subscription changed although the epoch did not rise."""
    old, new = getattr(x, "known", None), x.member
    if new is None or x.bumped:
        return False
    before = ((), None) if old is None else (old.subscribed_topic_names, old.regex)
    return old is None or before != (new.subscribed_topic_names, new.regex)


def _abandoned_instance_id(x: ConformExchange, fields: Sequence[str]) -> bool:
    asked = {getattr(x.request, "instance_id", None)}
    asked |= {member.instance_id for member in getattr(x.request, "members", ())}
    return not asked.isdisjoint(x.history.abandoned)


def _tied(x: ConformExchange, fields: Sequence[str]) -> bool:
    """Return true if no assignor had more votes than any other, before the request or after it."""
    if x.config.release_version is ReleaseVersion.V4_3:
        return False
    for view in (x.before, x.after):
        votes = Counter(each.server_assignor for each in view.consumers.values() if each.server_assignor)
        first, *others = [count for _, count in votes.most_common(2)] or [0]
        if first in others:
            return True
    return False


def _changes_roles(x: ConformExchange, fields: Sequence[str]) -> bool:
    """Return true if a member of a streams group is to have a task in another role than it has it in now."""
    if x.config.release_version is ReleaseVersion.V4_3 or {x.before.kind, x.after.kind} != {"streams"}:
        return False
    old = x.before.members.get(getattr(x.request, "member_id", ""))
    new = None if old is None else x.after.targets.get(old.member_id)
    if old is None or new is None:
        return False
    had = (old.assigned.active, old.assigned.standby)
    return _overlaps(had[0], new.standby) or _overlaps(had[1], new.active)


def _overlaps(first: TaskIds, second: TaskIds) -> bool:
    return any(not set(numbers).isdisjoint(second.get(one, ())) for one, numbers in first.items())


def _unexpected(x: ConformExchange) -> bool:
    return getattr(x.answer, "error_code", None) is ErrorCode.UNKNOWN_SERVER_ERROR


def _upgrades(x: ConformExchange) -> bool:
    return isinstance(x.step, Beat) and x.before.kind == "classic"


def _static_upgrade(x: ConformExchange, fields: Sequence[str]) -> bool:
    """Return true if a static member converted its group, and only our side begins an epoch for that."""
    returned = _upgrades(x) and x.request.instance_id is not None and x.code is ErrorCode.NONE
    return returned and x.after.group_epoch > x.answer.member_epoch


NOTHING_MATCHES = Deviation(
    name="expression-matches-nothing",
    kafka="When a member changes to an expression that matches nothing, the target stays unchanged. It "
    "assigns partitions of the earlier subscription to that member, and no member reads them.",
    fencepost="The group epoch rises, and a new target follows.",
    why="A partition with subscribers must have a reader.",
    explains=lambda _, fields: False,
)
"""Shown by the group's epoch once expressions are matched, not by a request."""

TAKES_INSTANCE_ID = Deviation(
    name="dynamic-member-becomes-static",
    kafka="A known dynamic member that rejoins with an instance id gets the target of that instance id."
    " If no member had that id, the target is empty and the member loses all partitions until the"
    " next epoch. If it replaces an absent static member, it waits for its own partitions. Its "
    "earlier expression still counts, so another one that matches nothing more raises no epoch.",
    fencepost="The member keeps its target, or takes over the other one's. Its earlier partitions and "
    "expression count as released.",
    why="A partition with subscribers must have a reader.",
    explains=lambda x, _: x.merges or x.history.merged,
)
"""Shown by requests, and by the group's epoch once expressions are matched."""

WARMS_TASKS_UP = Deviation(
    name="streams-warm-up",
    kafka="In 4.4 the next owner of a stateful task warms it up first if it is far behind.",
    fencepost="Tasks move at once, as in 4.3. Every other choice of 4.4 is accepted.",
    why="Streams groups have the task assignor of 4.3.",
    explains=lambda _, fields: False,
)
"""Shown by the broker's target."""

DEVIATIONS: tuple[Deviation, ...] = (
    NOTHING_MATCHES,
    Deviation(
        name="stale-subscription-type",
        kafka="A member joins without topics, or changes to an unresolved expression, just when a new "
        "target is due. Then the assignors get the old subscriptions. `uniform` may assign partitions"
        " that the member does not subscribe to, and `range` may assign some to no member. They have "
        "no reader until the next epoch.",
        fencepost="The subscriptions include the member that sends the heartbeat.",
        why="A partition with subscribers must have a reader.",
        explains=lambda x, fields: (
            all(field.startswith("target: ") for field in fields) and _subscription_changed_silently(x)
        ),
    ),
    Deviation(
        name="abandoned-instance-id",
        kafka="A static member that rejoins with another instance id keeps the old one too until it leaves "
        "(KAFKA-20747, fixed after 4.3.1). No other member can use it.",
        fencepost="The old instance id is free.",
        why="It is a defect that later releases fix.",
        explains=_abandoned_instance_id,
    ),
    TAKES_INSTANCE_ID,
    Deviation(
        name="static-member-of-a-full-group",
        kafka="A full group refuses a known instance id with another member id, so a static member cannot "
        "return (KAFKA-20601, fixed after 4.3.1).",
        fencepost="The member returns, because it is not an additional member.",
        why="It is a defect that later releases fix.",
        explains=lambda x, _: (
            getattr(x.answer, "error_code", None) is ErrorCode.GROUP_MAX_SIZE_REACHED
            and getattr(x.request, "instance_id", None) in x.before.instances
        ),
    ),
    Deviation(
        name="streams-topology-described",
        kafka="StreamsGroupDescribe shows internal topics with the partition counts that the application "
        "declared, usually 0. It shows the decided counts only after another record is written to the"
        " same partition of `__consumer_offsets`.",
        fencepost="The decided partition counts are shown at once.",
        why="A response about one group must not depend on other groups.",
        explains=lambda x, fields: (
            isinstance(x.step, DescribeStreams) and all(_DECLARED.match(field) for field in fields)
        ),
    ),
    Deviation(
        name="assignors-tied",
        kafka="4.4: if two assignors have equally many votes, heartbeats without changes raise the group "
        "epoch again and again. The group does not settle.",
        fencepost="The epoch rises only if a member's new vote changes the chosen assignor.",
        why="A group must settle.",
        explains=_tied,
    ),
    Deviation(
        name="streams-task-offsets",
        kafka="4.4 asks members of streams groups for their tasks' offsets, to warm up tasks before they "
        "move.",
        fencepost="No member is asked.",
        why="There are no warm-up tasks.",
        explains=lambda _, fields: all(field.startswith("task_offset_interval_ms: ") for field in fields),
        ends_schedule=False,
    ),
    WARMS_TASKS_UP,
    Deviation(
        name="streams-static-members",
        kafka="4.4 supports static members in streams groups.",
        fencepost="A heartbeat with an instance id is refused with INVALID_REQUEST, as in 4.3.",
        why="Streams groups follow the rules of 4.3.",
        explains=lambda x, _: (
            isinstance(x.step, StreamsBeat)
            and x.config.release_version is not ReleaseVersion.V4_3
            and x.request.instance_id is not None
            and x.code is ErrorCode.INVALID_REQUEST
        ),
    ),
    Deviation(
        name="streams-task-changes-role",
        kafka="4.4: when a task changes between standby and active on the same member, one response revokes"
        " the old role and assigns the new one.",
        fencepost="As in 4.3: the old role is revoked first. The new one is assigned after the confirmation.",
        why="Streams groups follow the rules of 4.3.",
        explains=_changes_roles,
    ),
    Deviation(
        name="classic-request-repeated",
        kafka="If a waiting member sends JoinGroup or SyncGroup again, the first request gets no response.",
        fencepost="The first request gets REBALANCE_IN_PROGRESS.",
        why="Each request must get a response. A client that sent again ignores it.",
        explains=lambda x, _: x.answer is None and x.superseded and x.code is ErrorCode.REBALANCE_IN_PROGRESS,
        ends_schedule=False,
    ),
    Deviation(
        name="classic-sync-left",
        kafka="If a member leaves or is removed while its SyncGroup waits, the request gets no response.",
        fencepost="The request gets UNKNOWN_MEMBER_ID.",
        why="Each request must get a response.",
        explains=lambda x, _: (
            x.answer is None and isinstance(x.step, ClassicSyncStep) and x.code is ErrorCode.UNKNOWN_MEMBER_ID
        ),
        ends_schedule=False,
    ),
    Deviation(
        name="classic-dynamic-made-static",
        kafka="JoinGroup with an instance id and the member id of a dynamic member gets "
        "UNKNOWN_SERVER_ERROR.",
        fencepost="The request gets UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member holds the "
        "instance id.",
        why="These errors have their own codes.",
        explains=lambda x, _: (
            isinstance(x.step, ClassicJoinStep)
            and _unexpected(x)
            and x.request.instance_id is not None
            and x.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
        ),
    ),
    Deviation(
        name="classic-subscription-malformed",
        kafka="JoinGroup with an unreadable subscription gets UNKNOWN_SERVER_ERROR from a consumer group. A"
        " classic group does not respond if the bytes end too early.",
        fencepost="The request gets INCONSISTENT_GROUP_PROTOCOL from a consumer group. In a classic group"
        " the member joins and counts as subscribed to any topic.",
        why="Each request must get a response.",
        explains=lambda x, _: (
            isinstance(x.step, ClassicJoinStep)
            and _unexpected(x)
            and x.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        ),
    ),
    Deviation(
        name="migration-without-protocol",
        kafka="A consumer that joins a classic group in its first round, before a protocol is chosen, gets "
        "UNKNOWN_SERVER_ERROR.",
        fencepost="The group is upgraded, with the first protocol that each member offers.",
        why="The request is valid.",
        explains=lambda x, _: _upgrades(x) and _unexpected(x) and x.code is ErrorCode.NONE,
    ),
    Deviation(
        name="migration-of-two-owners",
        kafka="A consumer that joins a classic group whose leader assigned one partition to two members "
        "gets UNKNOWN_SERVER_ERROR.",
        fencepost="The consumer gets GROUP_ID_NOT_FOUND, as for other assignments that cannot be converted.",
        why="The joining member's request is valid.",
        explains=lambda x, _: _upgrades(x) and _unexpected(x) and x.code is ErrorCode.GROUP_ID_NOT_FOUND,
    ),
    Deviation(
        name="migration-by-static-member",
        kafka="A static member that returns with KIP-848 converts its group without a rebalance. This "
        "happens even in a round, or if its topics have new partitions that no round has seen. These "
        "count as known, and no member reads them until another rebalance.",
        fencepost="The group rebalances.",
        why="Otherwise moving and new partitions would have no owner.",
        explains=_static_upgrade,
    ),
    Deviation(
        name="migration-back-by-static-member",
        kafka="A static member that returns with the classic protocol converts its group without a "
        "rebalance. This happens even if members wait for partitions or have not reached the last "
        "target. If another target is due, the group rebalances and the member receives generation 0.",
        fencepost="The group rebalances in all these cases, and the member receives its generation.",
        why="Otherwise moving partitions would have no owner, and SyncGroup would fail at generation 0.",
        explains=lambda x, fields: (
            x.history.static_downgrade
            or (x.rebalances_by_downgrade and all(field.startswith("generation: ") for field in fields))
        ),
    ),
    Deviation(
        name="fetch-without-member-id",
        kafka="OffsetFetch with a member epoch and without a member id gets UNKNOWN_SERVER_ERROR.",
        fencepost="It gets UNKNOWN_MEMBER_ID, as with an unknown id.",
        why="An error of the broker tells a client to retry what can never succeed.",
        explains=lambda x, fields: (
            isinstance(x.step, Fetch)
            and "UNKNOWN_SERVER_ERROR" in fields[0]
            and x.request.groups[0].member_id is None
            and x.request.groups[0].member_epoch >= 0
        ),
        ends_schedule=False,
    ),
)


def deviation_of(
    exchange: ConformExchange, fields: Sequence[str], *, ends_schedule: bool = True
) -> Deviation | None:
    """Return the first deviation of that sort that accounts for a difference; None if no such deviation
    exists."""
    fitting = (one for one in DEVIATIONS if one.ends_schedule is ends_schedule)
    return next((one for one in fitting if one.explains(exchange, fields)), None)
