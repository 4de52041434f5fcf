"""From what a member owns to what it should own.

One pass at a time: commit what was processed, on_revoked, on_assigned, acknowledge. A target that
arrives during a pass is taken up by the next one. A pass is abandoned when the member is fenced, leaves
or fails; the callback that runs then is awaited, and only what it did to the owned set is kept.
"""

from __future__ import annotations

import enum
from collections.abc import Container

from fencepost.coordinator.protocol.ids import NO_PARTITIONS, Partitions, TopicId, TopicPartition
from fencepost.member.base.actions import CallbackKind
from fencepost.member.consumer.assignment import canonical, difference, intersection, only_topics, union

NO_LOCAL_EPOCH = -1


class PassStage(enum.Enum):
    """How far a pass has come."""

    COMMIT = "commit"
    REVOKE = "revoke"
    ASSIGN = "assign"


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
        """Everything is given up with it: when it ends, nothing is owned, even if it raises."""


class Assignment:
    """What the member owns, what it should own, and what it has acknowledged.

    `owned` holds each partition from the begin of its on_assigned until its on_revoked or on_lost has
    ended: as long as that the application may be busy with it, so as long as that the coordinator is
    told that it is owned. Each replaced target gets the next local epoch, and each local epoch one
    acknowledgement, also where the set is the same as before (KAFKA-16185).
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
        """What a heartbeat lists: all that is owned, and all that the target may still bring.

        The coordinator takes a partition that is not listed for released, and may give it away. A member
        that is told so by an answer which gets lost would take it all the same.
        """
        return self.owned if self.target is None else union(self.owned, self.target)

    def forget_target(self) -> None:
        """The member joins again, or is out."""
        self.target = None
        self.acknowledged_epoch = self.local_epoch

    def forget_owned(self) -> None:
        """Everything was given up."""
        self.owned = self.unconfirmed = NO_PARTITIONS

    def replace_target(self, received: Partitions) -> bool:
        """Take a target over. Whether it differs from the one before."""
        if received == self.target or (received := canonical(received)) == self.target:
            return False
        self.target = received
        self.local_epoch = self._next_local_epoch
        self._next_local_epoch += 1
        return True

    @property
    def reconciled(self) -> bool:
        """Whether the target is owned and acknowledged."""
        return (
            self.owned == self.target and not self.unconfirmed and self.acknowledged_epoch == self.local_epoch
        )

    @property
    def target_is_owned(self) -> bool:
        """Whether there is nothing to revoke and nothing to assign."""
        return self.owned == self.target and not self.unconfirmed

    def changes(self, known: Container[TopicId]) -> tuple[Partitions, Partitions]:
        """What to revoke and what to assign, for the part of the target whose topics are known by name."""
        target = only_topics(self.target or NO_PARTITIONS, known)
        revoked = difference(self.owned, target)
        added = union(difference(target, self.owned), intersection(self.unconfirmed, target))
        return revoked, added

    def begin_assigned(self, added: Partitions) -> None:
        """on_assigned is about to run."""
        self.owned = union(self.owned, added)
        self.unconfirmed = union(self.unconfirmed, added)

    def end_assigned(self, added: Partitions) -> None:
        """on_assigned ended well."""
        self.unconfirmed = difference(self.unconfirmed, added)

    def end_revoked(self, revoked: Partitions) -> None:
        """on_revoked ended well."""
        self.owned = difference(self.owned, revoked)
        self.unconfirmed = difference(self.unconfirmed, revoked)

    def revoked_raised(self, revoked: Partitions) -> None:
        """on_revoked raised: still owned, but if they are to stay, on_assigned has to run again."""
        self.unconfirmed = union(self.unconfirmed, revoked)
