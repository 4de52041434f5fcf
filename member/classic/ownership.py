"""The partitions that a classic member owns, and the steps by which it takes an assignment up.

Before it joins again, an eager member gives everything up, and a cooperative one the topics that it does not
subscribe to any more. Partitions that an assignment takes away are given up, too. Each time: commit first,
then on_revoked.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.ids import TopicPartition, topic_partitions
from fencepost.member.base.actions import ASSIGNED, REVOKED, CallbackKind, RunCallback
from fencepost.member.base.commits import CommitKind
from fencepost.member.base.machine import AssignmentSteps, MemberMachine

Owned = tuple[TopicPartition, ...]


class ReleaseStage(enum.Enum):
    """The steps of the release of partitions in a rebalance."""

    NOTHING = "nothing"
    COMMIT = "commit"
    """The processed offsets are being committed."""
    REVOKE = "revoke"
    """It is committed; on_revoked is next."""
    READY = "ready"
    """on_revoked has ended, or there was nothing to give up."""


class ClassicCallback(NamedTuple):
    """The application's callback that runs."""

    token: int
    kind: CallbackKind
    partitions: Owned
    releases: bool
    """True if everything is given up with it."""


class ClassicOwnership(AssignmentSteps):
    """The partitions of one member, and the assignment that it has not taken up yet."""

    __slots__ = (
        "cooperative",
        "owned",
        "rejoin_at_ms",
        "rejoin_wanted",
        "stage",
        "target",
    )

    def __init__(self, member: MemberMachine, *, cooperative: bool) -> None:
        super().__init__(member)
        self.cooperative = cooperative
        """True if the member keeps its partitions while it joins again (KIP-429)."""
        self.owned: Owned = ()
        """From the start of on_assigned to the end of on_revoked or on_lost; sorted."""
        self.target: Owned | None = None
        """The assignment that is not taken up yet."""
        self.stage = ReleaseStage.NOTHING
        self.rejoin_wanted = False
        self.rejoin_at_ms: int | None = None
        """Time at which the assignor wants one more round."""

    def freeze(self) -> None:
        """Stop the work on the assignment: no round goes on."""
        self.target = None
        self.stage = ReleaseStage.NOTHING
        self.rejoin_wanted = False
        self.rejoin_at_ms = None

    def join_sent(self) -> None:
        """Start the next round: a rejoin that was wanted is under way."""
        self.rejoin_wanted = False
        self.rejoin_at_ms = None

    def prepare(self, subscription: Sequence[str], generation: int, now_ms: int) -> bool:
        """Before a JoinGroup, commit, and release what can't be kept. Return true if anything happened."""
        if self.stage in (ReleaseStage.COMMIT, ReleaseStage.READY) or not self._polls.in_poll:
            return False
        if self.cooperative:
            gone = tuple(each for each in self.owned if each.topic not in subscription)
        else:
            gone = self.owned
        # Records that arrive while the commit is under way would be in no commit (KAFKA-14196). After it, the
        # subscription may be another one.
        is_changed = self._positions.suspend(gone)
        self._out.wakes = self._out.wakes or bool(gone) or is_changed
        if self.stage is ReleaseStage.NOTHING:
            self._commit_first(generation, now_ms)
            return True
        self.stage = ReleaseStage.READY
        if gone:
            self._call(REVOKED, gone, releases=gone == self.owned)
        return True

    def _commit_first(self, generation: int, now_ms: int) -> None:
        offsets = self._positions.uncommitted(delivered=False) if self._config.enable_auto_commit else {}
        if offsets and generation > 0:
            self.stage = ReleaseStage.COMMIT
            deadline_ms = now_ms + self._config.max_poll_interval_ms
            self._commits.make(CommitKind.RELEASE, offsets, deadline_ms, {})
        else:
            self.stage = ReleaseStage.REVOKE

    def committed(self) -> None:
        """Go on with the work that waited for its commit."""
        if self.stage is ReleaseStage.COMMIT:
            self.stage = ReleaseStage.REVOKE

    def take(self, assignment: ConsumerProtocolAssignment, rejoin_at_ms: int | None) -> None:
        """Make the assignment of a new generation the next target."""
        self.target = tuple(
            partition
            for topic in sorted(assignment.partitions)
            for partition in topic_partitions(topic, assignment.partitions[topic])
        )
        self.stage = ReleaseStage.NOTHING
        self.rejoin_at_ms = rejoin_at_ms

    def reconcile(self, target: Owned, generation: int, now_ms: int) -> bool:
        """Take the assignment up; revoked partitions get their next owner after one more round (KIP-429)."""
        kept = frozenset(target)
        gone = tuple(each for each in self.owned if each not in kept)
        if not gone:
            before = frozenset(self.owned)
            self.stage = ReleaseStage.NOTHING
            self.target = None
            self.owned = target
            added = tuple(each for each in target if each not in before)
            self._call(ASSIGNED, added, releases=False)
            return True
        if self.stage is ReleaseStage.COMMIT or not self._polls.in_poll:
            return False
        if self.stage is ReleaseStage.NOTHING:
            self.rejoin_wanted = self.cooperative
            self._positions.suspend(gone)
            self._out.wakes = True
            self._commit_first(generation, now_ms)
        else:
            self._call(REVOKED, gone, releases=gone == self.owned)
        return True

    # -- callbacks ---------------------------------------------------------------------------------------

    def _call(self, kind: CallbackKind, partitions: Owned, *, releases: bool) -> None:
        token = next(self._tokens)
        self._callbacks.running = ClassicCallback(token, kind, partitions, releases)
        if kind is ASSIGNED:
            self._positions.announce(partitions)
        else:
            self._positions.suspend(partitions)
            self._out.wakes = True
        self._out.put(RunCallback(token, kind, partitions, releases))

    def begin_release(self) -> None:
        """Give everything up, with the callback for it if anything is owned."""
        kind = self._callbacks.take_release()
        if kind is not None and self.owned:
            self._call(kind, self.owned, releases=True)
        else:
            self.released()

    def released(self) -> None:
        """Drop all owned partitions."""
        self.owned = ()
        self._positions.clear()

    def callback_ended(self, callback: ClassicCallback) -> Owned:
        """Keep the callback's effect on the owned set. Return the partitions that were released."""
        partitions = callback.partitions
        if callback.kind is ASSIGNED:
            self._positions.add(partitions)
            self._out.wakes = True
            return ()
        if callback.releases:
            self.released()
        else:
            gone = frozenset(partitions)
            self.owned = tuple(each for each in self.owned if each not in gone)
            self._positions.remove(partitions)
            self._positions.suspend(())
        return partitions
