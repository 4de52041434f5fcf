"""Logins and access control: SaslHandshake (17), DescribeAcls (29), CreateAcls (30), DeleteAcls (31),
SaslAuthenticate (36).

SaslAuthenticate: 1 brings the session's lifetime. There are no access control lists: of a request about them
only the number of parts is kept, after a check that each type, operation and permission is known.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.layout import Layout
from fencepost.coordinator.protocol import acls, sasl
from fencepost.coordinator.protocol.errors import ErrorCode

_SIZE = struct.Struct(">i")
_UNKNOWN = 0
_FILTERED = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
_GIVEN = ("resource_type", "resource_pattern_type", "operation", "permission_type")

HANDSHAKE_REQUEST = Layout(
    sasl.SaslHandshakeRequest,
    read=lambda values, context: sasl.SaslHandshakeRequest(
        mechanism=values["mechanism"], tokens_are_bare=context.api_version == 0
    ),
)
HANDSHAKE_RESPONSE = Layout(sasl.SaslHandshakeResponse)
AUTHENTICATE_REQUEST = Layout(sasl.SaslAuthenticateRequest, {"token": "auth_bytes"})
AUTHENTICATE_RESPONSE = Layout(
    sasl.SaslAuthenticateResponse, {"token": "auth_bytes", "session_lifetime_ms": "session_lifetime"}
)


def bare_token(token: bytes) -> bytes:
    """Return a token as it is sent after a handshake of version 0: its length, and nothing else before it."""
    return _SIZE.pack(len(token)) + token


def _check(part: dict[str, Any], names: tuple[str, ...]) -> None:
    unknown = [name for name in names if part[name] == _UNKNOWN]
    if unknown:
        raise MalformedFrame(f"unknown {', '.join(unknown)}")


def _described(values: dict[str, Any], _: Any) -> acls.AclsRequest:
    _check(values, _FILTERED)
    return acls.AclsRequest()


def _parts(parts: str, names: tuple[str, ...]) -> Layout:
    def read(values: dict[str, Any], _: Any) -> acls.AclsRequest:
        for part in values[parts]:
            _check(part, names)
        return acls.AclsRequest(parts=len(values[parts]))

    return Layout(acls.AclsRequest, fields={parts: Layout(dict, read=lambda values, _: values)}, read=read)


def _results(results: str) -> Layout:
    """Return the layout of a response with the same result for each part."""
    return Layout(
        acls.AclsResponse,
        fields={results: Layout(acls.AclsResponse, absent={"parts": 1})},
        write={results: lambda reply, _: (reply,) * reply.parts},
        read=lambda values, _: _combined(values[results]),
    )


def _combined(results: tuple[acls.AclsResponse, ...]) -> acls.AclsResponse:
    if not results:
        return acls.AclsResponse(parts=0, error_code=ErrorCode.NONE)
    return msgspec.structs.replace(results[0], parts=len(results))


DESCRIBE_ACLS_REQUEST = Layout(acls.AclsRequest, read=_described)
DESCRIBE_ACLS_RESPONSE = Layout(acls.AclsResponse, absent={"parts": 1})
CREATE_ACLS_REQUEST = _parts("creations", _GIVEN)
CREATE_ACLS_RESPONSE = _results("results")
DELETE_ACLS_REQUEST = _parts("filters", _FILTERED)
DELETE_ACLS_RESPONSE = _results("filter_results")
