"""The rules of access control lists: which ACLs apply, what they allow, and what a filter finds.

They follow Kafka's `StandardAuthorizer`, `AclControlManager` and `ResourcePatternFilter`. Nothing here is
sent or kept beyond the object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fencepost.coordinator.protocol.acls import (
    CLUSTER_NAME,
    ENUMS,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError

_O = AclOperation
IMPLIED_BY: Final[Mapping[AclOperation, frozenset[AclOperation]]] = {
    _O.DESCRIBE: frozenset({_O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALTER_CONFIGS}),
}
"""Operations that an ACL for another operation allows, too; it does not deny them."""
OPERATIONS: Final[Mapping[AclResourceType, tuple[AclOperation, ...]]] = {
    AclResourceType.TOPIC: (
        *(_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE),
        *(_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ),
    AclResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    AclResourceType.CLUSTER: (
        *(_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION),
        *(_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE),
    ),
}
"""The operations that a response reports of a resource (KIP-430)."""
DENIED: Final[Mapping[AclResourceType, ErrorCode]] = {
    AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    AclResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error for a client that may not do something with a resource."""


class Authorizer:
    """The ACLs of a cluster. Super users may do everything.

    A resource without an ACL is open to all clients if `allow_everyone_if_no_acl_found`, else to none.
    """

    def __init__(
        self, super_users: Iterable[str] = (), *, allow_everyone_if_no_acl_found: bool = True
    ) -> None:
        self._super_users = frozenset(super_users)
        self._is_open = allow_everyone_if_no_acl_found
        self._acls: dict[AclResourceType | int, _AclsOfKind] = {}

    @property
    def is_idle(self) -> bool:
        """True if every client may do everything."""
        return self._is_open and not any(each.all for each in self._acls.values())

    # -- changes and queries ----------------------------------------------------------------------------

    def create(self, acl: AclBinding) -> None:
        """Add an ACL; one that exists is unchanged.

        :raises ProtocolError: INVALID_REQUEST for one that a filter or an unknown kind stands for.
        """
        check_binding(acl)
        self._acls.setdefault(acl.resource_type, _AclsOfKind()).add(acl)

    def find(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the ACLs that a filter matches, sorted."""
        return sorted(acl for acls in self._acls.values() for acl in acls.all if matches(wanted, acl))

    def delete(self, wanted: AclFilter) -> list[AclBinding]:
        """Delete the ACLs that a filter matches, and return them.

        :raises ProtocolError: INVALID_REQUEST for an unknown kind.
        """
        for field, known in ENUMS.items():
            if getattr(wanted, field) not in list(known):
                what = "patternFilter" if field in ("resource_type", "pattern_type") else "entryFilter"
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown {what}.")
        found = self.find(wanted)
        for acl in found:
            self._acls[acl.resource_type].remove(acl)
        return found

    # -- decisions --------------------------------------------------------------------------------------

    def authorize(
        self, principal: str, host: str, operation: AclOperation, kind: AclResourceType, name: str
    ) -> bool:
        """Return true if no ACL denies the operation, and one allows it or the resource has no ACL."""
        if principal in self._super_users:
            return True
        acls = self._of(principal, host, kind, name)
        return self._is_open if acls is None else _allow(acls, operation)

    def _of(self, principal: str, host: str, kind: AclResourceType, name: str) -> list[AclBinding] | None:
        """Return the ACLs about a resource that are of a client; None if it has none of any client."""
        acls = self._acls.get(kind)
        return None if acls is None else acls.of(principal, host, name)

    def authorize_any(
        self, principal: str, host: str, operation: AclOperation, kind: AclResourceType
    ) -> bool:
        """Return true if there may be a resource with which a client may do that (KIP-679)."""
        if self.authorize(principal, host, operation, kind, "hardcode"):
            return True
        own = [
            acl
            for acl in (self._acls[kind].all if kind in self._acls else ())
            if acl.operation in (operation, AclOperation.ALL) and _is_of(acl, principal, host)
        ]
        denied = [acl for acl in own if acl.permission_type == AclPermissionType.DENY]
        if any(acl.resource_name == WILDCARD and acl.pattern_type == PatternType.LITERAL for acl in denied):
            return False

        def is_dominated(acl: AclBinding) -> bool:
            prefixed = (each for each in denied if each.pattern_type == PatternType.PREFIXED)
            return any(acl.resource_name.startswith(each.resource_name) for each in prefixed) or any(
                (each.pattern_type, each.resource_name) == (acl.pattern_type, acl.resource_name)
                for each in denied
            )

        return any(acl.permission_type == AclPermissionType.ALLOW and not is_dominated(acl) for acl in own)

    def operations(self, principal: str, host: str, kind: AclResourceType, name: str) -> int:
        """Return the operations that a client may do with a resource, as a bit field (KIP-430)."""
        acls = None if principal in self._super_users else self._of(principal, host, kind, name)
        allows_all = principal in self._super_users or (acls is None and self._is_open)
        return sum(1 << each for each in OPERATIONS[kind] if allows_all or _allow(acls or (), each))


class _AclsOfKind:
    """The ACLs about resources of one kind, by resource and principal: one is found without the others."""

    def __init__(self) -> None:
        self.all: dict[AclBinding, None] = {}
        self._by_pattern: dict[tuple[int, str], dict[str, list[AclBinding]]] = {}
        self._prefixes: Counter[int] = Counter()
        """The lengths of the names that stand for all that begin so."""

    def add(self, acl: AclBinding) -> None:
        """Add an ACL, unless it is there."""
        if acl in self.all:
            return
        self.all[acl] = None
        of_resource = self._by_pattern.setdefault((acl.pattern_type, acl.resource_name), {})
        of_resource.setdefault(acl.principal, []).append(acl)
        if acl.pattern_type == PatternType.PREFIXED:
            self._prefixes[len(acl.resource_name)] += 1

    def remove(self, acl: AclBinding) -> None:
        """Remove an ACL that is there."""
        del self.all[acl]
        pattern = acl.pattern_type, acl.resource_name
        of_resource = self._by_pattern[pattern]
        of_resource[acl.principal].remove(acl)
        if not of_resource[acl.principal]:
            del of_resource[acl.principal]
        if not of_resource:
            del self._by_pattern[pattern]
        if acl.pattern_type == PatternType.PREFIXED:
            self._prefixes[len(acl.resource_name)] -= 1
            self._prefixes += Counter()  # without lengths that no ACL has

    def of(self, principal: str, host: str, name: str) -> list[AclBinding] | None:
        """Return the ACLs of a client on the resource of that name; None if nobody has an ACL on it."""
        patterns = [(PatternType.LITERAL, name), (PatternType.LITERAL, WILDCARD)]
        patterns += [
            (PatternType.PREFIXED, name[:length]) for length in self._prefixes if length <= len(name)
        ]
        about = [found for each in patterns if (found := self._by_pattern.get(each)) is not None]
        if not about:
            return None
        return [
            acl
            for of_resource in about
            for who in (principal, "User:*")
            for acl in of_resource.get(who, ())
            if acl.host in (host, WILDCARD)
        ]


def _allow(acls: Iterable[AclBinding], operation: AclOperation) -> bool:
    """Return true if none of these ACLs denies the operation, and one allows it."""
    is_allowed = False
    for acl in acls:
        allows = acl.permission_type == AclPermissionType.ALLOW
        same = acl.operation in (operation, AclOperation.ALL)
        if same and not allows:
            return False
        is_allowed |= allows and (same or acl.operation in IMPLIED_BY.get(operation, ()))
    return is_allowed


def check_binding(acl: AclBinding) -> None:
    """Refuse an ACL that Kafka would refuse.

    :raises ProtocolError: INVALID_REQUEST, or UNKNOWN_SERVER_ERROR for a kind that only filters have.
    """
    for message in _problems(acl):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)


def _problems(acl: AclBinding) -> Iterator[str]:
    is_cluster = acl.resource_type == AclResourceType.CLUSTER
    if is_cluster and acl.resource_name != CLUSTER_NAME:
        yield f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.resource_name:
        yield "Invalid empty resource name"
    for field, kind in ENUMS.items():
        value = getattr(acl, field)
        if value == kind["ANY"] or (kind is PatternType and value == PatternType.MATCH):
            raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "")  # Kafka sends no message either
        if value not in list(kind):
            first, *rest = field.split("_")
            yield f"Invalid {first}{''.join(map(str.title, rest))} UNKNOWN"


def matches(wanted: AclFilter, acl: AclBinding) -> bool:
    """Return true if a filter matches an ACL, by the rules of `AclBindingFilter`."""
    return (
        wanted.resource_type in (AclResourceType.ANY, acl.resource_type)
        and wanted.operation in (AclOperation.ANY, acl.operation)
        and wanted.permission_type in (AclPermissionType.ANY, acl.permission_type)
        and wanted.principal in (None, acl.principal)
        and wanted.host in (None, acl.host)
        and _matches_name(wanted, acl)
    )


def _matches_name(wanted: AclFilter, acl: AclBinding) -> bool:
    name = wanted.resource_name
    if wanted.pattern_type == PatternType.MATCH:
        return name is None or _is_about(acl, name)
    return wanted.pattern_type in (PatternType.ANY, acl.pattern_type) and name in (None, acl.resource_name)


def _is_about(acl: AclBinding, name: str) -> bool:
    """Return true if an ACL applies to the resource of its kind with that name."""
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)


def _is_of(acl: AclBinding, principal: str, host: str) -> bool:
    return acl.principal in (principal, "User:*") and acl.host in (host, WILDCARD)
