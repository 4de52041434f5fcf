"""The states of a classic group, and the arrows between them.

Unlike a consumer group's, the state is moved by events, and most of it is in no record: only a complete
generation is written down. A group that is loaded begins as Stable, or as Empty if it has no members.
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable


class ClassicGroupState(enum.StrEnum):
    """A classic group's state, under the name that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    """No members, only offsets perhaps."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members join; those that have joined wait for the others."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation has begun, and waits for its leader's assignment."""
    STABLE = "Stable"
    DEAD = "Dead"
    """The group was deleted, or has a coordinator elsewhere."""


class ClassicGroupEvent(enum.StrEnum):
    """What moves a classic group."""

    REBALANCE_STARTED = "rebalance started"
    """A member came, went or changed, the leader joined again, or an assignment could not be written."""
    ALL_JOINED = "all members joined"
    """Or the time for it was over."""
    ALL_LEFT = "all members left"
    ASSIGNED = "assignment written"
    LOADED = "members loaded"
    """From a journal, or from a consumer group whose last members of the newer protocol left."""
    DELETED = "group deleted or moved"


_S, _E = ClassicGroupState, ClassicGroupEvent

CLASSIC_GROUP_TABLE: StateTable[ClassicGroupState, ClassicGroupEvent] = StateTable(
    "classic-group",
    source="Kafka's group membership protocol; ClassicGroupState in Kafka 4.3",
    states=ClassicGroupState,
    initial=_S.EMPTY,
    terminal=(_S.DEAD,),
    transitions=(
        (_S.EMPTY, _E.REBALANCE_STARTED, _S.PREPARING_REBALANCE),
        (_S.EMPTY, _E.LOADED, _S.STABLE),
        (_S.EMPTY, _E.DELETED, _S.DEAD),
        (_S.PREPARING_REBALANCE, _E.ALL_JOINED, _S.COMPLETING_REBALANCE),
        (_S.PREPARING_REBALANCE, _E.ALL_LEFT, _S.EMPTY),
        (_S.PREPARING_REBALANCE, _E.DELETED, _S.DEAD),
        (_S.COMPLETING_REBALANCE, _E.ASSIGNED, _S.STABLE),
        (_S.COMPLETING_REBALANCE, _E.REBALANCE_STARTED, _S.PREPARING_REBALANCE),
        (_S.COMPLETING_REBALANCE, _E.DELETED, _S.DEAD),
        (_S.STABLE, _E.REBALANCE_STARTED, _S.PREPARING_REBALANCE),
        (_S.STABLE, _E.DELETED, _S.DEAD),
    ),
)
