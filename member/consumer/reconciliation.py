"""The way from the owned partitions of a member to its target.

One pass at a time: commit the processed offsets, on_revoked, on_assigned, acknowledge. The next pass takes up
a target that arrives during a pass. A pass is abandoned when the member is fenced, leaves or fails; the
callback that runs then is awaited, and only its effect on the owned set is kept.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping

from fencepost.coordinator.protocol.ids import NO_PARTITIONS, Partitions, TopicId, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.actions import ASSIGNED, REVOKED, CallbackKind, RunCallback
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import CommitKind
from fencepost.member.base.lookups import ResolvedTopicNames
from fencepost.member.base.machine import AssignmentSteps, MemberMachine
from fencepost.member.consumer.assignment import (
    canonical,
    difference,
    intersection,
    named,
    only_topics,
    union,
)

NO_LOCAL_EPOCH = -1


class PassStage(enum.Enum):
    """The stages of a pass."""

    COMMIT = "commit"
    REVOKE = "revoke"
    ASSIGN = "assign"


class PassResult(enum.Enum):
    """The results of a step of a reconciliation."""

    NOTHING = "nothing"
    GOES_ON = "goes on"
    FINISHED = "finished"
    """The pass is over, and the next heartbeat acknowledges it."""


class Pass:
    """One reconciliation, with the local epoch of the target that it began with."""

    __slots__ = ("added", "local_epoch", "revoked", "stage")

    def __init__(self, local_epoch: int, revoked: Partitions, added: Partitions) -> None:
        self.local_epoch = local_epoch
        self.revoked = revoked
        self.added = added
        self.stage = PassStage.COMMIT


class Callback:
    """The application's callback that runs, and the pass that it belongs to, if that goes on."""

    __slots__ = ("kind", "names", "of_pass", "partitions", "releases", "token")

    def __init__(
        self,
        token: int,
        kind: CallbackKind,
        partitions: Partitions,
        names: tuple[TopicPartition, ...],
        of_pass: Pass | None,
        *,
        releases: bool,
    ) -> None:
        self.token = token
        self.kind = kind
        self.partitions = partitions
        self.names = names
        """The same partitions under their topics' names."""
        self.of_pass = of_pass
        self.releases = releases
        """True if everything is given up with it: when it ends, nothing is owned, even if it raises."""


class Assignment:
    """The partitions that the member owns, its target, and what it has acknowledged.

    `owned` holds each partition from the start of its on_assigned until its on_revoked or on_lost has ended.
    So long the application may be busy with it, and so long heartbeats list it as owned. Each replaced target
    gets the next local epoch, and each local epoch one acknowledgement, even if the set is the same as before
    (KAFKA-16185).
    """

    __slots__ = ("_next_local_epoch", "acknowledged_epoch", "local_epoch", "owned", "target", "unconfirmed")

    def __init__(self) -> None:
        self.owned: Partitions = NO_PARTITIONS
        self.unconfirmed: Partitions = NO_PARTITIONS
        """Owned, but on_assigned has not ended well yet: it has to run (again)."""
        self.target: Partitions | None = None
        self._next_local_epoch = 0
        self.local_epoch = NO_LOCAL_EPOCH
        self.acknowledged_epoch = NO_LOCAL_EPOCH

    @property
    def claimed(self) -> Partitions:
        """The partitions that a heartbeat lists: all owned ones, and all that the target may still bring.

        The coordinator treats a partition that is not listed as released, and may give it away. If the
        response that says so is lost, the member still takes the partition.
        """
        return self.owned if self.target is None else union(self.owned, self.target)

    def forget_target(self) -> None:
        """Forget the target: the member joins again, or is out of the group."""
        self.target = None
        self.acknowledged_epoch = self.local_epoch

    def forget_owned(self) -> None:
        """Forget all owned partitions: everything was given up."""
        self.owned = self.unconfirmed = NO_PARTITIONS

    def replace_target(self, received: Partitions) -> bool:
        """Take a target over. Return true if it differs from the one before."""
        if received == self.target or (received := canonical(received)) == self.target:
            return False
        self.target = received
        self.local_epoch = self._next_local_epoch
        self._next_local_epoch += 1
        return True

    @property
    def reconciled(self) -> bool:
        """True if the target is owned and acknowledged."""
        return (
            self.owned == self.target and not self.unconfirmed and self.acknowledged_epoch == self.local_epoch
        )

    @property
    def target_is_owned(self) -> bool:
        """True if there is nothing to revoke and nothing to assign."""
        return self.owned == self.target and not self.unconfirmed

    def changes(self, known: Container[TopicId]) -> tuple[Partitions, Partitions]:
        """Return the partitions to revoke and to assign, for the part of the target whose topic names are
        known."""
        target = only_topics(self.target or NO_PARTITIONS, known)
        revoked = difference(self.owned, target)
        added = union(difference(target, self.owned), intersection(self.unconfirmed, target))
        return revoked, added

    def begin_assigned(self, added: Partitions) -> None:
        """Note that on_assigned is about to run."""
        self.owned = union(self.owned, added)
        self.unconfirmed = union(self.unconfirmed, added)

    def end_assigned(self, added: Partitions) -> None:
        """Note that on_assigned ended well."""
        self.unconfirmed = difference(self.unconfirmed, added)

    def end_revoked(self, revoked: Partitions) -> None:
        """Note that on_revoked ended well."""
        self.owned = difference(self.owned, revoked)
        self.unconfirmed = difference(self.unconfirmed, revoked)

    def revoked_raised(self, revoked: Partitions) -> None:
        """Note that on_revoked raised: still owned, but if they are to stay, on_assigned has to run again."""
        self.unconfirmed = union(self.unconfirmed, revoked)


