"""Invariants of Streams applications and of their groups."""

from __future__ import annotations

from typing import Final

from fencepost.simulation.checkers.judgements import Invariant

STREAMS_INVARIANTS: Final = (
    Invariant(
        "streams-transitions",
        "Threads and clients move only along their tables, and ignore only the moves listed there.",
        "KIP-457, KIP-696",
    ),
    Invariant(
        "streams-terminal",
        "ERROR and NOT_RUNNING are final and follow their PENDING states.",
        "KIP-696",
    ),
    Invariant(
        "streams-closed",
        "When a client ends, its threads are dead, its services stopped and its locks released.",
        "KIP-671, KIP-696",
    ),
    Invariant(
        "streams-error-cause",
        "PENDING_ERROR follows a handler's return value or a status from the group.",
        "KIP-696",
    ),
    Invariant(
        "streams-error-due",
        "A client shuts down if its handler returned SHUTDOWN_CLIENT or raised.",
        "KIP-671",
    ),
    Invariant(
        "streams-live-threads",
        "The number of live threads is started plus added plus replaced minus removed.",
        "KIP-671, KIP-663",
    ),
    Invariant(
        "streams-dead-left",
        "A dead thread has closed its member and the member's connections.",
        "KAFKA-12738",
    ),
    Invariant(
        "streams-derived",
        "The client's state follows from its threads' states.",
        "KIP-457; KAFKA-14717",
    ),
    Invariant(
        "streams-reconnects",
        "A thread that is connected again returns to its earlier state.",
        "KIP-457",
    ),
    Invariant(
        "streams-listener",
        "The listener is called for every step of the client, in order.",
        "KAFKA-16955, KAFKA-6621",
    ),
    Invariant(
        "streams-shutdown-cause",
        "The group sends a shutdown status only if a handler asked for it.",
        "KIP-1071, Status",
    ),
    Invariant(
        "streams-shutdown-reaches",
        "A shutdown takes every reachable client to ERROR in time.",
        "KIP-671",
    ),
    Invariant(
        "streams-at-least-once",
        "No record is skipped, and no offset is committed before its record is processed.",
        "KAFKA-15429",
    ),
    Invariant(
        "streams-settles",
        "Once faults end, clients run, and the group has exactly their threads as members.",
        "KIP-1071, Reconciliation",
    ),
    Invariant(
        "streams-one-owner",
        "No active task is assigned to, or still to be released by, two members.",
        "KIP-1071, Reconciliation",
    ),
    Invariant(
        "streams-reconciles",
        "A member first releases tasks, then gets free ones of its target. If it missed them, it rejoins.",
        "KIP-1071, Reconciliation",
    ),
    Invariant(
        "streams-epochs",
        "The group epoch rises once for each cause and nothing else. Member epochs never fall.",
        "KIP-1071, Group Epoch",
    ),
    Invariant(
        "streams-target",
        "A target has each active task once. No member has more than its share, and no process less.",
        "KIP-1071, Assignors",
    ),
    Invariant(
        "streams-sticky",
        "A member keeps its tasks up to its share. Members that stood by for a task come next.",
        "KIP-1071, Assignors",
    ),
    Invariant(
        "streams-standby",
        "Each stateful task has its standbys, in other processes, and those with the least load take them.",
        "KIP-1071, Assignors; KAFKA-20899",
    ),
    Invariant(
        "streams-topics",
        "All missing internal topics are created, and no others.",
        "KIP-1071, Topology Configuration",
    ),
    Invariant(
        "streams-answers",
        "A heartbeat is accepted, or refused with the one right error and without effect.",
        "KIP-1071, Heartbeat; KAFKA-19233",
    ),
    Invariant(
        "streams-replies",
        "A response carries the stored epoch, changed tasks, and the group's current statuses.",
        "KIP-1071, Heartbeat",
    ),
    Invariant(
        "streams-described",
        "A description of a group shows its stored state. Without a group it is an error.",
        "KIP-1071, StreamsGroupDescribe; KAFKA-19661",
    ),
    Invariant(
        "streams-sessions",
        "A member is removed when it leaves or its timeout expires: not earlier, not later.",
        "KIP-1071, Member Session Management",
    ),
    Invariant(
        "streams-delays",
        "The first target waits for the initial delay, later ones for the interval, and no longer.",
        "KIP-1071, Initial Rebalance Delay; KIP-1263",
    ),
    Invariant(
        "streams-bookkeeping",
        "Stored members, timers and task processes match the group.",
        "KIP-1071; KAFKA-19862",
    ),
    Invariant(
        "streams-commits",
        "A member commits at its epoch, or for tasks that it has kept since. It fetches the last commit.",
        "KIP-1071, Offset Commit; KIP-1251",
    ),
    Invariant(
        "streams-endpoints",
        "The endpoint map lists what each process has, and is sent to members with an older map.",
        "KIP-1071, Interactive Queries",
    ),
)
