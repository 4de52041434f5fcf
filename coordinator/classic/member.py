"""One member of a classic group, in its coordinator's memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fencepost.coordinator.protocol.classic import JoinGroupProtocol, JoinGroupRequest, Token
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import GroupMetadataMember


class ClassicGroupMember:
    """A member of a classic group: what it sent about itself, its assignment, and its parked requests.

    After a load, the only protocol known of it is the one that the group had chosen.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
    )

    def __init__(
        self,
        member_id: MemberId,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[JoinGroupProtocol, ...],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        """True while it waits in its first join: only the JoinGroup response can give it its id."""
        self.join: Token | None = None
        """The JoinGroup request of it that waits."""
        self.sync: Token | None = None
        """The SyncGroup request of it that waits."""

    @classmethod
    def joining(cls, member_id: MemberId, request: JoinGroupRequest) -> ClassicGroupMember:
        """Return the member that a request makes."""
        return cls(
            member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
        )

    @classmethod
    def loaded(cls, record: GroupMetadataMember, protocol: str | None) -> ClassicGroupMember:
        """Return the member that a record holds."""
        return cls(
            record.member_id,
            instance_id=record.instance_id,
            client_id=record.client_id,
            client_host=record.client_host,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            session_timeout_ms=record.session_timeout_ms,
            protocols=(JoinGroupProtocol(protocol or "", record.subscription),),
            assignment=record.assignment,
        )

    def record(self, protocol: str | None, assignment: bytes) -> GroupMetadataMember:
        """Return the member for a GroupMetadata record, with the assignment that it will have."""
        return GroupMetadataMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for that protocol; empty if it does not offer the protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def says_the_same(self, protocols: Sequence[JoinGroupProtocol]) -> bool:
        """Return true if it offers these protocols with the same metadata, in the same order."""
        return self.protocols == tuple(protocols)

    def vote(self, candidates: Collection[str]) -> str:
        """Return the candidate that the member prefers.

        :raises ValueError: if it offers none of them.
        """
        for each in self.protocols:
            if each.name in candidates:
                return each.name
        raise ValueError(f"{self.member_id} offers none of {', '.join(sorted(candidates))}")
