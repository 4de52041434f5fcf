"""Mutants of transactions with offsets, and of requests that describe and change groups."""

from __future__ import annotations

from typing import Any, Final

import msgspec

import fencepost.coordinator.consumer.describe as describing
import fencepost.coordinator.offsets.commit as committing
import fencepost.coordinator.offsets.delete as deleting
import fencepost.coordinator.offsets.fetch as fetching
from fencepost.coordinator.consumer import regular_expressions
from fencepost.coordinator.offsets import expiry, transactions
from fencepost.coordinator.offsets.store import OffsetStore
from fencepost.coordinator.protocol.offsets import OffsetFetchResponse
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.transactions import epochs
from fencepost.coordinator.transactions.coordinator import TransactionCoordinator
from fencepost.member.base.positions import Positions
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Original, instead_of

_PLAIN: Final = ("transactions-and-plain-commits",)


def _always_commits(original: Original, *arguments: Any, commit: bool) -> Any:
    return original(*arguments, commit=True)


def _expires_what_is_staged(original: Original, store: OffsetStore, *arguments: Any, **named: Any) -> Any:
    """Expired offsets are removed even if a transaction has staged new ones."""

    class Blind:
        def __init__(self, store: OffsetStore) -> None:
            self.topics = store.topics

        def is_pending(self, *_: Any) -> bool:
            return False

    return original(Blind(store), *arguments, **named)


def _all_is_stable(original: Original, *arguments: Any, **named: Any) -> Outcome:
    reply: OffsetFetchResponse = original(*arguments, **named).reply
    return Outcome(reply=msgspec.structs.replace(reply, unstable=frozenset()))


def _takes_unstable_offsets(
    original: Original, positions: Positions, token: int, response: Any, now_ms: int
) -> Any:
    return original(positions, token, msgspec.structs.replace(response, unstable=frozenset()), now_ms)


def _any_epoch(original: Original, now: Any, producer_id: int, epoch: int) -> Any:
    return original(now, producer_id, now.producer_epoch)


def _same_epoch_again(original: Original, now: Any, request: Any) -> Any:
    found = original(now, request)
    return msgspec.structs.replace(found, producer_epoch=max(0, now.producer_epoch))


def _groups_are_left_out(original: Original, transactional_id: str, value: Any) -> Any:
    return msgspec.structs.replace(original(transactional_id, value), groups=())


def _timer_is_gone(
    original: Original, coordinator: TransactionCoordinator, event: Any, outcome: Any, *rest: Any
) -> Any:
    return original(coordinator, event, msgspec.structs.replace(outcome, records=()), *rest)


def _at_no_time(original: Original, *arguments: Any) -> Any:
    *others, _ = arguments
    return original(*others, 0)


def _without_what_is_revoked(original: Original, parts: Any, image: Any) -> Any:
    return original(parts[:1], image)


def _whoever_subscribes(original: Original, *arguments: Any, is_subscribed: Any, **named: Any) -> Any:
    return original(*arguments, is_subscribed=lambda _: False, **named)


def _dropped_pattern_changes_nothing(original: Original, group: Any, old: Any, new: Any) -> Any:
    found = original(group, old, new)
    return regular_expressions.UNRESOLVED if new.regex is None and old.regex is not None else found


def _keeps_offsets(_: Original, store: OffsetStore, before: Any, after: Any) -> tuple[()]:
    return ()


def _carries_nothing_out(original: Original, *arguments: Any) -> Any:
    original(*arguments)
    return ()


