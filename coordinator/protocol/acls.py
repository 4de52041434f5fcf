"""Access control lists: DescribeAcls, CreateAcls, DeleteAcls (KIP-140), without their wire form.

None exist: every client that is logged in may do everything.
"""

from __future__ import annotations

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode


class AclsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to describe, create or delete rights, in several parts with one result each."""

    parts: int = 1


class AclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The same result for each part."""

    parts: int
    error_code: ErrorCode
    error_message: str | None = None
