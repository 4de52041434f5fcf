"""The mechanisms that there are, by their names."""

from __future__ import annotations

from fencepost.coordinator.sasl.credentials import SCRAM_HASHES, Credentials
from fencepost.coordinator.sasl.exchange import SaslExchange
from fencepost.coordinator.sasl.plain import PlainExchange
from fencepost.coordinator.sasl.scram import ScramExchange

MECHANISMS = ("PLAIN", *SCRAM_HASHES)


def exchange_of(mechanism: str, credentials: Credentials, server_nonce: str) -> SaslExchange:
    """A fresh exchange of one of `MECHANISMS`; the nonce is random text without commas."""
    if mechanism == "PLAIN":
        return PlainExchange(credentials)
    return ScramExchange(credentials, SCRAM_HASHES[mechanism], server_nonce)
