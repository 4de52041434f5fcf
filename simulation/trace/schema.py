"""The trace: one row an event, one schema for all worlds.

Rows are plain tuples in the order of `COLUMNS` while a run goes on, and Arrow when they are written.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from fencepost.coordinator.protocol.ids import TopicPartition


class RowKind(enum.StrEnum):
    """What a row tells."""

    RUN_START = "run.start"
    """`detail` is the scenario's name, the seed, and how many members the group has at the start."""
    FAULTS_END = "run.faults_end"
    """From here on nothing disturbs the group; the liveness bound starts."""
    RUN_END = "run.end"
    HEARTBEAT = "heartbeat"
    """The coordinator answered one, for the host `actor`; `detail`: join, full, ack, keepalive or leave,
    then bytes asked and answered, such as `ack 152+49`. Those of a mere keepalive follow from the names.

    Of the classic protocol: JoinGroup is `join`, SyncGroup `full`, with the assignment in `partitions`.
    """
    REQUEST_LOST = "request.lost"
    RESPONSE_LOST = "response.lost"
    MEMBER_STATE = "member.state"
    """The member machine moved; `partitions` is what it owns, `detail` the event of its table.

    A single active consumer's `actor` is its client and stream. It reads in ACTIVE, and holds its stream
    until it has left STEPPING_DOWN.
    """
    CALLBACK_BEGIN = "callback.begin"
    """`detail` is assigned, revoked or lost. Partitions are not fetchable from a revoked or lost begin on.

    Of a single active consumer it is activated, stepping down or lost. It reads nothing new from a stepping
    down or lost begin on.
    """
    CALLBACK_END = "callback.end"
    """`detail` as above. Partitions are fetchable from an assigned end on; an `error` says that it raised and
    is not over: it, or its opposite, is called again. With the classic protocol it is over either way, and so
    it is where everything is given up. A callback of a single active consumer is over either way, too."""
    GROUP_STATE = "group.state"
    """The group moved between its states."""
    GROUP_EPOCH = "group.epoch"
    """The group epoch was raised; `detail` says by what, `state_to` is the group's state after that step.

    Of a classic group the epoch is its generation, and it counts as raised when members begin to join.

    `detail` is that of a heartbeat, or timeout (of a member), topics (changed), expressions (resolved), or
    asked (for by somebody who drives the group).
    """
    TARGET = "group.target"
    """A new target assignment, of a classic group its leader's; `group_epoch` is its epoch."""
    ASSIGNMENT = "assignment"
    """The coordinator wrote what a member of a consumer group holds; `detail` is the member's id.

    `partitions` are those assigned to it and those that it must still give up, `state_to` is its state in the
    coordinator's eyes. It is empty if the member is gone.
    """
    MEMBER_REMOVED = "member.removed"
    """The coordinator removed a member; `detail` is left, session, rebalance or replaced.

    The member is fenced until the coordinator accepts its next join.

    A classic one that did not join, or ask for its assignment, within its rebalance timeout: join or sync.

    `actor` is its host, or its member id if another member runs there by now.
    """
    COMMIT = "commit"
    """An OffsetCommit was answered, or given up (`error`); `detail` holds the offsets."""
    RECORDS = "records"
    """The application finished processing records; `detail` holds the offsets, and where the log ends.

    So `4..6 of 9` tells of the records 4 and 5, and that 9 would be the next one. The end may be missing.
    """
    COORDINATOR = "coordinator"
    """A coordinator's host: load, active, resign, crash or restart in `detail`."""
    HOST = "host"
    """A member's host: start, stop, stopped, crash, freeze or thaw in `detail`."""
    SAC_CONSUMER = "sac.consumer"
    """A single active consumer moved in the coordinator's eyes; `actor` is its client and stream.

    `detail` is the command or event, and the connection. `partitions` is the stream: of a plain one, 0.
    """
    NODE = "node"
    """A node of a stream cluster: crash, restart or left in `detail`."""
    CLIENT_STATE = "client.state"
    """A client of a Streams application moved; `detail` is the event of its table."""
    THREAD_STATE = "thread.state"
    """A thread of such a client moved; `detail` is the event of its table."""
    THREAD_FAILED = "thread.failed"
    """An exception left a thread, and the handler is asked; `detail` is what it answers, and where it was."""
    FAULT = "fault"
    """A fault began or ended: `actor` is its kind, `state_to` begin or end, `detail` whom it hits."""
    TOPIC = "topic"
    """`detail` is created, grown or deleted, and how many partitions the topic `actor` has now."""
    VIOLATION = "violation"
    """A checker found an invariant broken; `error` names it, `detail` explains."""


class Row(NamedTuple):
    """One event. `run_id` is kept beside the rows: it is the same for all, and not in the digest."""

    seq: int
    t_us: int
    world: str
    group: str
    actor: str
    kind: str
    state_from: str
    state_to: str
    member_epoch: int
    group_epoch: int
    partitions: tuple[TopicPartition, ...]
    error: str
    detail: str


COLUMNS: tuple[str, ...] = ("run_id", *Row._fields)
