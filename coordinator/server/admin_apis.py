"""Handlers of CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.cluster import TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.streams import TopicInfo
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.config_apis import topic_entries
from fencepost.coordinator.server.new_topics import (
    MAX_PARTITIONS,
    check_partitions,
    check_replicas,
    new_topic_id,
)
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.topic_configs import read_topic_configs
from fencepost.coordinator.server.turns import CHANGE, Work, in_turns

DEFAULT = -1
_METADATA_LOG = "__cluster_metadata"
MAX_PARTITIONS_PER_REQUEST = 10_000
"""The most partitions that one request may create, and records that its changes take: Kafka's limit."""
_TOO_MANY_RECORDS = "Unable to perform excessively large batch operation."
_DELETION_DISABLED_FROM = 3
"""The first version of DeleteTopics in which TOPIC_DELETION_DISABLED is known."""
_Name = TypeVar("_Name", str, int)


def _repeated(names: Iterable[_Name]) -> frozenset[_Name]:
    return frozenset(name for name, times in Counter(names).items() if times > 1)


class _Places(NamedTuple):
    """The number of partitions of a topic, the number of replicas of each, and their brokers if the request
    names them."""

    partitions: int
    replicas: int
    assignments: tuple[tuple[int, ...], ...] = ()


class _Plan(NamedTuple):
    """A topic that can be created."""

    topic_id: TopicId
    name: str
    places: _Places
    configs: Mapping[str, str]
    written: Mapping[str, str]
    """The same settings as the request has them, with spaces and capitals."""


@in_turns
def create_topics(
    services: Services, request: administration.CreateTopicsRequest, asked: Asked
) -> Work[administration.CreateTopicsResponse]:
    """Create each topic by itself, once; a request for too many partitions creates no topic."""
    if len(request.topics) > MAX_PARTITIONS_PER_REQUEST:
        yield 1
        refused = ProtocolError(ErrorCode.POLICY_VIOLATION, _TOO_MANY_RECORDS)
        names = dict.fromkeys(topic.name for topic in request.topics)
        return administration.CreateTopicsResponse(
            topics=tuple(_created(services, name, refused) for name in names)
        )
    twice = _repeated(topic.name for topic in request.topics)
    plans: dict[str, _Plan | ProtocolError] = {}
    wanted: dict[str, administration.NewTopic] = {}
    for topic in request.topics:
        if topic.name in twice:
            plans[topic.name] = ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif topic.name == _METADATA_LOG:
            plans[topic.name] = ProtocolError(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {topic.name} is prohibited."
            )
        else:
            plans[topic.name] = _plan(services, topic)
            wanted[topic.name] = topic
        yield 10
    too_large = _too_large(services, wanted.values(), plans.values())
    if too_large is not None:
        plans |= dict.fromkeys(wanted, ProtocolError(ErrorCode.POLICY_VIOLATION, too_large))
    made = plans if request.validate_only else _make(services, plans)
    created = []
    for name, plan in made.items():
        created.append(_created(services, name, plan))
        yield CHANGE if created[-1].error_code is ErrorCode.NONE else 1
    return administration.CreateTopicsResponse(topics=tuple(created))


def _too_large(
    services: Services, topics: Iterable[administration.NewTopic], plans: Iterable[_Plan | ProtocolError]
) -> str | None:
    """Return the reason why a request is too large, in Kafka's words. Its controller limits the records of a
    request."""
    partitions = 0
    for topic in topics:
        count = services.new_topics.num_partitions if topic.partitions == DEFAULT else topic.partitions
        partitions += len(topic.assignments) or max(0, count)
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        return "Excessively large number of partitions per request."
    records = sum(plan.places.partitions + 1 + len(plan.configs) for plan in plans if isinstance(plan, _Plan))
    return _TOO_MANY_RECORDS if records > MAX_PARTITIONS_PER_REQUEST else None


def _plan(services: Services, topic: administration.NewTopic) -> _Plan | ProtocolError:
    try:
        services.cluster.check_new_name(topic.name)
        nulls = [name for name, value in topic.configs.items() if value is None]
        if nulls:
            raise ProtocolError(
                ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}"
            )
        written = {name: value for name, value in topic.configs.items() if value is not None}
        configs = read_topic_configs(written, services.cluster.topic_defaults)
        return _Plan(new_topic_id(), topic.name, _places_of(services, topic), configs, written)
    except ProtocolError as error:
        return error


