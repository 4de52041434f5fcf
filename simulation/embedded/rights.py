"""Rights and users as a test sets them: access control lists, passwords and quotas."""

from __future__ import annotations

import contextlib
import operator as operators
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

import msgspec

from fencepost.coordinator.authorizer import Authorizer
from fencepost.coordinator.protocol import acls
from fencepost.coordinator.protocol.acls import WILDCARD, AclBinding, AclFilter
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.quotas import QuotaChange
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.embedded.scoped import ScopedControls
from fencepost.simulation.embedded.settings import name_of, refused_by_kafka, users_of
from fencepost.simulation.embedded.thread import on_loop

if TYPE_CHECKING:
    from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint  # noqa: F401  # in a text

T = TypeVar("T")

AclResourceType: TypeAlias = Literal[
    "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"
]
AclOperation: TypeAlias = Literal[
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
    "CREATE_TOKENS",
    "DESCRIBE_TOKENS",
    "TWO_PHASE_COMMIT",
]
PatternType: TypeAlias = Literal["LITERAL", "PREFIXED"]
AclPermissionType: TypeAlias = Literal["ALLOW", "DENY"]
QuotaKey: TypeAlias = Literal["producer_byte_rate", "consumer_byte_rate", "request_percentage"]
_WHOLE_CLUSTER: Final = acls.AclResourceType.CLUSTER


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """An access control list entry, in Kafka's words."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission_type: AclPermissionType


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of a user, a client id, both, or an address; `<default>` stands for all others."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    values: dict[str, float]


class RightsControls(ScopedControls["EmbeddedEndpoint"]):
    """The rights of clients. In a scope, ACLs are about resources of the scope."""

    @on_loop
    def add_acl(
        self,
        resource_type: AclResourceType,
        resource_name: str,
        principal: str,
        operation: AclOperation,
        *,
        permission_type: AclPermissionType = "ALLOW",
        pattern_type: PatternType = "LITERAL",
        host: str = WILDCARD,
    ) -> Acl:
        """Let clients of a principal do something, or deny it, and return the ACL.

        `principal` is `User:NAME`, `User:ANONYMOUS` for clients that need no login, or `User:*` for all. A
        resource without an ACL stays open to all clients, unless `allow.everyone.if.no.acl.found` is false.
        The cluster's name is `kafka-cluster`, and `*` stands for all names. This starts an authorizer if
        there is none.

        :raises FencepostError: for an unknown type or operation, or an ACL that Kafka would refuse.
        """
        acl = AclBinding(
            resource_type=_number("resource_type", resource_type),
            resource_name=name_of("resource_name", resource_name, "a name"),
            pattern_type=_number("pattern_type", pattern_type),
            principal=_principal(principal),
            host=name_of("host", host, "an address, or * for all"),
            operation=_number("operation", operation),
            permission_type=_number("permission_type", permission_type),
        )
        self._check_scope(acl)
        self._change("add_acl", acl, lambda authorizer: authorizer.create(acl))
        return _shown(acl)

    @on_loop
    def acls(self) -> list[Acl]:
        """Return the ACLs, sorted."""
        return list(map(_shown, self._own_acls()))

    @on_loop
    def remove_acls(
        self,
        resource_type: AclResourceType | None = None,
        resource_name: str | None = None,
        principal: str | None = None,
        operation: AclOperation | None = None,
    ) -> list[Acl]:
        """Remove the ACLs that have all these values, and return them. None stands for all values.

        :raises FencepostError: for an unknown type or operation, or if no ACL has these values.
        """
        kind = None if resource_type is None else _number("resource_type", resource_type)
        wanted = AclFilter(
            resource_type=acls.AclResourceType.ANY if kind is None else kind,
            resource_name=resource_name,
            principal=principal,
            operation=acls.AclOperation.ANY if operation is None else _number("operation", operation),
        )
        authorizer = self.endpoint.brokers.rights.authorizer
        own = set(self._own_acls())
        found = [] if authorizer is None else [acl for acl in authorizer.find(wanted) if acl in own]
        if not found:
            given = ", ".join(filter(None, (resource_type, resource_name, principal, operation)))
            raise FencepostError(f"no ACL has {given or 'any value'}: nothing is removed")
        self._remove_acls(found)
        return list(map(_shown, found))

    @on_loop
    def quotas(self) -> list[Quota]:
        """Return the quotas of all clients."""
        found = self.endpoint.brokers.rights.quotas.find((), strict=False)
        return [
            Quota(
                **{kind.replace("-", "_"): name or "<default>" for kind, name in each.entity},
                values=dict(each.values),
            )
            for each in found
        ]

    @on_loop
    def set_quota(
        self,
        *,
        user: str | None = None,
        client_id: str | None = None,
        producer_byte_rate: float | None = None,
        consumer_byte_rate: float | None = None,
        request_percentage: float | None = None,
    ) -> None:
        """Set quotas of a user, a client id, or both. Quotas that are not given stay; `remove_quota` removes
        them.

        Responses above a quota say how long the client is throttled, and its connection is not read for the
        time (KIP-219). `<default>` stands for all users or client ids without a quota of their own. Clients
        that need no login are the user `ANONYMOUS`. Bytes per second are counted over eleven seconds of
        `clock`. As in Kafka, a batch of more bytes than twelve seconds of its quota never reaches a consumer,
        without an error.

        :raises FencepostError: without a user and a client id, without a quota, or for a value that Kafka
            would refuse.
        """
        self._for_all("set_quota")
        entity = _quota_entity("set_quota", user, client_id)
        values = {
            "producer_byte_rate": producer_byte_rate,
            "consumer_byte_rate": consumer_byte_rate,
            "request_percentage": request_percentage,
        }
        ops = tuple((key, _rate(key, value), False) for key, value in values.items() if value is not None)
        if not ops:
            raise FencepostError(
                f"set_quota: needs one of {', '.join(values)}, above 0; remove_quota removes quotas"
            )
        with refused_by_kafka():
            self._alter_quotas(QuotaChange(entity=entity, ops=ops))
        shown = (f"{key}={value:g}" for key, value, _ in ops)
        self._called("set_quota", " ".join((*map(str, entity), *shown)))

    @on_loop
    def remove_quota(
        self, *, user: str | None = None, client_id: str | None = None, key: QuotaKey | None = None
    ) -> None:
        """Remove a quota that `set_quota` set for the same user, client id, or both; without `key`, all of
        them.

        :raises FencepostError: without a user and a client id, or if they have no such quota.
        """
        self._for_all("remove_quota")
        entity = _quota_entity("remove_quota", user, client_id)
        found = self.endpoint.brokers.rights.quotas.find((), strict=False)
        own = next((dict(each.values) for each in found if each.entity == tuple(sorted(entity))), {})
        if key not in (None, *own) or not own:
            raise FencepostError(
                f"remove_quota: {_named(entity)} has {'no quota' if key is None else f'no quota {key!r}'}; "
                f"it has {', '.join(own) or 'none'}"
            )
        ops = tuple((each, 0.0, True) for each in own if key in (None, each))
        self._alter_quotas(QuotaChange(entity=entity, ops=ops))
        self._called("remove_quota", " ".join((*map(str, entity), *(each for each, *_ in ops))))

    def _alter_quotas(self, change: QuotaChange) -> None:
        self.endpoint.brokers.rights.quotas.alter(change)
        self.endpoint.brokers.rights.changed()

    @on_loop
    def users(self) -> list[str]:
        """Return the names of the users that may log in, sorted."""
        return sorted(self.endpoint.brokers.rights.credentials.users)

    @on_loop
    def add_user(self, name: str, password: str) -> None:
        """Add a user for PLAIN and SCRAM, or change the password. Open connections stay.

        :raises FencepostError: for an invalid name or password.
        """
        self._for_all("add_user")
        self.endpoint.brokers.rights.credentials.add(*next(iter(users_of({name: password}).items())))
        self._called("add_user", name)

    @on_loop
    def remove_user(self, name: str) -> None:
        """Remove a user. Open connections stay.

        :raises FencepostError: if there is no such user.
        """
        self._for_all("remove_user")
        known = self.endpoint.brokers.rights.credentials
        if name not in known.users:
            raise FencepostError(
                f"there is no user {name!r}; there are {', '.join(sorted(known.users)) or 'none'}"
            )
        known.remove(name)
        self._called("remove_user", name)

    def _remove_acls(self, found: list[AclBinding]) -> None:
        for acl in found:
            only = AclFilter(**msgspec.structs.asdict(acl))
            self._change("remove_acls", acl, operators.methodcaller("delete", only))

    def _own_acls(self) -> list[AclBinding]:
        authorizer = self.endpoint.brokers.rights.authorizer
        found = [] if authorizer is None else authorizer.find(AclFilter())
        return [acl for acl in found if acl.resource_name.startswith(self.prefix)]

    def _check_scope(self, acl: AclBinding) -> None:
        if acl.resource_type == _WHOLE_CLUSTER and self.prefix:
            self._for_all("add_acl about the cluster")
        if self.prefix:
            self._own("resource_name", acl.resource_name)

    def _change(self, method: str, acl: AclBinding, change: Callable[[Authorizer], object]) -> None:
        rights = self.endpoint.brokers.rights
        if rights.authorizer is None:
            rights.authorizer = Authorizer()
        with refused_by_kafka():
            change(rights.authorizer)
        rights.changed()
        self._called(method, " ".join(map(str, msgspec.structs.astuple(_shown(acl)))))


def _number(field: str, name: str) -> int:
    """Return the number of a name in Kafka's protocol.

    :raises FencepostError: if Kafka has no such name.
    """
    kind = acls.ENUMS[field]
    names = [each.name for each in kind if each.name not in ("ANY", "MATCH")]
    if not isinstance(name, str) or name.upper() not in names:
        hint = suggestion(str(name), names, f"expected one of {', '.join(names)}")
        raise FencepostError(f"{field} {name!r} is unknown; {hint}")
    return kind[name.upper()]


def _quota_entity(method: str, user: str | None, client_id: str | None) -> tuple[tuple[str, str | None], ...]:
    """Return the user, the client id or both that a quota is about, in Kafka's words.

    :raises FencepostError: if there is neither, or a name is blank.
    """
    given = {"user": user, "client-id": client_id}
    entity = tuple(
        (kind, None if name == "<default>" else name_of(kind, name, "a name, or <default>"))
        for kind, name in given.items()
        if name is not None
    )
    if not entity:
        raise FencepostError(f"{method}: needs a user or a client_id; <default> stands for all of them")
    return entity


def _named(entity: tuple[tuple[str, str | None], ...]) -> str:
    return " with ".join(f"{kind} {name or '<default>'}" for kind, name in entity)


def _rate(key: str, value: object) -> float:
    """Return a quota as a number; Kafka's rules decide which one may be.

    :raises FencepostError: if it is no number.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    raise FencepostError(f"{key}={value!r}: expected a number above 0")


def _principal(principal: str) -> str:
    if not name_of("principal", principal, "User:NAME").partition(":")[2]:
        raise FencepostError(f"principal {principal!r}: expected User:NAME, or User:* for all")
    return principal


def _shown(acl: AclBinding) -> Acl:
    names = {field: kind(getattr(acl, field)).name for field, kind in acls.ENUMS.items()}
    return Acl(**{**msgspec.structs.asdict(acl), **names})
