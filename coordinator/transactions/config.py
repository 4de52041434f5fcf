"""Configuration of transactions under Kafka's names, with Kafka 4.3's defaults."""

from __future__ import annotations

import msgspec


class TransactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker's properties say about transactions, in milliseconds."""

    transaction_max_timeout_ms: int = 900_000
    """A producer that asks for more is refused."""
    transactional_id_expiration_ms: int = 604_800_000
    """A transactional id that nobody used for so long is forgotten."""
