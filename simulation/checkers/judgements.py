"""What becomes of an invariant where the coordinator is a real broker, observed through its journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class RealJudgement(msgspec.Struct, frozen=True):
    """What becomes of an invariant where the coordinator is a real broker."""

    judged: bool
    note: str
    """What is different there, or why it can't be judged."""


_IN_FULL: Final = RealJudgement(True, "")


def _no(note: str) -> RealJudgement:
    return RealJudgement(False, note)


def _yes(note: str) -> RealJudgement:
    return RealJudgement(True, note)


_REQUEST: Final = _no("Requests to the broker are in no record.")
_NO_STREAMS: Final = _no("A Kafka broker has no streams with single active consumers.")
_NO_CLASSIC: Final = _no("Requests to the broker are in no record.")
_NO_POLLS: Final = _no("When applications poll is in no record.")
_NO_TRANSACTIONS: Final = _no("The members of a real run have no transactional producers.")
_CLIENTS_ONLY: Final = _no("A streams group on real brokers is watched through its clients.")
_OWN_MEMBERS: Final = _yes("Of members that are fencepost's own; others do not show it.")

_BY_NAME: Final[Mapping[str, RealJudgement]] = {
    "owners-map": _yes("The map is the one that follows from the journal."),
    "revocation-frozen": _yes("Only that the epoch stays: acknowledgements are in no record."),
    "revocation-bounded": _yes("Within five seconds: a broker's timers are not exact."),
    "unreleased-waits": _yes("After each outcome that can be told from the next one in its batch."),
    "assigned-in-target": _yes("Except of topics that changed within the second before."),
    "target-covers": _yes("Except of topics that changed within the second before."),
    "target-balanced": _yes("Ranges except of topics that changed within the second before."),
    "target-sticky": _yes("Except of topics that changed within the second before."),
    "timers-armed": _no("Timers are in no record."),
    "gone-members": _yes("At the end of a run: when a member was heard is in no record."),
    "members-kept": _no("When a member was heard is in no record."),
    "epoch-caused": _yes("That there is a cause; several changes may be seen as one."),
    "target-due": _no("An assignor that runs in the background takes its own time."),
    "heartbeat-reconciles": _REQUEST,
    "metadata-hash": _no("Kafka's digest is its own (XXH3), and private to its journal."),
    "expressions-resolved": _REQUEST,
    "bounded-memory": _yes("What the journal keeps of members; timers and contacts are in no record."),
    "reply-equals-state": _yes("Of replies that members report: epoch and partitions are on record."),
    "assignment-present": _REQUEST,
    "granted-after-release": _no("A reply tells what is on record, and one-owner holds of that."),
    "failed-changes-nothing": _REQUEST,
    "heartbeat-answers": _REQUEST,
    "commit-fenced": _REQUEST,
    "commit-recorded": _REQUEST,
    "told-equals-state": _REQUEST,
    "admin-changes": _REQUEST,
    "offsets-kept": _yes("Except while topics change."),
    "fetch-equals-commit": _REQUEST,
    "offsets-advance": _no("Who committed is in no record."),
    "streams-shutdown-reaches": _yes("From the first client on that the group told."),
    "streams-one-owner": _CLIENTS_ONLY,
    "streams-reconciles": _CLIENTS_ONLY,
    "streams-epochs": _CLIENTS_ONLY,
    "streams-target": _CLIENTS_ONLY,
    "streams-sticky": _CLIENTS_ONLY,
    "streams-standby": _CLIENTS_ONLY,
    "streams-topics": _CLIENTS_ONLY,
    "streams-answers": _CLIENTS_ONLY,
    "streams-replies": _CLIENTS_ONLY,
    "streams-sessions": _CLIENTS_ONLY,
    "streams-delays": _CLIENTS_ONLY,
    "streams-bookkeeping": _CLIENTS_ONLY,
    "streams-commits": _CLIENTS_ONLY,
    "streams-endpoints": _CLIENTS_ONLY,
    "classic-generations": _yes("Of what is on record."),
    "classic-assignment": _yes("Of what a leader's group has on record."),
    "classic-joins": _OWN_MEMBERS,
    "journal-replay": _yes("Each record can follow those before it."),
    "transitions": _yes("Of groups after each outcome, and of members that are fencepost's own."),
    "one-in-flight": _OWN_MEMBERS,
    "frees-own-instance": _OWN_MEMBERS,
    "request-fields": _OWN_MEMBERS,
    "owned-honest": _OWN_MEMBERS,
    "epoch-as-answered": _OWN_MEMBERS,
    "retries-back-off": _OWN_MEMBERS,
    "searches-anew": _no("When a member looks for its coordinator is in no record."),
    "subscription-told": _no("What processes were told to subscribe to last is in no record."),
    "gives-up-rightly": _OWN_MEMBERS,
    "reconciles-on": _NO_POLLS,
    "leaves-told": _OWN_MEMBERS,
    "fenced-returns": _no("How late a busy machine lets a process go on is no fault of the process."),
    "starts-at-committed": _no("When a member asked for offsets is in no record."),
    "commits-go-on": _NO_POLLS,
    "commits-end": _NO_POLLS,
    "errors-raised": _NO_POLLS,
    "poll-timeouts": _NO_POLLS,
    "partitions-read": _NO_POLLS,
    "heartbeats-go-on": _no("How late a busy machine lets a process send is no fault of the process."),
}

_BY_FAMILY: Final[Mapping[str, RealJudgement]] = {
    "classic-": _NO_CLASSIC,
    "sac-": _NO_STREAMS,
    "transaction-": _NO_TRANSACTIONS,
    "exactly-once": _NO_TRANSACTIONS,
}
"""By how the names begin."""


def judgement_of(name: str) -> RealJudgement:
    """Of the invariant of that name; in full where nothing else is said."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    for family, judgement in _BY_FAMILY.items():
        if name.startswith(family):
            return judgement
    return _IN_FULL
