"""The states of a consumer group and of its members, and the arrows between them.

A group's state is computed from its epochs and members, in the order of the checks below; no code sets it.
The table lists the effects that one batch of records may have::

Empty -> Assigning -> Reconciling -> Stable and from each of them back to Empty

A member's state is its progress towards its target (KIP-848, Reconciliation). Here each step of the
reconciliation has one arrow, so the table itself moves the member.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from fencepost.coordinator.epoch_groups import StatesByCode, member_table
from fencepost.coordinator.protocol.machine import CodedState, StateTable


class GroupState(enum.StrEnum):
    """A consumer group's state, under the name that ListGroups and ConsumerGroupDescribe show."""

    EMPTY = "Empty"
    """The group has no members."""
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the target assignment's epoch."""
    RECONCILING = "Reconciling"
    """Some member is not STABLE at the target epoch. An absent static member is not STABLE."""
    STABLE = "Stable"
    """Every member is STABLE at the target epoch."""
    DEAD = "Dead"
    """The group was deleted."""


class GroupEvent(enum.StrEnum):
    """The effect of one batch of records on a group."""

    MEMBER_JOINED = "member joined"
    """A member joined."""
    GROUP_EPOCH_RAISED = "group epoch raised"
    """The group epoch was raised."""
    TARGET_COMPUTED = "target computed"
    """The coordinator computed a target assignment."""
    MEMBER_RECONCILED = "member reconciled"
    """The last member that was behind reached the target."""
    MEMBER_FELL_BEHIND = "member fell behind"
    """A static member left temporarily, or a member unsubscribed from topics it still holds."""
    LAST_MEMBER_LEFT = "last member left"
    """The last member left or was removed."""
    UPGRADED = "classic group upgraded"
    """A consumer joined a classic group. The group keeps the classic members."""
    DOWNGRADED = "became a classic group"
    """The last member that uses this protocol left, and classic members remain."""
    GROUP_DELETED = "group deleted"
    """The group was deleted."""


_G, _E = GroupState, GroupEvent

GROUP_TABLE: StateTable[GroupState, GroupEvent] = StateTable(
    "consumer-group",
    source="KIP-848, Group Epoch and Target Assignment; ConsumerGroup.maybeUpdateGroupState in Kafka 4.3",
    states=GroupState,
    initial=_G.EMPTY,
    terminal=(_G.DEAD,),
    transitions=(
        (_G.EMPTY, _E.MEMBER_JOINED, _G.ASSIGNING),
        (_G.EMPTY, _E.MEMBER_JOINED, _G.STABLE),
        (_G.EMPTY, _E.UPGRADED, _G.ASSIGNING),
        (_G.EMPTY, _E.UPGRADED, _G.RECONCILING),
        (_G.EMPTY, _E.UPGRADED, _G.STABLE),
        (_G.EMPTY, _E.GROUP_DELETED, _G.DEAD),
        (_G.ASSIGNING, _E.TARGET_COMPUTED, _G.RECONCILING),
        (_G.ASSIGNING, _E.TARGET_COMPUTED, _G.STABLE),
        (_G.ASSIGNING, _E.LAST_MEMBER_LEFT, _G.EMPTY),
        (_G.RECONCILING, _E.MEMBER_RECONCILED, _G.STABLE),
        (_G.RECONCILING, _E.GROUP_EPOCH_RAISED, _G.ASSIGNING),
        (_G.RECONCILING, _E.LAST_MEMBER_LEFT, _G.EMPTY),
        (_G.STABLE, _E.GROUP_EPOCH_RAISED, _G.ASSIGNING),
        (_G.STABLE, _E.TARGET_COMPUTED, _G.RECONCILING),
        (_G.STABLE, _E.MEMBER_FELL_BEHIND, _G.RECONCILING),
        (_G.STABLE, _E.LAST_MEMBER_LEFT, _G.EMPTY),
        (_G.ASSIGNING, _E.DOWNGRADED, _G.DEAD),
        (_G.RECONCILING, _E.DOWNGRADED, _G.DEAD),
        (_G.STABLE, _E.DOWNGRADED, _G.DEAD),
    ),
)


class ConsumerGroupMemberState(CodedState):
    """The state of a member on its way to the target. `code` is its number in records."""

    STABLE = "STABLE", 0
    """The member has its whole target, at its epoch."""
    UNREVOKED_PARTITIONS = "UNREVOKED_PARTITIONS", 1
    """The member must confirm that it released partitions. Its epoch does not change until then."""
    UNRELEASED_PARTITIONS = "UNRELEASED_PARTITIONS", 2
    """The member has the target epoch. Other members still hold part of its target."""
    UNKNOWN = "UNKNOWN", 127
    """A newer coordinator wrote a state that this version does not know. The member must rejoin."""


STATES_BY_CODE: Mapping[int, ConsumerGroupMemberState] = StatesByCode(ConsumerGroupMemberState)


class ConsumerReconciliationStep(enum.StrEnum):
    """The decision of a reconciliation."""

    REVOKE = "partitions to revoke"
    """The member holds partitions outside its target or its subscription."""
    WAIT = "partitions held by others"
    """Another member still holds a partition of the target."""
    SETTLE = "target reached"
    """The member has its whole target."""
    UNREADABLE = "state of a newer coordinator"
    """The coordinator read a record with a state that this version does not know."""


MEMBER_TABLE = member_table(
    "consumer-group-member",
    ConsumerGroupMemberState,
    ConsumerReconciliationStep,
    source="KIP-848, Member Assignment; CurrentAssignmentBuilder in Kafka 4.3",
)