class Reconciler(AssignmentSteps):
    """The passes of one member: the assignment that they change, and the names of its topics."""

    __slots__ = (
        "_owned_names",
        "assignment",
        "current",
        "names",
    )

    def __init__(self, member: MemberMachine, backoff: Backoff) -> None:
        super().__init__(member)
        self._owned_names: tuple[Partitions, tuple[TopicPartition, ...]] = NO_PARTITIONS, ()
        """The last result of `owned_names`, and the set that it is for."""
        self.assignment = Assignment()
        self.names = ResolvedTopicNames(backoff, member.tokens)
        self.current: Pass | None = None
        """The pass under way."""

    def owned_names(self) -> tuple[TopicPartition, ...]:
        """Return everything owned under its topics' names, sorted."""
        owned, names = self._owned_names
        if owned is not self.assignment.owned:
            owned = self.assignment.owned
            names = named(owned, self.names.known)
            self._owned_names = owned, names
        return names

    def topic_ids(self) -> Mapping[str, TopicId]:
        """Return the ids of the owned topics."""
        return {self.names.known[topic_id]: topic_id for topic_id in self.assignment.owned}

    def begin(self, now_ms: int) -> PassResult:
        """Begin a pass, if there is work to do and it may be done now."""
        assignment = self.assignment
        if self.current is not None or self._callbacks.running is not None or self._polls.waits_for_next:
            return PassResult.NOTHING
        names = self.names
        if names.never_answered(names.unknown(assignment.target or ())):
            return PassResult.NOTHING
        revoked, added = assignment.changes(names.known)
        if not revoked and not added:
            if assignment.acknowledged_epoch == assignment.local_epoch:
                return PassResult.NOTHING
            return self._finish(assignment.local_epoch)
        auto_commit = self._config.enable_auto_commit
        # A member that owns nothing has nothing to commit: its application need not poll for its partitions.
        if (revoked or (auto_commit and assignment.owned)) and not self._polls.in_poll:
            return PassResult.NOTHING
        self.current = Pass(assignment.local_epoch, revoked, added)
        self._positions.suspend(named(revoked, names.known))
        self._out.wakes = self._out.wakes or bool(revoked)
        offsets = self._positions.uncommitted(delivered=False) if auto_commit else {}
        if offsets:
            return self._commit(self.current, offsets, now_ms + self._config.max_poll_interval_ms)
        return self._revoke(self.current)

    def _commit(
        self, current: Pass, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline_ms: int
    ) -> PassResult:
        self._commits.make(CommitKind.RELEASE, offsets, deadline_ms, self.topic_ids())
        return PassResult.GOES_ON

    def committed(self) -> PassResult:
        """Go on with the pass that waited for its commit."""
        if self.current is not None and self.current.stage is PassStage.COMMIT:
            return self._revoke(self.current)
        return PassResult.NOTHING

    def _revoke(self, current: Pass) -> PassResult:
        if not current.revoked:
            return self._assign(current)
        current.stage = PassStage.REVOKE
        return self._call(REVOKED, current.revoked, current)

    def _assign(self, current: Pass) -> PassResult:
        """Assign the partitions that are still in the target; those that a newer one left out may have
        another owner already."""
        current.stage = PassStage.ASSIGN
        if current.local_epoch != self.assignment.local_epoch:
            current.added = intersection(current.added, self.assignment.target or NO_PARTITIONS)
        if not current.revoked and not current.added:
            return self._finish(current.local_epoch)
        self.assignment.begin_assigned(current.added)
        return self._call(ASSIGNED, current.added, current)

    def _finish(self, local_epoch: int) -> PassResult:
        self.current = None
        self.assignment.acknowledged_epoch = local_epoch
        self._positions.suspend(())
        return PassResult.FINISHED

    # -- callbacks ---------------------------------------------------------------------------------------

    def _call(
        self, kind: CallbackKind, partitions: Partitions, of_pass: Pass | None, *, releases: bool = False
    ) -> PassResult:
        token, names = next(self._tokens), named(partitions, self.names.known)
        self._callbacks.running = Callback(token, kind, partitions, names, of_pass, releases=releases)
        if kind is ASSIGNED:
            self._positions.announce(names)
        self._out.put(RunCallback(token, kind, names, releases))
        return PassResult.GOES_ON

    def begin_release(self) -> None:
        """Give everything up, with the callback for it if anything is owned."""
        kind = self._callbacks.take_release()
        if kind is not None and self.assignment.owned:
            self._call(kind, self.assignment.owned, None, releases=True)
        else:
            self.released()

    def released(self) -> None:
        """Drop all owned partitions."""
        self.assignment.forget_owned()
        self._positions.clear()

    def callback_ended(self, callback: Callback, *, raised: bool) -> tuple[TopicPartition, ...]:
        """Keep the callback's effect on the owned set. Return the partitions that were released."""
        if callback.releases:
            self.released()
            return callback.names
        if callback.kind is REVOKED:
            self._positions.remove(callback.names)
            if raised:
                self.assignment.revoked_raised(callback.partitions)
                return ()
            self.assignment.end_revoked(callback.partitions)
            return callback.names
        if raised:
            self._positions.announce(())
        else:
            self.assignment.end_assigned(callback.partitions)
            self._positions.add(callback.names)
            self._out.wakes = True
        return ()

    def go_on(self, callback: Callback, *, raised: bool) -> PassResult:
        """Go on with the callback's pass, if that still counts. If it raised, the next poll retries."""
        current = self.current
        if current is None or current is not callback.of_pass:
            return PassResult.NOTHING
        if raised:
            self.current = None
            self._polls.waits_for_next = True
            return PassResult.NOTHING
        if callback.kind is REVOKED:
            return self._assign(current)
        return self._finish(current.local_epoch)