def _make(services: Services, plans: Mapping[str, _Plan | ProtocolError]) -> dict[str, _Plan | ProtocolError]:
    """Create the planned topics, in one change as Kafka's controller does; return the plans as they went."""
    cluster = services.cluster
    made: dict[str, _Plan | ProtocolError] = {}
    topics: list[Topic] = []
    partitions = 0
    for name, plan in plans.items():
        made[name] = plan
        if isinstance(plan, ProtocolError):
            continue
        places = plan.places
        try:
            cluster.check_room(partitions + places.partitions)
            if name in cluster.image.by_name:  # other requests ran since it was planned
                cluster.check_new_name(name)
        except ProtocolError as error:
            made[name] = error
            continue
        partitions += places.partitions
        topics.append(
            Topic(
                topic_id=plan.topic_id,
                name=name,
                partitions=places.partitions,
                replicas=places.replicas,
                assignments=places.assignments,
            )
        )
    cluster.add(topics, {plan.name: plan.configs for plan in made.values() if isinstance(plan, _Plan)})
    return made


def _created(services: Services, name: str, plan: _Plan | ProtocolError) -> administration.CreatedTopic:
    if isinstance(plan, ProtocolError):
        return administration.CreatedTopic(name=name, error_code=plan.code, error_message=plan.message)
    return administration.CreatedTopic(
        name=name,
        topic_id=plan.topic_id,
        partitions=plan.places.partitions,
        replication_factor=plan.places.replicas,
        configs=topic_entries(plan.written, services.cluster.topic_defaults),
    )


def create_internal_topics(services: Services, topics: Sequence[TopicInfo]) -> dict[str, str]:
    """Create the topics that a Streams application needs; return why some could not be created, by name."""
    plans = {
        topic.name: _plan(
            services,
            administration.NewTopic(
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor or DEFAULT,
                configs=dict(topic.configs),
            ),
        )
        for topic in topics
        if topic.name not in services.cluster.image.by_name
    }
    made = _make(services, plans)
    return {name: plan.message for name, plan in made.items() if isinstance(plan, ProtocolError)}


def _places_of(services: Services, topic: administration.NewTopic) -> _Places:
    """Return the partitions and replicas that a request wants.

    :raises ProtocolError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT or
        INVALID_REQUEST.
    """
    if topic.assignments:
        return _places_by_hand(services, topic)
    replicas = topic.replication_factor
    if replicas == DEFAULT:
        replicas = services.new_topics.default_replication_factor
    if replicas < 1:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    partitions = services.new_topics.num_partitions if topic.partitions == DEFAULT else topic.partitions
    if partitions < 1:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    check_partitions(partitions)
    check_replicas(replicas, len(services.cluster.nodes))
    return _Places(partitions, replicas)


def _places_by_hand(services: Services, topic: administration.NewTopic) -> _Places:
    for name, number in (
        ("replication factor", topic.replication_factor),
        ("numPartitions", topic.partitions),
    ):
        if number != DEFAULT:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {name} was not set to -1.",
            )
    placed: dict[int, tuple[int, ...]] = {}
    expected = None
    for partition, replicas in topic.assignments:
        if partition in placed:
            raise ProtocolError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {partition}",
            )
        _check_replicas(services, replicas, expected)
        placed[partition] = replicas
        expected = len(replicas)
    if placed.keys() != set(range(len(placed))):
        raise ProtocolError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    assert expected is not None
    check_partitions(len(placed))
    return _Places(len(placed), expected, tuple(placed[partition] for partition in range(len(placed))))


def _check_replicas(services: Services, replicas: tuple[int, ...], expected: int | None) -> None:
    """Refuse brokers that there are not, and another number of them than `expected`.

    :raises ProtocolError: INVALID_REPLICA_ASSIGNMENT.
    """
    known = {node.node_id for node in services.cluster.nodes}
    problem = None
    if not replicas:
        problem = "an empty replica list."
    elif unknown := sorted(set(replicas) - known):
        problem = f"broker {unknown[0]}, but no such broker is registered."
    elif twice := _repeated(replicas):
        problem = f"the broker {min(twice)} more than once."
    elif expected not in {None, len(replicas)}:
        problem = (
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {expected} replica(s)."
        )
    if problem is not None:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {problem}"
        )


@in_turns
def delete_topics(
    services: Services, request: administration.DeleteTopicsRequest, asked: Asked
) -> Work[administration.DeleteTopicsResponse]:
    """Delete each topic by itself; a topic that is named twice is not deleted, and has one result."""
    if not services.new_topics.delete_topic_enable:
        return _deletion_disabled(request, asked.context.api_version)
    named = Counter(filter(_is_plain, request.topics))
    both_ways = {
        topic.topic_id
        for topic in (services.cluster.image.by_name.get(each.name or "") for each in named)
        if topic is not None and TopicReference(topic_id=topic.topic_id) in named
    }
    answers = []
    for reference in request.topics:
        times = named.pop(reference, 0)
        if times == 0 and _is_plain(reference):
            continue  # it has a result
        if reference.name is None and reference.topic_id in both_ways:
            continue  # its name has a result
        answers.append(_delete(services, reference, times > 1, both_ways))
        yield CHANGE if answers[-1].error_code is ErrorCode.NONE else 1
    return administration.DeleteTopicsResponse(topics=tuple(answers))