TRANSACTION_MUTANTS: Final = (
    Mutant(
        "aborted-offsets-count",
        UNREPORTED,
        "The offsets of an aborted transaction count like committed ones.",
        ("transaction-offsets", "exactly-once"),
        ("transactions",),
        (instead_of(transactions, "ended", _always_commits),),
    ),
    Mutant(
        "staged-after-plain",
        UNREPORTED,
        "A staged offset wins over a plain commit that came after it.",
        ("transaction-offsets",),
        _PLAIN,
        (instead_of(OffsetStore, "is_overtaken", lambda *_: False),),
    ),
    Mutant(
        "staged-offsets-expire",
        UNREPORTED,
        "An offset expires although an open transaction has staged another one for its partition.",
        ("transaction-staged",),
        _PLAIN,
        (instead_of(expiry, "expired", _expires_what_is_staged),),
    ),
    Mutant(
        "unstable-not-told",
        "KIP-447",
        "A stable fetch does not mark offsets that an open transaction may change.",
        ("transaction-stable-fetch", "exactly-once"),
        ("transactions",),
        (instead_of(fetching, "fetch", _all_is_stable),),
    ),
    Mutant(
        "unstable-taken",
        "KIP-447",
        "A member starts at offsets that an open transaction may still change.",
        ("exactly-once",),
        ("transactions",),
        (instead_of(Positions, "fetched", _takes_unstable_offsets),),
    ),
    Mutant(
        "replaced-producer-accepted",
        UNREPORTED,
        "A replaced producer may continue under its transactional id.",
        ("transaction-fenced",),
        ("transactions",),
        (instead_of(epochs, "check_producer", _any_epoch),),
    ),
    Mutant(
        "epoch-given-twice",
        UNREPORTED,
        "A new producer gets the epoch of the previous one.",
        ("transaction-epochs",),
        ("transactions",),
        (instead_of(epochs, "initialized", _same_epoch_again),),
    ),
    Mutant(
        "group-not-told",
        "KAFKA-17507",
        "A transaction counts as complete before its group has the marker.",
        ("transaction-decided",),
        ("transactions",),
        (instead_of(TransactionCoordinator, "_markers", _groups_are_left_out),),
    ),
    Mutant(
        "decided-and-forgotten",
        UNREPORTED,
        "A coordinator that loads does not carry out transactions whose end was decided.",
        ("transaction-ends",),
        ("transactions-slow-markers",),
        (instead_of(TransactionCoordinator, "replay", _carries_nothing_out),),
    ),
    Mutant(
        "timeout-lost-with-its-record",
        UNREPORTED,
        "A transaction whose abort could not be written is never aborted again.",
        ("transaction-ends",),
        _PLAIN,
        (instead_of(TransactionCoordinator, "not_written", _timer_is_gone),),
    ),
    Mutant(
        "committed-at-no-time",
        UNREPORTED,
        "Commits get timestamp 0, so they expire at once.",
        ("commit-recorded",),
        ("manual-commits",),
        (instead_of(committing, "_record", _at_no_time),),
    ),
    Mutant(
        "revoked-not-described",
        "KAFKA-20431",
        "A description omits the partitions that a member must still release.",
        ("told-equals-state",),
        ("operators",),
        (instead_of(describing, "_named", _without_what_is_revoked),),
        ('application.callback="5s..20s"',),
    ),
    Mutant(
        "subscribed-offsets-deleted",
        UNREPORTED,
        "OffsetDelete removes offsets of topics that members subscribe to.",
        ("admin-changes", "offsets-kept"),
        ("operators",),
        (instead_of(deleting, "delete", _whoever_subscribes),),
    ),
    Mutant(
        "dropped-pattern-unnoticed",
        "KAFKA-19899",
        "A member that drops its pattern keeps the topics that only the pattern matched.",
        ("subscription-raises-epoch",),
        ("dropped-patterns",),
        (instead_of(regular_expressions, "change_of", _dropped_pattern_changes_nothing),),
    ),
    Mutant(
        "offsets-outlive-their-topic",
        "KAFKA-16168",
        "Committed and staged offsets of a deleted topic stay.",
        ("offsets-kept",),
        ("growing-topics", "transactions"),
        (instead_of(expiry, "of_deleted_topics", _keeps_offsets),),
    ),
)
