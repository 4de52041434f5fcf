"""Logins and access control: SaslHandshake (17), DescribeAcls (29), CreateAcls (30), DeleteAcls (31),
SaslAuthenticate (36), DescribeClientQuotas (48), AlterClientQuotas (49), DescribeUserScramCredentials (50),
AlterUserScramCredentials (51).

SaslAuthenticate: 1 brings the session's lifetime.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, NamedTuple

from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.layout import Layout, only, row
from fencepost.coordinator.protocol import acls, quotas, sasl

_SIZE = struct.Struct(">i")
_UNKNOWN = 0

SASL_HANDSHAKE_REQUEST = Layout(
    sasl.SaslHandshakeRequest,
    read=lambda values, context: sasl.SaslHandshakeRequest(
        mechanism=values["mechanism"], tokens_are_bare=context.api_version == 0
    ),
)
SASL_HANDSHAKE_RESPONSE = Layout(sasl.SaslHandshakeResponse)
SASL_AUTHENTICATE_REQUEST = Layout(sasl.SaslAuthenticateRequest, {"token": "auth_bytes"})
SASL_AUTHENTICATE_RESPONSE = Layout(
    sasl.SaslAuthenticateResponse, {"token": "auth_bytes", "session_lifetime_ms": "session_lifetime"}
)


def bare_token(token: bytes) -> bytes:
    """Return a token as it is sent after a handshake of version 0: its length, and nothing else before it."""
    return _SIZE.pack(len(token)) + token


def _known(kind: type[Any]) -> Any:
    """Return a function that makes an ACL or a filter, and refuses one of an unknown kind, as Kafka does."""

    def read(values: dict[str, Any], _: Any) -> Any:
        if unknown := [name for name in acls.ENUMS if values[name] == _UNKNOWN]:
            raise MalformedFrame(f"unknown {', '.join(unknown)}")
        return kind(**values)

    return read


_FILTER_NAMES = {
    **{name: f"{name}_filter" for name in ("resource_type", "resource_name", "principal", "host")},
    "pattern_type": "pattern_type_filter",
}


class _Resource(NamedTuple):
    """A resource pattern with its ACLs."""

    resource_type: int
    resource_name: str
    pattern_type: int
    acls: tuple[Any, ...]


def _by_resource(reply: acls.DescribeAclsResponse, _: int) -> list[_Resource]:
    def pattern(acl: acls.AclBinding) -> tuple[int, str, int]:
        return acl.resource_type, acl.resource_name, acl.pattern_type

    groups = itertools.groupby(sorted(reply.acls, key=pattern), pattern)
    return [_Resource(*key, tuple(found)) for key, found in groups]


def _described(values: dict[str, Any], _: Any) -> acls.DescribeAclsResponse:
    found = tuple(
        acls.AclBinding(
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            pattern_type=each.pattern_type,
            **acl,
        )
        for each in values["resources"]
        for acl in each.acls
    )
    return acls.DescribeAclsResponse(
        error_code=values["error_code"], error_message=values["error_message"], acls=found
    )


DESCRIBE_ACLS_REQUEST = Layout(acls.DescribeAclsRequest, _FILTER_NAMES, read=_known(acls.DescribeAclsRequest))
DESCRIBE_ACLS_RESPONSE = Layout(
    acls.DescribeAclsResponse,
    fields={
        "resources": Layout(
            _Resource,
            fields={"acls": Layout(acls.AclBinding, read=lambda values, _: values)},
        )
    },
    write={"resources": _by_resource},
    read=_described,
)
CREATE_ACLS_REQUEST = Layout(
    acls.CreateAclsRequest,
    fields={
        "creations": Layout(
            acls.AclBinding, {"pattern_type": "resource_pattern_type"}, read=_known(acls.AclBinding)
        )
    },
)
CREATE_ACLS_RESPONSE = Layout(acls.CreateAclsResponse, fields={"results": Layout(acls.CreatedAcl)})
DELETE_ACLS_REQUEST = Layout(
    acls.DeleteAclsRequest,
    fields={"filters": Layout(acls.AclFilter, _FILTER_NAMES, read=_known(acls.AclFilter))},
)
DELETE_ACLS_RESPONSE = Layout(
    acls.DeleteAclsResponse,
    fields={
        "filter_results": Layout(
            acls.DeletedAcls, {"acls": "matching_acls"}, fields={"acls": Layout(acls.AclBinding)}
        )
    },
)

DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST = Layout(
    sasl.DescribeUserScramCredentialsRequest, fields={"users": only("name")}
)
DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE = Layout(
    sasl.DescribeUserScramCredentialsResponse,
    fields={
        "results": Layout(sasl.DescribedUser, fields={"credential_infos": row("mechanism", "iterations")})
    },
)
ALTER_USER_SCRAM_CREDENTIALS_REQUEST = Layout(
    sasl.AlterUserScramCredentialsRequest,
    fields={"deletions": Layout(sasl.ScramDeletion), "upsertions": Layout(sasl.ScramUpsertion)},
)
ALTER_USER_SCRAM_CREDENTIALS_RESPONSE = Layout(
    sasl.AlterUserScramCredentialsResponse, fields={"results": Layout(sasl.AlteredUser)}
)

_ENTITY = row("entity_type", "entity_name")
DESCRIBE_CLIENT_QUOTAS_REQUEST = Layout(
    quotas.DescribeClientQuotasRequest, fields={"components": Layout(quotas.QuotaComponent)}
)
DESCRIBE_CLIENT_QUOTAS_RESPONSE = Layout(
    quotas.DescribeClientQuotasResponse,
    fields={
        "entries": Layout(quotas.DescribedQuota, fields={"entity": _ENTITY, "values": row("key", "value")})
    },
)
ALTER_CLIENT_QUOTAS_REQUEST = Layout(
    quotas.AlterClientQuotasRequest,
    fields={
        "entries": Layout(
            quotas.QuotaChange, fields={"entity": _ENTITY, "ops": row("key", "value", "remove")}
        )
    },
)
ALTER_CLIENT_QUOTAS_RESPONSE = Layout(
    quotas.AlterClientQuotasResponse,
    fields={"entries": Layout(quotas.AlteredQuota, fields={"entity": _ENTITY})},
)
