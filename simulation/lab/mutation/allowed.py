"""Changes that the protocol allows: a judge that objected to one would object to correct software.

A change is identified by its function and its text, which outlive the numbers of mutants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from fencepost.simulation.mutants.automatic import AutomaticMutant

_ANY_ORDER: Final = "Only decides the order in which equal tasks are dealt out; any order is allowed."

ALLOWED_FUNCTIONS: Final[Mapping[str, str]] = {
    f"coordinator.assign.java_order:{name}": _ANY_ORDER
    for name in ("string_hash", "_spread", "hash_map_order", "timeline_order")
}
"""The reason by function, where it holds for each of its changes that no judge reports."""


def _parsed(table: str) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Yield the changes of a table, each with its reason.

    A row is `module:function: before => after`. Its reason follows, which holds for all rows since the last
    one. Lines that are indented further continue the line before them.
    """
    changes: list[tuple[str, str, str]] = []
    for line in re.sub(r"\n {8,}", " ", table.strip()).split("\n"):
        if line.startswith(" "):
            yield from ((change, line.strip()) for change in changes)
            changes.clear()
        else:
            function, _, change = line.partition(": ")
            before, _, after = change.partition(" => ")
            changes.append((function, before, after))


ALLOWED: Final[Mapping[tuple[str, str, str], str]] = dict(
    _parsed("""
member.streams.client:_lowest_free: 1 => 0
    Numbers threads from 0 on; the numbers are only part of names.
member.base.backoff:Backoff.next_ms: 1 - JITTER => 1
member.base.backoff:Backoff.next_ms: 1 + JITTER => 1
    Only narrows the jitter; waits stay within their bounds.
member.base.backoff:Backoff.next_ms: term * spread => term
    Leaves the jitter out; waits stay within their bounds.
member.base.machine:MemberMachine.__init__: member_id or None => member_id
    A classic OffsetFetch with an empty member id in place of none gets the same response.
member.base.positions:Positions.fetched: position.committed = found.offset => pass
    Commits fetched offsets once more, as Java's consumer does at each interval.
member.classic.machine:ClassicMember._wants_coordinator: self.leave.pending is not None => self.leave.pending
        is None
    Does not look for a lost coordinator to leave, as Java's consumer does not. Its session ends.
member.classic.ownership:ClassicOwnership.callback_ended: True => False
    The fetched offsets wake the application anyway.
member.consumer.machine:ConsumerMember._begin_leaving: E.CLOSE if closes else E.UNSUBSCRIBE => E.UNSUBSCRIBE
        if closes else E.CLOSE
    Swaps the names of two events with the same arrows.
member.consumer.machine:ConsumerMember.heartbeat_answered: not response.error_code => response.error_code
    Does not take the short cut for a response without news; the result is the same.
member.consumer.machine:ConsumerMember._left: not self.heartbeats.may_be_member =>
        self.heartbeats.may_be_member
    The member passes other states, and sends the same leave.
member.consumer.machine:ConsumerMember._take_target: changed and self.state is S.RECONCILING => changed or
        self.state is S.RECONCILING
    Records an arrow from a state to itself, which changes nothing.
member.base.lookups:CoordinatorLookup.responds: self.known and self._answered => self.known
    The next search for the coordinator waits for a back-off, which a member may always do.
member.consumer.reconciliation:Reconciler.begin: assignment.target or () => ()
    Acknowledges a part of the assignment before the names of the rest are known.
member.consumer.reconciliation:Reconciler.begin: auto_commit and assignment.owned => assignment.owned
    A member with manual commits waits for a poll before it assigns.
member.sac.consumer:SingleActiveConsumer._clock: self._chosen_clock is None => self._chosen_clock is not None
    Goes by the loop's clock in place of its host's, which drifts a little: any clock will do.
coordinator.assign.tasks:_Process.add_to_least_loaded: 1 => 0
    A shortcut for a single member; the queue gives the same.
coordinator.assign.tasks:_Assignment.assign_active: tasks.sort(key=lambda task: (task.partition,
        task.subtopology)) => pass
    Decides which tasks a member keeps that had too many; Kafka only promises how many.
coordinator.assign.tasks:_Assignment._standbys_left: tasks.sort(key=lambda task: (task.partition,
        task.subtopology), reverse=True) => pass
coordinator.assign.tasks:_Assignment._standbys_left: True => False
coordinator.assign.tasks:_Assignment.assign_standby: True => False
    Only changes the order in which standby tasks are given out; any order is allowed.
coordinator.assign.tasks:_Assignment._least_loaded: process.load < process_load and free and
        (self._count(member_id) < member_load) => free and self._count(member_id) < member_load
coordinator.assign.tasks:_Assignment._least_loaded: process.load < process_load and free and
        (self._count(member_id) < member_load) => process.load < process_load and free
coordinator.assign.tasks:_Assignment._least_loaded: process.load < process_load => process.load <=
        process_load
coordinator.assign.tasks:_Assignment._least_loaded: self._count(member_id) < member_load =>
        self._count(member_id) <= member_load
    Only decides which of several members gets a task for which they stood by. Kafka passes over none that has
        room, and less to do as a member and as a process; it promises nothing else.
coordinator.streams.groups:StreamsGroups._first_target: group.group_epoch <= group.assignment_epoch =>
        group.group_epoch < group.assignment_epoch
    Writes a target of the same epoch again, which is the same.
coordinator.streams.groups:StreamsGroups.heartbeat: None if error.code is ErrorCode.UNKNOWN_SERVER_ERROR else
        error.message => error.message if error.code is ErrorCode.UNKNOWN_SERVER_ERROR else None
    Changes the text of an error only.
""")
)
"""The reason by function, the original text, and the text that replaces it."""


def allowed_because(mutant: AutomaticMutant) -> str:
    """Return why the protocol allows this change; empty if it does not."""
    function = f"{mutant.module}:{mutant.function}"
    return ALLOWED_FUNCTIONS.get(function) or ALLOWED.get((function, mutant.before, mutant.after), "")
