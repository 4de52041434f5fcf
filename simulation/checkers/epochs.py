"""Epochs: how they move, and how they bound each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.ids import STATIC_LEAVE_EPOCH
from fencepost.simulation.checkers.base import Finding

if TYPE_CHECKING:
    from fencepost.simulation.checkers.step import GroupStep, MemberChange


def check_epochs(step: GroupStep) -> Iterator[Finding]:
    """Findings of epochs-monotone and epochs-ordered."""
    group = step.group
    if group is None:
        return
    known = step.known
    if group.group_epoch < known.group_epoch:
        yield (
            "epochs-monotone",
            f"the epoch of {step.group_id} fell from {known.group_epoch} to {group.group_epoch}",
        )
    if group.assignment_epoch < known.assignment_epoch:
        yield (
            "epochs-monotone",
            f"the target epoch of {step.group_id} fell from {known.assignment_epoch} to"
            f" {group.assignment_epoch}",
        )
    if group.assignment_epoch > group.group_epoch:
        yield (
            "epochs-ordered",
            f"{step.group_id} has target epoch {group.assignment_epoch} at group epoch {group.group_epoch}",
        )
    for change in step.members:
        yield from _member(step, group.assignment_epoch, change)


def _member(step: GroupStep, assignment_epoch: int, change: MemberChange) -> Iterator[Finding]:
    after, before = change.after, change.before
    if after is None:
        return
    who = f"{change.member_id} of {step.group_id}"
    away = after.member_epoch == STATIC_LEAVE_EPOCH
    if after.member_epoch < 0 and not away:
        yield "epochs-ordered", f"{who} is stored with epoch {after.member_epoch}"
    if away and after.instance_id is None:
        yield "epochs-monotone", f"{who} has no instance id, but epoch -2"
    if after.member_epoch > assignment_epoch:
        yield "epochs-ordered", f"{who} has epoch {after.member_epoch}, its target has {assignment_epoch}"
    if not away and after.previous_member_epoch > after.member_epoch:
        yield (
            "epochs-ordered",
            f"{who} has previous epoch {after.previous_member_epoch} at epoch {after.member_epoch}",
        )
    if before is not None and not away and after.member_epoch < before.member_epoch:
        yield (
            "epochs-monotone",
            f"the epoch of {who} fell from {before.member_epoch} to {after.member_epoch}",
        )
