"""Rights of clients: which requests, and which parts of them, the authorizer allows.

One row of a table says what an API needs. Parts that are denied get their error, the rest is handled. The
rules follow `KafkaApis` and `ControllerApis`; `coordinator/authorizer.py` has those of the ACLs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from fencepost.coordinator.authorizer import DENIED, Authorizer
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import SecurityConfig
from fencepost.coordinator.protocol import administration, cluster, consumer, logs
from fencepost.coordinator.protocol.acls import CLUSTER_NAME, AclOperation, AclResourceType
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.quotas import ClientQuotas
from fencepost.coordinator.sasl.credentials import Credentials
from fencepost.coordinator.server.quota_apis import QuotaAccount, throttled
from fencepost.coordinator.server.refused import refused
from fencepost.coordinator.server.services import (
    NO_REPLY,
    Asked,
    Handler,
    May,
    Services,
    Unanswered,
)
from fencepost.coordinator.server.turns import Work, in_turns

_A, _O, _R = ApiKey, AclOperation, AclResourceType

CLUSTER: Final[Mapping[int, AclOperation]] = {
    **dict.fromkeys((_A.DESCRIBE_ACLS, _A.DESCRIBE_LOG_DIRS), _O.DESCRIBE),
    **dict.fromkeys((_A.CREATE_ACLS, _A.DELETE_ACLS, _A.ALTER_USER_SCRAM_CREDENTIALS), _O.ALTER),
    **dict.fromkeys((_A.LIST_CONFIG_RESOURCES, _A.DESCRIBE_CLIENT_QUOTAS), _O.DESCRIBE_CONFIGS),
    _A.ALTER_CLIENT_QUOTAS: _O.ALTER_CONFIGS,
    _A.DESCRIBE_USER_SCRAM_CREDENTIALS: _O.DESCRIBE,
}
"""Operations on the cluster that a request needs."""
WRITES_TRANSACTIONAL_ID: Final = frozenset(
    {_A.PRODUCE, _A.INIT_PRODUCER_ID, _A.ADD_OFFSETS_TO_TXN, _A.END_TXN, _A.TXN_OFFSET_COMMIT}
)
"""Requests that need WRITE of their transactional id, if they have one."""
GROUP: Final[Mapping[int, AclOperation]] = {
    **dict.fromkeys((_A.JOIN_GROUP, _A.SYNC_GROUP, _A.HEARTBEAT, _A.LEAVE_GROUP), _O.READ),
    **dict.fromkeys((_A.CONSUMER_GROUP_HEARTBEAT, _A.STREAMS_GROUP_HEARTBEAT), _O.READ),
    **dict.fromkeys((_A.OFFSET_COMMIT, _A.ADD_OFFSETS_TO_TXN, _A.TXN_OFFSET_COMMIT), _O.READ),
    _A.OFFSET_DELETE: _O.DELETE,
}
"""Operations on its group that a request needs."""


class Parts(NamedTuple):
    """The parts of a request that are allowed or denied by themselves."""

    field: str
    operation: AclOperation
    kind: AclResourceType = _R.TOPIC


PARTS: Final[Mapping[int, Parts]] = {
    key: parts
    for parts, keys in (
        (
            Parts("topics", _O.DESCRIBE),
            (_A.LIST_OFFSETS, _A.OFFSET_FOR_LEADER_EPOCH, _A.METADATA, _A.DESCRIBE_TOPIC_PARTITIONS),
        ),
        (
            Parts("topics", _O.READ),
            (_A.OFFSET_COMMIT, _A.TXN_OFFSET_COMMIT, _A.OFFSET_DELETE, _A.DESCRIBE_PRODUCERS),
        ),
        (Parts("topics", _O.WRITE), (_A.PRODUCE,)),
        (Parts("topics", _O.DELETE), (_A.DELETE_RECORDS, _A.DELETE_TOPICS)),
        (Parts("topics", _O.CREATE), (_A.CREATE_TOPICS,)),
        (Parts("topics", _O.ALTER), (_A.CREATE_PARTITIONS,)),
        (
            Parts("group_ids", _O.DESCRIBE, _R.GROUP),
            (_A.DESCRIBE_GROUPS, _A.CONSUMER_GROUP_DESCRIBE, _A.STREAMS_GROUP_DESCRIBE),
        ),
        (Parts("groups", _O.DESCRIBE, _R.GROUP), (_A.OFFSET_FETCH,)),
        (Parts("groups", _O.DELETE, _R.GROUP), (_A.DELETE_GROUPS,)),
        (Parts("keys", _O.DESCRIBE, _R.GROUP), (_A.FIND_COORDINATOR,)),
        (Parts("transactions", _O.WRITE, _R.TRANSACTIONAL_ID), (_A.ADD_PARTITIONS_TO_TXN,)),
        (Parts("transactional_ids", _O.DESCRIBE, _R.TRANSACTIONAL_ID), (_A.DESCRIBE_TRANSACTIONS,)),
        (Parts("resources", _O.DESCRIBE_CONFIGS, _R.CLUSTER), (_A.DESCRIBE_CONFIGS,)),
        (
            Parts("resources", _O.ALTER_CONFIGS, _R.CLUSTER),
            (_A.ALTER_CONFIGS, _A.INCREMENTAL_ALTER_CONFIGS),
        ),
    )
    for key in keys
}
"""Parts of requests, and the operation that each needs. Further checks are in the handlers that take
`Asked.may`: Fetch, OffsetFetch and AddPartitionsToTxn."""
FOR_ALL: Final[Mapping[int, AclOperation]] = {
    ApiKey.CREATE_TOPICS: _O.CREATE,
    ApiKey.DELETE_TOPICS: _O.DELETE,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _O.CLUSTER_ACTION,
}
"""Operations on the cluster that allow all parts."""
HIDDEN: Final[Mapping[int, Parts]] = {
    ApiKey.METADATA: PARTS[ApiKey.METADATA],
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: PARTS[ApiKey.METADATA],
    ApiKey.LIST_GROUPS: Parts("groups", _O.DESCRIBE, _R.GROUP),
    ApiKey.LIST_TRANSACTIONS: Parts("transactions", _O.DESCRIBE, _R.TRANSACTIONAL_ID),
}
"""Parts of responses that a client does not see without that operation, if it asked for all."""
DESCRIBED: Final[Mapping[int, str]] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        "The group has described topic(s) that the client is not authorized to describe."
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: (
        "The described group uses topics that the client is not authorized to describe."
    ),
}
"""The message in place of a group with a topic that the client may not describe."""
_OF_RESOURCES: Final[Mapping[int, AclResourceType]] = {
    ResourceType.TOPIC: _R.TOPIC,
    ResourceType.GROUP: _R.GROUP,
}
_OF_KEYS: Final[Mapping[int, AclResourceType]] = {
    cluster.KeyType.GROUP: _R.GROUP,
    cluster.KeyType.TRANSACTION: _R.TRANSACTIONAL_ID,
}


_DECISION: Final = 5
"""Cost of a decision, in elements of a request."""
_NO_USERS: Final = Credentials({}, b"")


class Rights:
    """The users and the authorizer of a cluster, between its clients and its handlers.

    `authorizer` is None if there is none, as in a Kafka without `authorizer.class.name`.
    """

    @classmethod
    def of(cls, config: SecurityConfig, credentials: Credentials) -> Rights:
        """Return those that a broker's properties describe."""
        reauth_ms = config.connections_max_reauth_ms
        if not config.authorizer_class_name:
            return cls(credentials=credentials, max_reauth_ms=reauth_ms)
        names = (name.strip() for name in config.super_users.split(";"))
        is_open = config.allow_everyone_if_no_acl_found
        authorizer = Authorizer(filter(None, names), allow_everyone_if_no_acl_found=is_open)
        return cls(authorizer, credentials, reauth_ms)

    def __init__(
        self,
        authorizer: Authorizer | None = None,
        credentials: Credentials = _NO_USERS,
        max_reauth_ms: int = 0,
    ) -> None:
        self.authorizer = authorizer
        self.credentials = credentials
        self.quotas = ClientQuotas()
        self.max_reauth_ms = max_reauth_ms
        """Time after which clients log in again on their connections, in ms; 0 stands for never (KIP-368)."""
        self.is_active = False
        """True if handlers must not be passed by: something may be denied."""
        self.on_active: Callable[[], None] = lambda: None
        self.changed()

    def changed(self) -> None:
        """Note that ACLs or quotas were created or deleted."""
        before, self.is_active = self.is_active, self.decides or not self.quotas.is_idle
        if self.is_active and not before:
            self.on_active()

    @property
    def decides(self) -> bool:
        """True if not all clients may do everything."""
        return self.authorizer is not None and not self.authorizer.is_idle

    def around(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return these handlers, with the authorizer in front of them."""
        return {key: Guarded(self, key, handler) for key, handler in table.items()}

    def may(self, asked: Asked) -> May:
        """Return a function that decides what the client of a request may do."""
        assert self.authorizer is not None
        return functools.cache(partial(self.authorizer.authorize, *_who(asked)))


def _who(asked: Asked) -> tuple[str, str]:
    """Return the principal of a client and its address."""
    return asked.connection.principal, asked.context.client_host.removeprefix("/")


class Guarded:
    """A handler behind the authorizer."""

    __slots__ = ("_key", "_rights", "handler")

    def __init__(self, rights: Rights, key: int, handler: Handler) -> None:
        self._rights = rights
        self._key = key
        self.handler = handler

    def __call__(self, services: Services, request: Any, asked: Asked) -> Any:
        """Handle what the client may do, and throttle it above its quotas (KIP-219)."""
        rights = self._rights
        if not rights.is_active or asked.login is not None:
            return self.handler(services, request, asked)
        if rights.quotas.is_idle:
            return self._decided(services, request, asked)
        account = QuotaAccount(rights.quotas, services, asked)
        if isinstance(request, logs.FetchRequest):
            request, asked = account.limited(request), asked._replace(account=account)
        reply = (
            self._decided(services, request, asked)
            if rights.decides
            else self.handler(services, request, asked)
        )
        account.stop()
        return throttled(services, reply, lambda told: account.throttle_ms(request))

    def _decided(self, services: Services, request: Any, asked: Asked) -> Any:
        guard = _Guard(self._rights, self._key, self.handler, services, asked)
        reply = in_turns(lambda *_: guard.handle(request))(services, request, asked)
        show = in_turns(lambda _, told, __: guard.shown(request, told))
        return services.then(reply, lambda told: show(services, told, asked))


class _Guard:
    """One request."""

    def __init__(self, rights: Rights, key: int, handler: Handler, services: Services, asked: Asked) -> None:
        self._key = key
        self._handler = handler
        self._services = services
        assert rights.authorizer is not None
        self._authorizer = rights.authorizer
        self._may = rights.may(asked)
        self._asked = asked._replace(may=self._may)

    def handle(self, request: Any) -> Work[Any]:
        """Handle the allowed parts, and refuse the others. The response may be a future."""
        code = self._refusal(request)
        if code is not ErrorCode.NONE:
            return _merged([self._refused(request, code)])
        parts = PARTS.get(self._key)
        named = None if parts is None else getattr(request, parts.field)
        if parts is None or not named or self._may_all(request):
            return self._ask(request)
        allowed: list[Any] = []
        denied: dict[ErrorCode, list[Any]] = {}
        for part in named:
            yield _DECISION
            kind = self._kind(parts, request, part)
            if kind is None or self._allows(parts.operation, kind, self._name(kind, part), request):
                allowed.append(part)
            else:
                denied.setdefault(DENIED[kind], []).append(part)
        if not denied:
            return self._ask(request)

        def with_parts(some: Iterable[Any]) -> Any:
            return msgspec.structs.replace(request, **{parts.field: tuple(some)})

        refusals = [self._refused(with_parts(some), code) for code, some in denied.items()]
        if not allowed and self._key != ApiKey.METADATA:  # whose response has brokers, too
            return _merged(refusals)
        told = self._ask(with_parts(allowed))
        return self._services.then(told, lambda reply: _merged([reply, *refusals]))

    def _ask(self, request: Any) -> Any:
        groups = self._services.groups
        groups.may = self._may
        try:
            return self._handler(self._services, request, self._asked)
        finally:
            groups.may = None

    def _may_all(self, request: Any) -> bool:
        if getattr(request, "is_of_broker", False):  # it has a right to the cluster
            return True
        return self._key in FOR_ALL and self._may(FOR_ALL[self._key], _R.CLUSTER, CLUSTER_NAME)

    def _refusal(self, request: Any) -> ErrorCode:
        """Return the error of the whole request, or NONE."""
        key, may = self._key, self._may
        if key in CLUSTER and not may(CLUSTER[key], _R.CLUSTER, CLUSTER_NAME):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if getattr(request, "is_of_broker", False) and not may(_O.CLUSTER_ACTION, _R.CLUSTER, CLUSTER_NAME):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        transactional_id = getattr(request, "transactional_id", None)
        if key in WRITES_TRANSACTIONAL_ID and transactional_id is not None:
            if not may(_O.WRITE, _R.TRANSACTIONAL_ID, transactional_id):
                return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif key == ApiKey.INIT_PRODUCER_ID and not self._may_be_idempotent():
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if key in GROUP and not may(GROUP[key], _R.GROUP, request.group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        subscribed = getattr(request, "subscribed_topic_names", None) or ()
        topology = getattr(request, "topology", None)
        if self._sees_all(subscribed) and (topology is None or self._sees_all(_topics_of(topology))):
            return ErrorCode.NONE
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _sees_all(self, topics: Iterable[str]) -> bool:
        return all(self._may(_O.DESCRIBE, _R.TOPIC, name) for name in topics)

    def _may_be_idempotent(self) -> bool:
        """Return true if the client may write without transactions: to the cluster, or to any topic
        (KIP-679)."""
        return self._may(_O.IDEMPOTENT_WRITE, _R.CLUSTER, CLUSTER_NAME) or self._authorizer.authorize_any(
            *_who(self._asked), _O.WRITE, _R.TOPIC
        )

    def _kind(self, parts: Parts, request: Any, part: Any) -> AclResourceType | None:
        """Return the kind of a part's resource; None if there is nothing to allow."""
        if parts.field == "resources":
            return _OF_RESOURCES.get(part.resource_type, parts.kind)
        if parts.field == "keys":
            return _OF_KEYS.get(request.key_type)
        return parts.kind if self._name(parts.kind, part) is not None else None

    def _name(self, kind: AclResourceType, part: Any) -> str | None:
        """Return the name of a part's resource; None for an unknown topic id."""
        if kind is _R.CLUSTER:
            return CLUSTER_NAME
        if isinstance(part, str):
            return part
        for field in ("group_id", "transactional_id"):
            if hasattr(part, field):
                return str(getattr(part, field))
        name: str | None = part.name
        if name is None and (topic_id := getattr(part, "topic_id", None)) is not None:
            return self._services.cluster.shown.name_of(topic_id)
        return name

    def _allows(self, operation: AclOperation, kind: AclResourceType, name: str | None, request: Any) -> bool:
        assert name is not None
        if not self._may(operation, kind, name):
            return False
        is_created = (
            self._key == ApiKey.METADATA
            and request.allow_auto_topic_creation
            and self._services.new_topics.auto_create_topics_enable
            and name not in self._services.cluster.shown.by_name
        )
        return (
            not is_created
            or self._may(_O.CREATE, _R.CLUSTER, CLUSTER_NAME)
            or self._may(_O.CREATE, _R.TOPIC, name)
        )

    def _refused(self, request: Any, code: ErrorCode) -> Any:
        """Return the response that refuses a request; descriptions show nothing of their topics."""
        if isinstance(request, cluster.MetadataRequest | cluster.DescribeTopicPartitionsRequest):
            references = (
                cluster.TopicReference(name=each) if isinstance(each, str) else each
                for each in request.topics or ()
            )
            topics = tuple(each.refused(code) for each in references)
            if isinstance(request, cluster.DescribeTopicPartitionsRequest):
                return cluster.DescribeTopicPartitionsResponse(topics=topics)
            return cluster.MetadataResponse(topics=topics)
        return refused(self._handler, self._services, request, self._asked, code, or_empty=True)

    # -- what a client sees -----------------------------------------------------------------------------

    def shown(self, request: Any, reply: Any) -> Work[Any]:
        """Return a response without what its client may not see, and with the operations that it may do."""
        hidden = HIDDEN.get(self._key)
        sees_all = self._key == ApiKey.LIST_GROUPS and self._may(_O.DESCRIBE, _R.CLUSTER, CLUSTER_NAME)
        if hidden is not None and not sees_all and not getattr(request, hidden.field, None):
            seen = []
            for each in getattr(reply, hidden.field):
                yield _DECISION
                if self._may(hidden.operation, hidden.kind, str(self._name(hidden.kind, each))):
                    seen.append(each)
            reply = msgspec.structs.replace(reply, **{hidden.field: tuple(seen)})
        if self._key == ApiKey.DESCRIBE_TRANSACTIONS:
            described = (
                msgspec.structs.replace(
                    each,
                    partitions=tuple(
                        one for one in each.partitions if self._may(_O.DESCRIBE, _R.TOPIC, one.topic)
                    ),
                )
                for each in reply.transactions
            )
            reply = msgspec.structs.replace(reply, transactions=tuple(described))
        if self._key == ApiKey.CREATE_TOPICS:
            reply = msgspec.structs.replace(reply, topics=tuple(map(self._created, reply.topics)))
        if self._key in DESCRIBED:
            message = DESCRIBED[self._key]
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            groups = []
            for each in reply.groups:
                yield _DECISION * (1 + len(each.members))
                groups.append(
                    each
                    if self._sees_all(_topics_of(each))
                    else type(each)(group_id=each.group_id, error_code=code, error_message=message)
                )
            reply = msgspec.structs.replace(reply, groups=tuple(groups))
        return (yield from self._with_operations(reply))

    def _created(self, topic: administration.CreatedTopic) -> administration.CreatedTopic:
        """Return the result for a topic, without its settings if the client may not see them (KIP-525)."""
        if topic.error_code is not ErrorCode.NONE or self._may(_O.DESCRIBE_CONFIGS, _R.TOPIC, topic.name):
            return topic
        return administration.CreatedTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )

    def _with_operations(self, reply: Any) -> Work[Any]:
        changed: dict[str, Any] = {}
        unknown = cluster.UNKNOWN_OPERATIONS
        if getattr(reply, "authorized_operations", unknown) != unknown:
            if hasattr(reply, "groups"):
                changed["authorized_operations"] = {
                    each.group_id: self._operations(_R.GROUP, each.group_id) for each in reply.groups
                }
            else:
                sees = self._may(_O.DESCRIBE, _R.CLUSTER, CLUSTER_NAME)
                changed["authorized_operations"] = self._operations(_R.CLUSTER, CLUSTER_NAME) if sees else 0
        topics = getattr(reply, "topics", ())
        if any(getattr(each, "authorized_operations", unknown) != unknown for each in topics):
            described = []
            for each in topics:
                if each.name is not None and each.error_code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    yield 2 * _DECISION
                    operations = self._operations(_R.TOPIC, each.name)
                    described.append(msgspec.structs.replace(each, authorized_operations=operations))
                else:
                    described.append(each)
            changed["topics"] = tuple(described)
        return msgspec.structs.replace(reply, **changed) if changed else reply

    def _operations(self, kind: AclResourceType, name: str) -> int:
        return self._authorizer.operations(*_who(self._asked), kind, name)


def _topics_of(described: Any) -> Iterator[str]:
    """Yield the topics of a topology, or of a group that is described: of its topology and its members."""
    for part in getattr(described, "subtopologies", ()):
        yield from (*part.source_topics, *part.repartition_sink_topics)
        for each in (*part.repartition_source_topics, *part.state_changelog_topics):
            yield each.name
    if isinstance(described, consumer.DescribedGroup):
        for member in described.members:
            for one in (*member.assignment, *member.target_assignment):
                yield one.topic_name


def _merged(replies: list[Any]) -> Any:
    """Return one response with the parts of all of them.

    :raises Unanswered: if one of them has no place for its error: Kafka closes the connection.
    """
    first, *others = replies
    for other in others:
        if other is None:
            raise Unanswered("the client may not do this, and wants no response")
        if first is NO_REPLY or first is None:
            continue
        fields = {
            name: getattr(first, name) + value
            for name in type(other).__struct_fields__
            if isinstance(value := getattr(other, name), tuple)
        }
        first = msgspec.structs.replace(first, **fields)
    if first is None:
        raise Unanswered("the client may not do this, and wants no response")
    return first
