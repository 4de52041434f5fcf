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
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Mutants, Original, instead_of

_PLAIN: Final = ("transactions-and-plain-commits",)


TRANSACTION_MUTANTS: Final = Mutants()


@TRANSACTION_MUTANTS.bug(
    "aborted-offsets-count", "transaction-offsets exactly-once", ("transactions",), (transactions, "ended")
)
def _always_commits(original: Original, *arguments: Any, commit: bool) -> Any:
    """The offsets of an aborted transaction count like committed ones."""
    return original(*arguments, commit=True)


TRANSACTION_MUTANTS.append(
    Mutant(
        "staged-after-plain",
        UNREPORTED,
        "A staged offset wins over a plain commit that came after it.",
        ("transaction-offsets",),
        _PLAIN,
        (instead_of(OffsetStore, "is_overtaken", lambda *_: False),),
    )
)


@TRANSACTION_MUTANTS.bug("staged-offsets-expire", "transaction-staged", _PLAIN, (expiry, "expired"))
def _expires_what_is_staged(original: Original, store: OffsetStore, *arguments: Any, **named: Any) -> Any:
    """An offset expires although an open transaction has staged another one for its partition."""

    class Blind:
        def __init__(self, store: OffsetStore) -> None:
            self.topics = store.topics

        def is_pending(self, *_: Any) -> bool:
            return False

    return original(Blind(store), *arguments, **named)


@TRANSACTION_MUTANTS.bug(
    "unstable-not-told",
    "transaction-stable-fetch exactly-once",
    ("transactions",),
    (fetching, "fetch"),
    source="KIP-447",
)
def _all_is_stable(original: Original, *arguments: Any, **named: Any) -> Outcome:
    """A stable fetch does not mark offsets that an open transaction may change."""
    reply: OffsetFetchResponse = original(*arguments, **named).reply
    return Outcome(reply=msgspec.structs.replace(reply, unstable=frozenset()))


@TRANSACTION_MUTANTS.bug(
    "unstable-taken", "exactly-once", ("transactions",), (Positions, "fetched"), source="KIP-447"
)
def _takes_unstable_offsets(
    original: Original, positions: Positions, token: int, response: Any, now_ms: int
) -> Any:
    """A member starts at offsets that an open transaction may still change."""
    return original(positions, token, msgspec.structs.replace(response, unstable=frozenset()), now_ms)


@TRANSACTION_MUTANTS.bug(
    "replaced-producer-accepted", "transaction-fenced", ("transactions",), (epochs, "check_producer")
)
def _any_epoch(original: Original, now: Any, producer_id: int, epoch: int) -> Any:
    """A replaced producer may continue under its transactional id."""
    return original(now, producer_id, now.producer_epoch)


@TRANSACTION_MUTANTS.bug(
    "epoch-given-twice", "transaction-epochs", ("transactions",), (epochs, "initialized")
)
def _same_epoch_again(original: Original, now: Any, request: Any) -> Any:
    """A new producer gets the epoch of the previous one."""
    found = original(now, request)
    return msgspec.structs.replace(found, producer_epoch=max(0, now.producer_epoch))


@TRANSACTION_MUTANTS.bug(
    "group-not-told",
    "transaction-decided",
    ("transactions",),
    (TransactionCoordinator, "_markers"),
    source="KAFKA-17507",
)
def _groups_are_left_out(original: Original, transactional_id: str, value: Any) -> Any:
    """A transaction counts as complete before its group has the marker."""
    return msgspec.structs.replace(original(transactional_id, value), groups=())


@TRANSACTION_MUTANTS.bug(
    "decided-and-forgotten",
    "transaction-ends",
    ("transactions-slow-markers",),
    (TransactionCoordinator, "replay"),
)
def _carries_nothing_out(original: Original, *arguments: Any) -> Any:
    """A coordinator that loads does not carry out transactions whose end was decided."""
    original(*arguments)
    return ()


@TRANSACTION_MUTANTS.bug(
    "timeout-lost-with-its-record", "transaction-ends", _PLAIN, (TransactionCoordinator, "not_written")
)
def _timer_is_gone(
    original: Original, coordinator: TransactionCoordinator, event: Any, outcome: Any, *rest: Any
) -> Any:
    """A transaction whose abort could not be written is never aborted again."""
    return original(coordinator, event, msgspec.structs.replace(outcome, records=()), *rest)


@TRANSACTION_MUTANTS.bug(
    "committed-at-no-time", "commit-recorded", ("manual-commits",), (committing, "_record")
)
def _at_no_time(original: Original, *arguments: Any) -> Any:
    """Commits get timestamp 0, so they expire at once."""
    *others, _ = arguments
    return original(*others, 0)


@TRANSACTION_MUTANTS.bug(
    "revoked-not-described",
    "told-equals-state",
    ("operators",),
    (describing, "_named"),
    source="KAFKA-20431",
    overrides=('application.callback="5s..20s"',),
)
def _without_what_is_revoked(original: Original, parts: Any, image: Any) -> Any:
    """A description omits the partitions that a member must still release."""
    return original(parts[:1], image)


@TRANSACTION_MUTANTS.bug(
    "subscribed-offsets-deleted", "admin-changes offsets-kept", ("operators",), (deleting, "delete")
)
def _whoever_subscribes(original: Original, *arguments: Any, is_subscribed: Any, **named: Any) -> Any:
    """OffsetDelete removes offsets of topics that members subscribe to."""
    return original(*arguments, is_subscribed=lambda _: False, **named)


@TRANSACTION_MUTANTS.bug(
    "dropped-pattern-unnoticed",
    "subscription-raises-epoch",
    ("dropped-patterns",),
    (regular_expressions, "change_of"),
    source="KAFKA-19899",
)
def _dropped_pattern_changes_nothing(original: Original, group: Any, old: Any, new: Any) -> Any:
    """A member that drops its pattern keeps the topics that only the pattern matched."""
    found = original(group, old, new)
    return regular_expressions.UNRESOLVED if new.regex is None and old.regex is not None else found


@TRANSACTION_MUTANTS.bug(
    "offsets-outlive-their-topic",
    "offsets-kept",
    ("growing-topics", "transactions"),
    (expiry, "of_deleted_topics"),
    source="KAFKA-16168",
)
def _keeps_offsets(_: Original, store: OffsetStore, before: Any, after: Any) -> tuple[()]:
    """Committed and staged offsets of a deleted topic stay."""
    return ()
