"""Access control lists: DescribeAcls, CreateAcls, DeleteAcls (KIP-140), without their wire form.

There are none: whoever is in may do everything.
"""

from __future__ import annotations

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode


class AclsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for rights, or to give or take some; in so many parts, which are answered one by one."""

    parts: int = 1


class AclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The same answer to each part."""

    parts: int
    error_code: ErrorCode
    error_message: str | None = None
