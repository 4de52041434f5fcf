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
    """The group has no members. It may have offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members join. Those that joined wait for the others."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation began and waits for its leader's assignment."""
    STABLE = "Stable"
    """All members of the generation can get their assignment."""
    DEAD = "Dead"
    """The group was deleted, or moved to another coordinator."""


class ClassicGroupEvent(enum.StrEnum):
    """An event that moves a classic group from one state to another."""

    REBALANCE_STARTED = "rebalance started"
    """A member joined, left, changed or rejoined as leader; or writing an assignment failed."""
    ALL_JOINED = "all members joined"
    """All members joined, or the time to join is over."""
    ALL_LEFT = "all members left"
    """The last member left."""
    ASSIGNED = "assignment written"
    """The leader's assignment is in the log."""
    LOADED = "members loaded"
    """The group was read from a journal, or downgraded from a consumer group."""
    DELETED = "group deleted or moved"
    """The group was deleted, or moved to another coordinator."""


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
