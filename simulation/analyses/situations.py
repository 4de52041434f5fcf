"""The situations that a run must reach so that its judges have something to look at, as far as a trace shows
them.

A judge that never meets its situation proves nothing. Some invariants have no situation here, because it
leaves no row of its own.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class Situation(msgspec.Struct, frozen=True):
    """A situation that rows of a trace show, and the invariants that it tests."""

    name: str
    where: str
    """The SQL condition that selects the rows."""
    invariants: tuple[str, ...]


_ROWS: Final = """\
epoch raised: kind = 'group.epoch'
    epochs-monotone, epochs-ordered, metadata-hash, journal-batches, journal-replay
target made: kind = 'group.target'
    target-exclusive, target-covers, target-balanced, target-sticky
assignment written: kind = 'assignment'
    one-owner, owners-map, assigned-in-target, assignment-epochs, timers-armed
member must let go: kind = 'assignment' AND state_to = 'UNREVOKED_PARTITIONS'
    revocation-state, revocation-frozen, revocation-bounded
member must wait: kind = 'assignment' AND state_to = 'UNRELEASED_PARTITIONS'
    unreleased-waits, granted-after-release
member owns its target: kind = 'assignment' AND state_to = 'STABLE'
    stable-owns-target
heartbeat answered: kind = 'heartbeat'
    heartbeat-answers, reply-equals-state, epoch-as-answered, one-in-flight
heartbeat refused: kind = 'heartbeat' AND error <> ''
    failed-changes-nothing, request-fields
member joined: kind = 'heartbeat' AND starts_with(detail, 'join')
    assignment-present, request-fields
member said what it owns: kind = 'heartbeat' AND starts_with(detail, 'ack')
    owned-honest
member removed: kind = 'member.removed'
    gone-members, bounded-memory
static member came back: kind = 'member.removed' AND detail = 'replaced'
    static-bijection
group emptied: kind = 'group.state' AND state_to = 'Empty'
    empty-group
group settled: kind = 'group.state' AND state_to = 'Stable'
    progress, quiet
coordinator took over: kind = 'coordinator' AND detail = 'active'
    journal-replay, offsets-kept
member moved: kind = 'member.state'
    transitions
callback ran: kind = 'callback.begin'
    callbacks-balanced, heartbeats-go-on
partitions let go: kind = 'callback.begin' AND detail IN ('revoked', 'lost')
    one-claimant, commit-before-release
records processed: kind = 'records'
    records-while-owned, at-least-once
commit accepted: kind = 'commit' AND error = ''
    commit-while-owned, commit-within-processed
commit refused: kind = 'commit' AND error <> ''
    commit-fenced
classic members joined: kind = 'group.state' AND state_to = 'PreparingRebalance'
    classic-generations, classic-joins, classic-answers
classic leader assigned: kind = 'group.state' AND state_from = 'CompletingRebalance' AND state_to = 'Stable'
    classic-assignment, classic-record
consumer activated: kind = 'sac.consumer' AND state_to = 'CONNECTED_ACTIVE'
    sac-one-active, sac-exclusive, sac-settled
node left: kind = 'node' AND detail = 'left'
    sac-stale-node
client moved: kind = 'client.state'
    streams-transitions, streams-derived, streams-listener
client in ERROR: kind = 'client.state' AND state_to = 'ERROR'
    streams-terminal, streams-error-cause, streams-closed
thread died: kind = 'thread.state' AND state_to = 'DEAD'
    streams-dead-left
thread reconnected: kind = 'thread.state' AND state_from = 'DISCONNECTED'
    streams-reconnects
thread failed: kind = 'thread.failed'
    streams-live-threads
client told to shut down: kind = 'thread.failed' AND starts_with(detail, 'SHUTDOWN_CLIENT')
    streams-error-due
application told to shut down: kind = 'thread.failed' AND starts_with(detail, 'SHUTDOWN_APPLICATION')
    streams-shutdown-reaches, streams-shutdown-cause
clients ran: kind = 'client.state' AND state_to = 'RUNNING'
    streams-settles, streams-at-least-once
"""
SITUATIONS: Final = tuple(
    Situation(name, where, tuple(invariants.split(", ")))
    for name, where, invariants in re.findall(r"^(.+?): (.+)\n {4}(.+)$", _ROWS, re.MULTILINE)
)


def counts() -> str:
    """Return SQL for the number of times that each situation is in the rows of a group, as items of a
    list."""
    return ", ".join(f"count_if({each.where})" for each in SITUATIONS)


def names() -> str:
    """Return SQL for the names of the situations, in the same order."""
    return ", ".join(f"'{each.name}'" for each in SITUATIONS)


def tested() -> str:
    """Return SQL for rows of situations, each with one invariant that it tests."""
    return ", ".join(f"('{each.name}', '{name}')" for each in SITUATIONS for name in each.invariants)
