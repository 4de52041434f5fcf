"""The states of a streams group and of its members, and the arrows between them.

A group's state is computed from its epochs, its topology and its members, in the order of the checks below;
no code sets it. The table lists the effects that one batch of records may have. A member's state is its
progress towards its target; each step of the reconciliation has one arrow, so the table itself moves the
member.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from fencepost.coordinator.epoch_groups import StatesByCode, member_table
from fencepost.coordinator.protocol.machine import CodedState, StateTable


class StreamsGroupState(enum.StrEnum):
    """A streams group's state, under the name that ListGroups and StreamsGroupDescribe show."""

    EMPTY = "Empty"
    """The group has no members."""
    NOT_READY = "NotReady"
    """A topic of the topology is missing or has the wrong partition count. No member has tasks."""
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the target assignment's epoch."""
    RECONCILING = "Reconciling"
    """Some member is not STABLE at the target epoch."""
    STABLE = "Stable"
    """Every member is STABLE at the target epoch."""
    DEAD = "Dead"
    """The group was deleted."""


class StreamsGroupEvent(enum.StrEnum):
    """The effect of one batch of records on a group."""

    MEMBER_JOINED = "member joined"
    """A member joined."""
    TOPICS_FOUND = "topics found"
    """All topics of the topology exist with the right partition counts."""
    TOPICS_LOST = "topics lost"
    """A topic of the topology was deleted, or its partition count changed."""
    GROUP_EPOCH_RAISED = "group epoch raised"
    """The group epoch was raised."""
    TARGET_COMPUTED = "target computed"
    """The coordinator computed a target assignment."""
    MEMBER_RECONCILED = "member reconciled"
    """The last member that was behind reached the target."""
    LAST_MEMBER_LEFT = "last member left"
    """The last member left or was removed."""
    GROUP_DELETED = "group deleted"
    """The group was deleted."""


_G, _E = StreamsGroupState, StreamsGroupEvent

STREAMS_GROUP_TABLE: StateTable[StreamsGroupState, StreamsGroupEvent] = StateTable(
    "streams-group",
    source="KIP-1071; StreamsGroup.maybeUpdateGroupState in Kafka 4.3",
    states=StreamsGroupState,
    initial=_G.EMPTY,
    terminal=(_G.DEAD,),
    transitions=(
        (_G.EMPTY, _E.MEMBER_JOINED, _G.NOT_READY),
        (_G.EMPTY, _E.MEMBER_JOINED, _G.ASSIGNING),
        (_G.EMPTY, _E.MEMBER_JOINED, _G.STABLE),
        (_G.EMPTY, _E.GROUP_DELETED, _G.DEAD),
        (_G.NOT_READY, _E.TOPICS_FOUND, _G.ASSIGNING),
        (_G.NOT_READY, _E.TOPICS_FOUND, _G.RECONCILING),
        (_G.NOT_READY, _E.TOPICS_FOUND, _G.STABLE),
        (_G.NOT_READY, _E.LAST_MEMBER_LEFT, _G.EMPTY),
        (_G.ASSIGNING, _E.TARGET_COMPUTED, _G.RECONCILING),
        (_G.ASSIGNING, _E.TARGET_COMPUTED, _G.STABLE),
        (_G.ASSIGNING, _E.TOPICS_LOST, _G.NOT_READY),
        (_G.ASSIGNING, _E.LAST_MEMBER_LEFT, _G.EMPTY),
        (_G.RECONCILING, _E.MEMBER_RECONCILED, _G.STABLE),
        (_G.RECONCILING, _E.GROUP_EPOCH_RAISED, _G.ASSIGNING),
        (_G.RECONCILING, _E.TOPICS_LOST, _G.NOT_READY),
        (_G.RECONCILING, _E.LAST_MEMBER_LEFT, _G.EMPTY),
        (_G.STABLE, _E.GROUP_EPOCH_RAISED, _G.ASSIGNING),
        (_G.STABLE, _E.TARGET_COMPUTED, _G.RECONCILING),
        (_G.STABLE, _E.TOPICS_LOST, _G.NOT_READY),
        (_G.STABLE, _E.LAST_MEMBER_LEFT, _G.EMPTY),
    ),
)


class StreamsGroupMemberState(CodedState):
    """The state of a member on its way to the target. `code` is its number in records."""

    STABLE = "STABLE", 1
    """The member has its whole target, at its epoch."""
    UNREVOKED_TASKS = "UNREVOKED_TASKS", 2
    """The member must confirm that it released tasks. Its epoch does not change until then."""
    UNRELEASED_TASKS = "UNRELEASED_TASKS", 3
    """The member has the target epoch. Others, or its own process, hold part of its target."""
    UNKNOWN = "UNKNOWN", 127
    """A newer coordinator wrote a state that this version does not know. The member must rejoin."""


STREAMS_STATES_BY_CODE: Mapping[int, StreamsGroupMemberState] = StatesByCode(StreamsGroupMemberState)


class StreamsReconciliationStep(enum.StrEnum):
    """The decision of a reconciliation."""

    REVOKE = "tasks to revoke"
    """The member holds tasks outside its target."""
    WAIT = "tasks held by others"
    """A target task is active elsewhere, or the member's own process has it in another role."""
    SETTLE = "target reached"
    """The member has its whole target."""
    UNREADABLE = "state of a newer coordinator"
    """The coordinator read a record with a state that this version does not know."""


STREAMS_MEMBER_TABLE = member_table(
    "streams-group-member",
    StreamsGroupMemberState,
    StreamsReconciliationStep,
    source="KIP-1071; CurrentAssignmentBuilder of streams groups in Kafka 4.3",
)
