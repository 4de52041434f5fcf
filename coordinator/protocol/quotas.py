"""Quotas of clients: DescribeClientQuotas and AlterClientQuotas (KIP-546), without their wire form."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types of a quota's entity with their names: `user`, `client-id` or `ip`; None stands for the default."""


class QuotaComponent(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of DescribeClientQuotas: the entity has this type, and the name if one is wanted."""

    entity_type: str
    match_type: int
    """0 for the name in `match`, 1 for the default, 2 for any name."""
    match: str | None = None


class DescribeClientQuotasRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the quotas of entities; with `strict`, only of those that have no other types."""

    components: tuple[QuotaComponent, ...] = ()
    strict: bool = False


class DescribedQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of one entity, by their keys."""

    entity: QuotaEntity
    values: tuple[tuple[str, float], ...]


class DescribeClientQuotasResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas that were found; None if the request was wrong."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    entries: tuple[DescribedQuota, ...] | None = None


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    """New values of one entity's quotas: key, value, and whether it is removed."""

    entity: QuotaEntity
    ops: tuple[tuple[str, float, bool], ...]


class AlterClientQuotasRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to change quotas; with `validate_only`, only whether that would work."""

    entries: tuple[QuotaChange, ...]
    validate_only: bool = False


class AlteredQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one entity."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    entity: QuotaEntity


class AlterClientQuotasResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each entity of the request."""

    entries: tuple[AlteredQuota, ...]
