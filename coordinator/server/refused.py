"""Responses of a broker for a request that fails as a whole: each part of the response carries the error."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from fencepost.coordinator.codec import groups, offsets, transactions
from fencepost.coordinator.protocol import acls, classic, cluster, consumer, inspection, logs, quotas, sasl
from fencepost.coordinator.protocol import administration as a
from fencepost.coordinator.protocol.cluster import TopicMetadata
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.transactions import AddPartitionsToTxnResponse
from fencepost.coordinator.refusals import refusal
from fencepost.coordinator.server.fetch import FetchApi
from fencepost.coordinator.server.fetch_sessions import (
    Fetched,
    FetchSessions,
    Wanted,
    by_topic,
    wanted_by,
)
from fencepost.coordinator.server.services import Asked, Handler, Services

A = TypeVar("A")

_OF_SESSIONS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_SESSIONS_FROM: Final = 7
"""The first version of Fetch that has an error for all of it."""
_OF_PARTITIONS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }
)
"""Errors that OffsetFetch and OffsetDelete report for each partition; they report all other errors for the
group."""
_OF_MEMBERS: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_GROUP_ERRORS_FROM: Final = 2
"""The first version of OffsetFetch that has an error for a group."""
_MEMBERS_FROM: Final = 3
"""The first version of LeaveGroup that has an error for each member."""
_METADATA_ERRORS_FROM: Final = 13
"""The first version of Metadata that has an error for all of it (KIP-1102)."""
_LOG_DIR_ERRORS_FROM: Final = 3
"""The first version of DescribeLogDirs that has an error for all of it."""


class _Failure(NamedTuple):
    code: ErrorCode
    version: int
    in_parts: bool = False
    """True if each part gets the error, even if a broker would report it for the whole."""


def can_fail(request: Any, version: int, code: ErrorCode) -> bool:
    """Return true if the response has a place for this error. None is a request that is not read.

    Metadata about brokers alone has one only for an error of the whole response.
    """
    if isinstance(request, cluster.MetadataRequest) and request.topics == ():
        return _is_of_all_metadata(version, code)
    return request is not None


def _is_of_all_metadata(version: int, code: ErrorCode) -> bool:
    return code is ErrorCode.REBOOTSTRAP_REQUIRED and version >= _METADATA_ERRORS_FROM


def refused(
    handler: Handler,
    services: Services,
    request: Any,
    asked: Asked,
    code: ErrorCode,
    *,
    at_top: bool | None = None,
    or_empty: bool = False,
) -> Any:
    """Return what `refusal_of` does, with the descriptions and the sessions of a broker and its handler."""
    handler = getattr(handler, "handler", handler)  # the one behind the authorizer
    version = asked.context.api_version
    if isinstance(handler, FetchApi) and not at_top:
        wanted = wanted_by(request, services.cluster.name_of)
        return _fetch(handler.sessions, request, wanted, _Failure(code, version, at_top is False))

    def describe(request: Any) -> Any:
        return handler(services, request, asked)

    return refusal_of(request, version, code, describe, at_top=at_top, or_empty=or_empty)


def refusal_of(
    request: Any,
    version: int,
    code: ErrorCode,
    describe: Callable[[Any], Any],
    *,
    at_top: bool | None = None,
    or_empty: bool = False,
) -> Any:
    """Return a response with this error, without carrying out the request; None if no response can hold the
    error.

    `describe` returns the response to a request for a description: its parts get the error. With `at_top`,
    the error is that of the whole response, if it has a field for one; if `at_top` is false, that of each
    part, if these have one. None leaves it where a broker puts that error. With `or_empty`, the response to a
    request without parts has none either.
    """
    if at_top and (whole := _as_a_whole(request, code)) is not None:
        return whole
    failure = _Failure(code, version, at_top is False)
    if isinstance(request, cluster.MetadataRequest):
        if _is_of_all_metadata(version, code):
            topics = tuple(each.refused(code) for each in request.topics or ())
            return cluster.MetadataResponse(topics=topics, error_code=code)
        told = describe(msgspec.structs.replace(request, allow_auto_topic_creation=False))
        reply = _spoiled_in_time(told, code)
    elif isinstance(request, cluster.DescribeTopicPartitionsRequest):
        reply = _spoiled_in_time(describe(request), code)
    elif isinstance(request, inspection.DescribeLogDirsRequest):
        reply = _log_dirs(describe(request), failure)
    elif (make := _BY_PARTS.get(type(request))) is not None:
        reply = make(request, failure)
    else:
        reply = refusal(request, code) or _as_a_whole(request, code)
    if isinstance(reply, asyncio.Future):
        return reply  # a description of many topics takes some turns of the loop
    if reply is None or or_empty:
        return reply
    if not any(getattr(reply, name) for name in type(reply).__struct_fields__):
        return None  # the request has no parts
    return reply


def _spoiled_in_time(reply: Any, code: ErrorCode) -> Any:
    """Return the spoiled description, at once or as a future, like the given one."""
    if not isinstance(reply, asyncio.Future):
        return _spoiled(reply, code)

    async def spoiled() -> Any:
        return _spoiled(await reply, code)

    return asyncio.ensure_future(spoiled())


def _spoiled(reply: Any, code: ErrorCode) -> Any:
    """Return a description in which all topics have the error, and the rest is unchanged."""
    topics = (TopicMetadata(name=t.name, topic_id=t.topic_id, error_code=code) for t in reply.topics)
    return msgspec.structs.replace(reply, topics=tuple(topics)) if reply.topics else None


def _log_dirs(
    told: inspection.DescribeLogDirsResponse, failure: _Failure
) -> inspection.DescribeLogDirsResponse:
    """Put an error of a disk at its directory, and any other error at the whole response if that has a field
    for it."""
    code, version, in_parts = failure
    if version >= _LOG_DIR_ERRORS_FROM and code is not ErrorCode.KAFKA_STORAGE_ERROR and not in_parts:
        return inspection.DescribeLogDirsResponse(error_code=code)
    return inspection.DescribeLogDirsResponse(
        log_dirs=tuple(inspection.LogDir(path=each.path, error_code=code) for each in told.log_dirs)
    )


def _fetch(
    sessions: FetchSessions, request: logs.FetchRequest, named: list[Wanted], failure: _Failure
) -> logs.FetchResponse | None:
    """Set an error about a session for the whole response, others for each partition, including those of the
    session.

    The session continues, as at a broker that can read no partition of it.
    """
    code, version, in_parts = failure
    at_the_top = logs.FetchResponse(error_code=code) if version >= _SESSIONS_FROM else None
    if at_the_top is not None and code in _OF_SESSIONS and not in_parts:
        return at_the_top
    try:
        session = sessions.session_of(request, named)
    except ProtocolError:
        session = None  # the error ends the session at the client too
    wanted = named if session is None else session.wanted
    failed = [
        Fetched(one, logs.FetchedPartition(partition=one.partition.partition, error_code=code))
        for one in wanted
    ]
    if not failed:
        return at_the_top
    if (session := sessions.begun(session)) is None:
        return logs.FetchResponse(topics=by_topic(failed))
    return logs.FetchResponse(session_id=session.session_id, topics=by_topic(session.news(failed)))


def _each(topics: Iterable[OfTopic[Any]], make: Callable[..., A], code: ErrorCode) -> tuple[OfTopic[A], ...]:
    return tuple(
        OfTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                make(partition=one if isinstance(one, int) else one.partition, error_code=code)
                for one in topic.partitions
            ),
        )
        for topic in topics
    )


def _fetch_without_session(request: logs.FetchRequest, failure: _Failure) -> logs.FetchResponse | None:
    """Set an error for each partition that the request names, and end its session."""
    code, version, in_parts = failure
    at_the_top = logs.FetchResponse(error_code=code) if version >= _SESSIONS_FROM else None
    if not request.topics or (at_the_top is not None and code in _OF_SESSIONS and not in_parts):
        return at_the_top
    return logs.FetchResponse(topics=_each(request.topics, logs.FetchedPartition, code))


def _produce(request: logs.ProduceRequest, failure: _Failure) -> logs.ProduceResponse | None:
    if request.acks == 0:
        return None
    return logs.ProduceResponse(topics=_each(request.topics, logs.AppendedPartition, failure.code))


def _offset_fetch(request: offsets.OffsetFetchCall, failure: _Failure) -> offsets.OffsetFetchReply:
    code, version, in_parts = failure
    by_partition = version < _GROUP_ERRORS_FROM or code in _OF_PARTITIONS or in_parts
    return offsets.OffsetFetchReply(
        groups=tuple(
            offsets.FetchedGroup(
                group_id=group.group_id, topics=_each(group.topics, offsets.FetchedOffset, code)
            )
            if by_partition and group.topics
            else offsets.FetchedGroup(group_id=group.group_id, error_code=code)
            for group in request.groups
        )
    )


def _offset_delete(request: offsets.OffsetDeleteCall, failure: _Failure) -> offsets.OffsetDeleteReply:
    if (failure.code in _OF_PARTITIONS or failure.in_parts) and request.topics:
        return offsets.OffsetDeleteReply(topics=_each(request.topics, offsets.PartitionError, failure.code))
    return offsets.OffsetDeleteReply(error_code=failure.code)


def _leave(request: groups.LeaveGroupCall, failure: _Failure) -> groups.LeaveGroupReply:
    code, version, in_parts = failure
    if not (code in _OF_MEMBERS or in_parts) or version < _MEMBERS_FROM:
        return groups.LeaveGroupReply(error_code=code)
    return groups.LeaveGroupReply(
        members=tuple(
            consumer.LeaveGroupResponse(
                member_id=each.member_id, instance_id=each.instance_id, error_code=code
            )
            for each in request.members
        )
    )


def _of_topics(reply: type[Any], part: type[Any]) -> Callable[[Any, _Failure], Any]:
    """Make responses in which each partition of each topic has the error."""
    return lambda request, failure: reply(topics=_each(request.topics, part, failure.code))


def _of(reply: type[Any], parts: str, part: type[Any], *names: str) -> Callable[[Any, _Failure], Any]:
    """Make responses in which each of these parts has the error, and the same fields of these names."""

    def make(request: Any, failure: _Failure) -> Any:
        refused = (
            part(error_code=failure.code, **{name: getattr(each, name) for name in names})
            for each in getattr(request, parts)
        )
        return reply(**{parts: tuple(refused)})

    return make


_BY_PARTS: Mapping[type, Callable[[Any, _Failure], Any]] = {
    # A broker that loads its groups sends no error to a heartbeat of a classic member. A test that requests
    # that error expects to see it.
    classic.HeartbeatRequest: lambda _, failed: classic.HeartbeatResponse(error_code=failed.code),
    logs.FetchRequest: _fetch_without_session,
    logs.ProduceRequest: _produce,
    logs.ListOffsetsRequest: _of_topics(logs.ListOffsetsResponse, logs.ListedOffset),
    logs.OffsetForLeaderEpochRequest: _of_topics(logs.OffsetForLeaderEpochResponse, logs.EpochEndOffset),
    logs.DeleteRecordsRequest: _of_topics(logs.DeleteRecordsResponse, logs.DeletedRecords),
    offsets.OffsetCommitCall: _of_topics(offsets.OffsetCommitReply, offsets.PartitionError),
    offsets.OffsetFetchCall: _offset_fetch,
    offsets.OffsetDeleteCall: _offset_delete,
    groups.LeaveGroupCall: _leave,
    groups.DeleteGroupsCall: _of(
        groups.DeleteGroupsReply, "groups", consumer.DeleteGroupsResponse, "group_id"
    ),
    cluster.FindCoordinatorRequest: lambda request, failed: cluster.FindCoordinatorResponse(
        coordinators=tuple(cluster.FoundCoordinator(key=key, error_code=failed.code) for key in request.keys)
    ),
    cluster.DescribeClusterRequest: lambda _, failed: cluster.DescribeClusterResponse(
        cluster_id="", controller_id=-1, error_code=failed.code
    ),
    transactions.AddPartitionsCall: lambda request, failed: (
        transactions.AddPartitionsReply(error_code=failed.code)
        if failed.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        else transactions.AddPartitionsReply(
            transactions=tuple(
                (
                    each.transactional_id,
                    AddPartitionsToTxnResponse(errors=dict.fromkeys(each.partitions, failed.code)),
                )
                for each in request.transactions
            )
        )
    ),
    transactions.TxnOffsetCommitCall: _of_topics(transactions.TxnOffsetCommitReply, offsets.PartitionError),
    acls.CreateAclsRequest: lambda request, failed: acls.CreateAclsResponse(
        results=(acls.CreatedAcl(error_code=failed.code),) * len(request.creations)
    ),
    acls.DeleteAclsRequest: lambda request, failed: acls.DeleteAclsResponse(
        filter_results=(acls.DeletedAcls(error_code=failed.code),) * len(request.filters)
    ),
    quotas.AlterClientQuotasRequest: _of(
        quotas.AlterClientQuotasResponse, "entries", quotas.AlteredQuota, "entity"
    ),
    sasl.AlterUserScramCredentialsRequest: lambda request, failed: sasl.AlterUserScramCredentialsResponse(
        results=tuple(
            sasl.AlteredUser(user=name, error_code=failed.code)
            for name in dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
        )
    ),
    inspection.DescribeProducersRequest: _of_topics(
        inspection.DescribeProducersResponse, inspection.PartitionProducers
    ),
    inspection.DescribeTransactionsRequest: lambda request, failed: inspection.DescribeTransactionsResponse(
        transactions=tuple(
            inspection.DescribedTransaction(transactional_id=each, error_code=failed.code)
            for each in request.transactional_ids
        )
    ),
    a.CreateTopicsRequest: lambda request, failed: a.CreateTopicsResponse(
        topics=tuple(
            a.CreatedTopic(
                name=each.name,
                error_code=failed.code,
                error_message=(
                    "Authorization failed." if failed.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else None
                ),
            )
            for each in request.topics
        )
    ),
    a.CreatePartitionsRequest: _of(a.CreatePartitionsResponse, "topics", a.CreatedPartitions, "name"),
    a.DeleteTopicsRequest: _of(a.DeleteTopicsResponse, "topics", a.DeletedTopic, "name", "topic_id"),
    a.DescribeConfigsRequest: _of(
        a.DescribeConfigsResponse, "resources", a.DescribedConfigs, "resource_type", "name"
    ),
    a.AlterConfigsRequest: _of(
        a.AlterConfigsResponse, "resources", a.AlteredConfigs, "resource_type", "name"
    ),
}
"""Responses with an error for each part of the request, and those for which the core would choose a different
error."""


def _as_a_whole(request: Any, code: ErrorCode) -> Any:
    """Return the request's response if it has one error for the whole and needs nothing else."""
    name = type(request).__name__
    module = sys.modules[type(request).__module__]
    for suffix, other in (("Request", "Response"), ("Call", "Reply")):
        kind = getattr(module, name.removesuffix(suffix) + other, None)
        if name.endswith(suffix) and kind is not None and "error_code" in kind.__struct_fields__:
            required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
            return kind(error_code=code) if required == 0 else None
    return None
