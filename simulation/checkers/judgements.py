"""An invariant, and the judgement by it if the coordinator is a real broker, observed through its journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class RealJudgement(msgspec.Struct, frozen=True):
    """The judgement by an invariant if the coordinator is a real broker."""

    judged: bool
    note: str
    """The difference from a simulated run, or the reason why the invariant is not judged."""


_IN_FULL: Final = RealJudgement(True, "")


def _no(note: str) -> RealJudgement:
    return RealJudgement(False, note)


def _yes(note: str) -> RealJudgement:
    return RealJudgement(True, note)


_REQUEST: Final = _no("The journal has no requests.")
_NO_STREAMS: Final = _no("A Kafka broker has no streams with single active consumers.")
_NO_CLASSIC: Final = _no("The journal has no requests.")
_NO_POLLS: Final = _no("The journal does not say when applications poll.")
_NO_TRANSACTIONS: Final = _no("Members of a real run have no transactional producers.")
_CLIENTS_ONLY: Final = _no("A streams group on real brokers is observed only through its clients.")
_OWN_MEMBERS: Final = _yes("Only for fencepost's own members. Other clients do not report it.")

_BY_NAME: Final[Mapping[str, RealJudgement]] = {
    "owners-map": _yes("The map of owners is derived from the journal."),
    "revocation-frozen": _yes("Only that the epoch is fixed. The journal has no acknowledgements."),
    "revocation-bounded": _yes("With five seconds of tolerance, because a broker's timers are not exact."),
    "unreleased-waits": _yes("After each outcome that can be separated from the next one in its batch."),
    "assigned-in-target": _yes("Except for topics that changed within the last second."),
    "target-covers": _yes("Except for topics that changed within the last second."),
    "target-balanced": _yes("Ranges, except for topics that changed within the last second."),
    "target-sticky": _yes("Except for topics that changed within the last second."),
    "timers-armed": _no("The journal has no timers."),
    "gone-members": _yes(
        "Only at the end of a run. The journal does not say when a member sent its last heartbeat."
    ),
    "members-kept": _no("The journal does not say when a member sent its last heartbeat."),
    "epoch-caused": _yes("Only that there is a cause. Several changes may appear as one."),
    "target-due": _no("An assignor that runs in the background may be late."),
    "heartbeat-reconciles": _REQUEST,
    "metadata-hash": _no("Kafka uses a digest of its own (XXH3), private to its journal."),
    "expressions-resolved": _REQUEST,
    "bounded-memory": _yes("Only what the journal keeps of members. It has no timers or last-contact times."),
    "reply-equals-state": _yes(
        "For responses that members report: the journal has their epoch and partitions."
    ),
    "assignment-present": _REQUEST,
    "granted-after-release": _no("A response carries what is in the journal, and `one-owner` judges that."),
    "failed-changes-nothing": _REQUEST,
    "heartbeat-answers": _REQUEST,
    "commit-fenced": _REQUEST,
    "heartbeat-recorded": _REQUEST,
    "commit-recorded": _REQUEST,
    "told-equals-state": _REQUEST,
    "admin-changes": _REQUEST,
    "offsets-kept": _yes("Except while topics change."),
    "fetch-equals-commit": _REQUEST,
    "offsets-advance": _no("The journal does not say which member committed."),
    "streams-shutdown-reaches": _yes("From the first client that the group notified."),
    "streams-one-owner": _CLIENTS_ONLY,
    "streams-reconciles": _CLIENTS_ONLY,
    "streams-epochs": _CLIENTS_ONLY,
    "streams-target": _CLIENTS_ONLY,
    "streams-sticky": _CLIENTS_ONLY,
    "streams-standby": _CLIENTS_ONLY,
    "streams-topics": _CLIENTS_ONLY,
    "streams-answers": _CLIENTS_ONLY,
    "streams-replies": _CLIENTS_ONLY,
    "streams-described": _CLIENTS_ONLY,
    "streams-sessions": _CLIENTS_ONLY,
    "streams-delays": _CLIENTS_ONLY,
    "streams-bookkeeping": _CLIENTS_ONLY,
    "streams-commits": _CLIENTS_ONLY,
    "streams-endpoints": _CLIENTS_ONLY,
    "classic-generations": _yes("For recorded generations."),
    "classic-assignment": _yes("For recorded assignments."),
    "classic-joins": _OWN_MEMBERS,
    "journal-replay": _yes("Only that each record can follow the records before it."),
    "transitions": _yes("For groups after each outcome, and for fencepost's own members."),
    "one-in-flight": _OWN_MEMBERS,
    "frees-own-instance": _OWN_MEMBERS,
    "request-fields": _OWN_MEMBERS,
    "owned-honest": _OWN_MEMBERS,
    "epoch-as-answered": _OWN_MEMBERS,
    "retries-back-off": _OWN_MEMBERS,
    "searches-anew": _no("The journal does not say when a member looks for its coordinator."),
    "subscription-told": _no("The journal does not say what applications last subscribed to."),
    "gives-up-rightly": _OWN_MEMBERS,
    "reconciles-on": _NO_POLLS,
    "leaves-told": _OWN_MEMBERS,
    "fenced-returns": _no("A busy machine may delay a process, which is not the process's fault."),
    "starts-at-committed": _no("The journal does not say when a member fetched offsets."),
    "commits-go-on": _NO_POLLS,
    "commits-end": _NO_POLLS,
    "errors-raised": _NO_POLLS,
    "poll-timeouts": _NO_POLLS,
    "partitions-read": _NO_POLLS,
    "heartbeats-go-on": _no("A busy machine may delay a process, which is not the process's fault."),
}

_BY_FAMILY: Final[Mapping[str, RealJudgement]] = {
    "classic-": _NO_CLASSIC,
    "sac-": _NO_STREAMS,
    "transaction-": _NO_TRANSACTIONS,
    "exactly-once": _NO_TRANSACTIONS,
}
"""Judgements by the beginning of the name."""


def judgement_of(name: str) -> RealJudgement:
    """Return the judgement by the invariant of that name; in full unless a table differs."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    for family, judgement in _BY_FAMILY.items():
        if name.startswith(family):
            return judgement
    return _IN_FULL


class Invariant(msgspec.Struct, frozen=True):
    """A rule that must hold after every event (or, for `progress` and its like, at the end)."""

    name: str
    summary: str
    source: str
    """A section of KIP-848, or the defect from which it was learned."""

    @property
    def on_real(self) -> RealJudgement:
        """The judgement of a real broker and its members by this invariant."""
        return judgement_of(self.name)
