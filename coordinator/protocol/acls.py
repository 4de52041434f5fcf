"""Access control lists: DescribeAcls, CreateAcls, DeleteAcls (KIP-140, KIP-290), without their wire form."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode


class AclResourceType(enum.IntEnum):
    """The kinds of resources that ACLs are about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """The resources that a name stands for. ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    """All ACLs that apply to a resource of that name."""
    LITERAL = 3
    PREFIXED = 4


class AclOperation(enum.IntEnum):
    """The operations that ACLs allow or deny."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(enum.IntEnum):
    """The effect of an ACL."""

    ANY = 1
    DENY = 2
    ALLOW = 3


ENUMS: Final[Mapping[str, type[enum.IntEnum]]] = {
    "resource_type": AclResourceType,
    "pattern_type": PatternType,
    "operation": AclOperation,
    "permission_type": AclPermissionType,
}
"""The types of the fields of bindings and filters that are numbers."""
WILDCARD: Final = "*"
"""The literal name that stands for all resources, and the host for all hosts."""
CLUSTER_NAME: Final = "kafka-cluster"
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of clients that need no login."""


class AclBinding(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One ACL. Numbers are those of the wire: a client may send one that Kafka does not know."""

    resource_type: int
    resource_name: str
    pattern_type: int = PatternType.LITERAL
    principal: str
    host: str = WILDCARD
    operation: int
    permission_type: int = AclPermissionType.ALLOW


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The ACLs that a request is about; None and ANY stand for all."""

    resource_type: int = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission_type: int = AclPermissionType.ANY


class DescribeAclsRequest(AclFilter, frozen=True, kw_only=True):
    """Asks for the ACLs of a filter."""


class DescribeAclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The ACLs that were found."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    acls: tuple[AclBinding, ...] = ()


class CreateAclsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to create ACLs."""

    creations: tuple[AclBinding, ...]


class CreatedAcl(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one ACL of CreateAcls."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class CreateAclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each ACL of the request, in its order."""

    results: tuple[CreatedAcl, ...]


class DeleteAclsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to delete the ACLs of some filters."""

    filters: tuple[AclFilter, ...]


class DeletedAcls(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one filter of DeleteAcls."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    acls: tuple[AclBinding, ...] = ()


class DeleteAclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each filter of the request, in its order."""

    filter_results: tuple[DeletedAcls, ...]
