"""The topologies and mistakes of other applications, each with the response that Kafka 4.3 gives (KIP-1071).

The table says what must follow from each topology. It shares no rule with the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH
from fencepost.coordinator.protocol.streams import (
    NO_TASK_IDS,
    CopartitionGroup,
    StatusCode,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TopicInfo,
    Topology,
)

Source: TypeAlias = tuple[str, int]
"""A topic that exists, and its number of partitions."""

Mistake: TypeAlias = tuple[str, StreamsGroupHeartbeatRequest, ErrorCode]
"""The mistake for people, the request that has it, and the error that the response must have."""

_INVALID: Final = ErrorCode.INVALID_REQUEST
_IMPOSSIBLE: Final = ErrorCode.STREAMS_INVALID_TOPOLOGY
_UNEXPECTED: Final = ErrorCode.UNKNOWN_SERVER_ERROR
_UNEQUAL: Final = StatusCode.INCORRECTLY_PARTITIONED_TOPICS


class ForeignTopology(NamedTuple):
    """One topology, and what must follow from it."""

    name: str
    subtopologies: tuple[Subtopology, ...]
    internal: Mapping[str, int] = {}
    """The internal topics that the brokers must create, with their partitions."""
    tasks: Mapping[str, int] = {}
    """The number of tasks of each subtopology."""
    status: StatusCode | None = None
    """The reason why no member gets tasks."""
    error: ErrorCode = ErrorCode.NONE
    """The error that refuses members."""
    epoch: int = 1

    @property
    def topology(self) -> Topology:
        """The topology as a member sends it."""
        return Topology(self.epoch, self.subtopologies)


def foreign_topologies(prefix: str, one: Source, other: Source) -> list[ForeignTopology]:
    """Return all topologies; `prefix` begins the names of their internal topics.

    :raises ValueError: if the two topics have equal numbers of partitions: some topologies need unequal ones.
    """
    if one[1] == other[1]:
        raise ValueError(f"{one[0]} and {other[0]} have {one[1]} partitions each")
    return [*_working(prefix, one, other), *_waiting(prefix, one, other), *_refused(prefix, one[0])]


def _names(prefix: str) -> tuple[str, str, str]:
    return f"{prefix}-left-repartition", f"{prefix}-right-repartition", f"{prefix}-totals-changelog"


def _together(
    *, sources: tuple[int, ...] = (), internal: tuple[int, ...] = ()
) -> tuple[CopartitionGroup, ...]:
    return (CopartitionGroup(source_topics=sources, repartition_source_topics=internal),)


def _working(prefix: str, one: Source, other: Source) -> Iterator[ForeignTopology]:
    (orders, few), (payments, many) = one, other
    left, right, totals = _names(prefix)
    store = (TopicInfo(totals),)
    most = max(few, many)
    yield ForeignTopology(
        "an aggregation by another key",
        (
            Subtopology("0", (orders,), repartition_sink_topics=(left,)),
            Subtopology("1", repartition_source_topics=(TopicInfo(left),), state_changelog_topics=store),
        ),
        internal={left: few, totals: few},
        tasks={"0": few, "1": few},
    )
    yield ForeignTopology(
        "a repartition topic with a number of partitions of its own",
        (
            Subtopology("0", (orders,), repartition_sink_topics=(left,)),
            Subtopology(
                "1", repartition_source_topics=(TopicInfo(left, most + 2),), state_changelog_topics=store
            ),
        ),
        internal={left: most + 2, totals: most + 2},
        tasks={"0": few, "1": most + 2},
    )
    yield ForeignTopology(
        "repartition topics that follow from each other, in reverse order",
        (
            Subtopology("0", repartition_source_topics=(TopicInfo(right),), state_changelog_topics=store),
            Subtopology("1", repartition_source_topics=(TopicInfo(left),), repartition_sink_topics=(right,)),
            Subtopology("2", (orders, payments), repartition_sink_topics=(left,)),
        ),
        internal={left: most, right: most, totals: most},
        tasks={"0": most, "1": most, "2": most},
    )
    yield ForeignTopology(
        "a join with a topic by another key",
        (
            Subtopology("0", (orders,), repartition_sink_topics=(left,)),
            Subtopology(
                "1",
                (payments,),
                repartition_source_topics=(TopicInfo(left),),
                copartition_groups=_together(sources=(0,), internal=(0,)),
            ),
        ),
        internal={left: many},
        tasks={"0": few, "1": many},
    )
    joined = (TopicInfo(left), TopicInfo(right))
    yield ForeignTopology(
        "a join of two repartition topics",
        (
            Subtopology("0", (orders,), repartition_sink_topics=(left,)),
            Subtopology("1", (payments,), repartition_sink_topics=(right,)),
            Subtopology("2", repartition_source_topics=joined, copartition_groups=_together(internal=(0, 1))),
        ),
        internal={left: most, right: most},
        tasks={"0": few, "1": many, "2": most},
    )
    yield ForeignTopology(
        "a join of two repartition topics, one with a number of its own",
        (
            Subtopology("0", (orders,), repartition_sink_topics=(left, right)),
            Subtopology(
                "1",
                repartition_source_topics=(TopicInfo(left, most + 1), TopicInfo(right)),
                state_changelog_topics=store,
                copartition_groups=_together(internal=(0, 1)),
            ),
        ),
        internal={left: most + 1, right: most + 1, totals: most + 1},
        tasks={"0": few, "1": most + 1},
    )


def _waiting(prefix: str, one: Source, other: Source) -> Iterator[ForeignTopology]:
    (orders, few), (payments, many) = one, other
    left, right, _ = _names(prefix)
    most = max(few, many)
    yield ForeignTopology(
        "a source topic that does not exist",
        (Subtopology("0", (orders, f"{prefix}-typo")),),
        status=StatusCode.MISSING_SOURCE_TOPICS,
    )
    yield ForeignTopology(
        "a join of topics with unequal numbers of partitions",
        (Subtopology("0", (orders, payments), copartition_groups=_together(sources=(0, 1))),),
        status=_UNEQUAL,
    )
    yield ForeignTopology(
        "a changelog that exists with another number of partitions",
        (Subtopology("0", (orders,), state_changelog_topics=(TopicInfo(payments),)),),
        status=_UNEQUAL,
    )
    yield ForeignTopology(
        "a repartition topic whose own number differs from the topic that it is joined with",
        (
            Subtopology("0", (orders,), repartition_sink_topics=(left,)),
            Subtopology(
                "1",
                (payments,),
                repartition_source_topics=(TopicInfo(left, most + 1),),
                copartition_groups=_together(sources=(0,), internal=(0,)),
            ),
        ),
        status=_UNEQUAL,
    )
    yield ForeignTopology(
        "a join of repartition topics whose own numbers differ",
        (
            Subtopology("0", (orders,), repartition_sink_topics=(left, right)),
            Subtopology(
                "1",
                repartition_source_topics=(TopicInfo(left, most + 1), TopicInfo(right, most + 2)),
                copartition_groups=_together(internal=(0, 1)),
            ),
        ),
        status=_UNEQUAL,
    )


def _refused(prefix: str, orders: str) -> Iterator[ForeignTopology]:
    left, right, totals = _names(prefix)
    for name, subtopologies, error in (
        (
            "repartition topics in a circle",
            (
                Subtopology(
                    "0", repartition_source_topics=(TopicInfo(left),), repartition_sink_topics=(right,)
                ),
                Subtopology(
                    "1", repartition_source_topics=(TopicInfo(right),), repartition_sink_topics=(left,)
                ),
            ),
            _IMPOSSIBLE,
        ),
        (
            "a repartition topic that no part writes",
            (Subtopology("0", repartition_source_topics=(TopicInfo(left),)),),
            _IMPOSSIBLE,
        ),
        (
            "a part that reads nothing",
            (Subtopology("0", (orders,)), Subtopology("1", state_changelog_topics=(TopicInfo(totals),))),
            _IMPOSSIBLE,
        ),
        ("a topic of Kafka's own", (Subtopology("0", ("__consumer_offsets",)),), _IMPOSSIBLE),
        ("a topic whose name is none", (Subtopology("0", ("no name",)),), _IMPOSSIBLE),
        (
            "a changelog with a number of its own",
            (Subtopology("0", (orders,), state_changelog_topics=(TopicInfo(totals, 3),)),),
            _IMPOSSIBLE,
        ),
        ("a regular expression", (Subtopology("0", (orders,), source_topic_regex=("o.*",)),), _INVALID),
        (
            "a join with a source topic that is not listed",
            (Subtopology("0", (orders,), copartition_groups=_together(sources=(0, 1))),),
            _UNEXPECTED,
        ),
        (
            "a join with a repartition topic that is not listed",
            (Subtopology("0", (orders,), copartition_groups=_together(internal=(0,))),),
            _UNEXPECTED,
        ),
        ("the same part twice", (Subtopology("0", (orders,)), Subtopology("0", (orders,))), _UNEXPECTED),
    ):
        yield ForeignTopology(name, subtopologies, error=error)
    yield ForeignTopology("an epoch below zero", (Subtopology("0", (orders,)),), error=_UNEXPECTED, epoch=-1)


def mistakes_of_strangers(join: StreamsGroupHeartbeatRequest) -> Iterator[Mistake]:
    """Yield requests that have to be refused while the group of `join` does not exist; `join` is correct."""
    for name, changes, error in (
        ("an instance id", {"instance_id": "one"}, _INVALID),
        ("offsets of tasks", {"task_offsets": ()}, _INVALID),
        ("end offsets of tasks", {"task_end_offsets": ()}, _INVALID),
        ("a warm-up task", {"warmup_tasks": {"0": (0,)}}, _INVALID),
        ("a blank member id", {"member_id": " "}, _INVALID),
        ("a blank rack", {"rack_id": " "}, _INVALID),
        ("no rebalance timeout", {"rebalance_timeout_ms": -1}, _INVALID),
        ("no task lists on joining", {"active_tasks": None}, _INVALID),
        ("tasks on joining", {"standby_tasks": {"0": (0,)}}, _INVALID),
        ("no topology on joining", {"topology": None}, _INVALID),
        ("the leave of a static member", {"member_epoch": -2}, _INVALID),
        ("an epoch that does not exist", {"member_epoch": -3}, _INVALID),
        ("only one task list", {"member_epoch": 1, "topology": None, "standby_tasks": None}, _INVALID),
        ("a topology later", {"member_epoch": 1}, _INVALID),
        ("an epoch in no group", {"member_epoch": 1, "topology": None}, ErrorCode.GROUP_ID_NOT_FOUND),
        ("a leave from no group", {"member_epoch": -1, "topology": None}, ErrorCode.GROUP_ID_NOT_FOUND),
    ):
        yield name, msgspec.structs.replace(join, **changes), error


def mistakes_of_members(
    join: StreamsGroupHeartbeatRequest, epoch: int, *, has_tasks: bool
) -> Iterator[Mistake]:
    """Yield requests of a member at that epoch that have to be refused.

    A coordinator knows which tasks exist only while the group's topics are as they must be.
    """
    beat = msgspec.structs.replace(
        join, member_epoch=epoch, topology=None, active_tasks=None, standby_tasks=None, warmup_tasks=None
    )
    fenced, unknown = ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID
    yield "a newer epoch", msgspec.structs.replace(beat, member_epoch=epoch + 5), fenced
    if epoch - 1 > JOIN_EPOCH:
        yield "an older epoch without tasks", msgspec.structs.replace(beat, member_epoch=epoch - 1), fenced
    yield "a stranger's epoch", msgspec.structs.replace(beat, member_id="nobody"), unknown
    leave = msgspec.structs.replace(beat, member_id="nobody", member_epoch=-1)
    yield "a stranger's leave", leave, unknown
    assert join.topology is not None
    other = Topology(join.topology.epoch, (*join.topology.subtopologies, Subtopology("9", ("orders",))))
    yield "another topology", msgspec.structs.replace(join, topology=other), _INVALID
    if has_tasks:
        for name, active in (
            ("a task of no part", {"9": (0,)}),
            ("a task too many", {"0": (10_000,)}),
            ("a task below zero", {"0": (-1,)}),
        ):
            tasks = {"active_tasks": active, "standby_tasks": NO_TASK_IDS, "warmup_tasks": NO_TASK_IDS}
            yield name, msgspec.structs.replace(beat, **tasks), _INVALID