def _deletion_disabled(
    request: administration.DeleteTopicsRequest, api_version: int
) -> administration.DeleteTopicsResponse:
    """Return the response of a broker with `delete.topic.enable=false`."""
    code = ErrorCode.INVALID_REQUEST
    if api_version >= _DELETION_DISABLED_FROM:
        code = ErrorCode.TOPIC_DELETION_DISABLED
    return administration.DeleteTopicsResponse(
        topics=tuple(
            administration.DeletedTopic(name=topic.name, topic_id=topic.topic_id, error_code=code)
            for topic in request.topics
        )
    )


def _is_plain(reference: TopicReference) -> bool:
    return (reference.name is None) != (reference.topic_id is None)


def _delete(
    services: Services, reference: TopicReference, twice: bool, both_ways: Container[TopicId]
) -> administration.DeletedTopic:
    topic_id, wrong = reference.topic_id, None
    if reference.name is None and topic_id is None:
        wrong = "Neither topic name nor id were specified."
    elif reference.name is not None and topic_id is not None:
        wrong = "You may not specify both topic name and topic id."
    elif twice:
        wrong = f"Duplicate topic {'id' if reference.name is None else 'name'}."
    try:
        if wrong is not None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, wrong)
        topic = services.cluster.find(reference.name, topic_id)
        services.cluster.check_own(topic, "Cannot delete")
        if topic.topic_id in both_ways:
            topic_id = topic.topic_id
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                "The provided topic name maps to an ID that was already supplied.",
            )
    except ProtocolError as error:
        return administration.DeletedTopic(
            name=reference.name, topic_id=topic_id, error_code=error.code, error_message=error.message
        )
    services.cluster.delete_topic(topic)
    return administration.DeletedTopic(name=topic.name, topic_id=topic.topic_id)


@in_turns
def create_partitions(
    services: Services, request: administration.CreatePartitionsRequest, asked: Asked
) -> Work[administration.CreatePartitionsResponse]:
    """Grow each topic by itself, once; a request for too many partitions creates no partition."""
    twice = _repeated(topic.name for topic in request.topics)
    grown = {topic.name: topic for topic in request.topics}
    if _added(services, grown.values()) > MAX_PARTITIONS_PER_REQUEST:
        yield 1
        code = ErrorCode.POLICY_VIOLATION
        return administration.CreatePartitionsResponse(
            topics=tuple(
                administration.CreatedPartitions(name=name, error_code=code, error_message=_TOO_MANY_RECORDS)
                for name in grown
            )
        )
    topics = []
    for topic in grown.values():
        topics.append(_grow(services, topic, request.validate_only, topic.name in twice))
        yield CHANGE if topics[-1].error_code is ErrorCode.NONE else 1
    return administration.CreatePartitionsResponse(topics=tuple(topics))


def _added(services: Services, grown: Iterable[administration.GrownTopic]) -> int:
    """Return the number of partitions to create, without topics whose new count is not allowed."""
    known = services.cluster.image.by_name
    counts = ((topic.count, known[topic.name].partitions) for topic in grown if topic.name in known)
    return sum(count - before for count, before in counts if before < count <= MAX_PARTITIONS)


def _grow(
    services: Services, grown: administration.GrownTopic, validate_only: bool, twice: bool
) -> administration.CreatedPartitions:
    try:
        if twice:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        topic = services.cluster.find(grown.name, None)
        services.cluster.check_growth(topic, grown.count)
        if grown.assignments is not None:
            more = grown.count - topic.partitions
            if len(grown.assignments) != more:
                raise ProtocolError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {more} additional partition(s), but only {len(grown.assignments)} "
                    "assignment(s) were specified.",
                )
            for replicas in grown.assignments:
                _check_replicas(services, replicas, topic.replicas)
        services.cluster.check_room(grown.count - topic.partitions)
        if not validate_only:
            services.cluster.grow_topic(topic, grown.count, grown.assignments or ())
        return administration.CreatedPartitions(name=grown.name)
    except ProtocolError as error:
        # For a topic that does not exist, Kafka sends only the code.
        message = None if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error.message
        return administration.CreatedPartitions(name=grown.name, error_code=error.code, error_message=message)
