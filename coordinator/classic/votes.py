"""Which protocol a group uses: each member votes for the one it likes best of those that all offer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fencepost.coordinator.assign.java_order import hash_map_order
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.protocol.classic import JoinGroupProtocol

Offers = Mapping[str, int]
"""How many members offer each protocol."""


def offers_a_candidate(protocols: Collection[JoinGroupProtocol], offers: Offers, members: int) -> bool:
    """Whether every member offers one of these protocols; without members any will do."""
    return any(offers.get(protocol.name, 0) == members for protocol in protocols)


def select_protocol(members: Collection[ClassicGroupMember], offers: Offers) -> str:
    """The protocol with the most votes among those that all members offer.

    Of those with as many, the one that a Java hash map has first.

    :raises ValueError: if the members have none in common.
    """
    common = {name for name, count in offers.items() if count == len(members)}
    votes: dict[str, int] = {}
    for member in members:
        name = member.vote(common)
        votes[name] = votes.get(name, 0) + 1
    most = max(votes.values())
    return next(name for name in hash_map_order(votes) if votes[name] == most)
