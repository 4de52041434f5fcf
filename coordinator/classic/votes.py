"""Which protocol a group uses: each member votes for the one it likes best of those that all offer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
    return min((name for name, count in votes.items() if count == most), key=lambda n: _bucket(n, len(votes)))


def _bucket(name: str, names: int) -> int:
    """The place of a text in a java.util.HashMap with so many keys, which decides its order."""
    size = 16
    while names > size * 3 // 4:
        size *= 2
    units = memoryview(name.encode("utf-16-le", "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = (value * 31 + unit) & 0xFFFFFFFF
    return (value ^ value >> 16) & (size - 1)
