"""Handlers of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from fencepost.coordinator.config import BROKER_RACK, REPLICA_SELECTOR, GroupConfig
from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.administration import (
    AlteredConfigs,
    ChangedResource,
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ConfigType,
    DescribedConfigs,
    ResourceType,
)
from fencepost.coordinator.protocol.cluster_records import ConfigKey
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError, ProtocolError
from fencepost.coordinator.server.cluster_apis import MOST_DESCRIBED_PARTITIONS
from fencepost.coordinator.server.fetch_sessions import MAX_SESSIONS
from fencepost.coordinator.server.new_topics import check_topic_name
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.topic_configs import (
    BROKER_SETTINGS,
    QUEUED_MAX_REQUEST_BYTES,
    TIME_SETTINGS,
    TOPIC_SETTINGS,
    TopicDefaults,
    TopicSetting,
    read_topic_configs,
)
from fencepost.coordinator.server.turns import CHANGE, Work, in_turns

MAX_DESCRIBED_RESOURCES = 5_000
"""The most resources in one DescribeConfigs: even a group that does not exist has all settings."""
_DESCRIPTION = 250
"""Cost of describing one resource, in elements of a request."""
_KINDS = frozenset(ResourceType)
_MILLISECONDS = {
    setting.topic_setting: tuple(
        name
        for name, each in TIME_SETTINGS.items()
        if each.topic_setting == setting.topic_setting and each.unit_ms == 1
    )
    for setting in TIME_SETTINGS.values()
}
"""The brokers' settings in milliseconds by the topics' settings that inherit them."""


@in_turns
def describe_configs(
    services: Services, request: administration.DescribeConfigsRequest, asked: Asked
) -> Work[administration.DescribeConfigsResponse]:
    """Describe the settings of resources, own and default. No resource is described if one is of an unknown
    type.

    A resource that is named twice in the same words is described once.
    """
    resources = tuple(dict.fromkeys(request.resources))
    odd = next((each for each in resources if each.resource_type not in _KINDS), None)
    if odd is not None:
        message = f"Unexpected resource type {odd.resource_type} for resource {odd.name}"
    elif len(resources) > MAX_DESCRIBED_RESOURCES:
        message = (
            f"{len(resources)} resources in one request, expected at most {MAX_DESCRIBED_RESOURCES} "
            "(MAX_DESCRIBED_RESOURCES): ask in several requests"
        )
    else:
        message = ""
    if message:
        yield 1
        return administration.DescribeConfigsResponse(
            resources=tuple(
                DescribedConfigs(
                    resource_type=each.resource_type,
                    name=each.name,
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message=message,
                )
                for each in resources
            )
        )
    described = []
    for resource in resources:
        described.append(_described(services, resource, request.include_synonyms))
        yield _DESCRIPTION
    return administration.DescribeConfigsResponse(resources=tuple(described))


def _described(services: Services, resource: ConfigResource, include_synonyms: bool) -> DescribedConfigs:
    try:
        entries = _entries(services, resource)
    except ProtocolError as error:
        return DescribedConfigs(
            resource_type=resource.resource_type,
            name=resource.name,
            error_code=error.code,
            error_message=error.message,
        )
    wanted = _in_order(entries, resource.keys) if resource.keys else entries
    return DescribedConfigs(
        resource_type=resource.resource_type,
        name=resource.name,
        error_message="",  # without an error, other responses have null
        entries=tuple(wanted)
        if include_synonyms
        else tuple(msgspec.structs.replace(entry, synonyms=()) for entry in wanted),
    )


def _in_order(entries: Iterable[ConfigEntry], names: Iterable[str]) -> Iterator[ConfigEntry]:
    """Yield the entries of these names in their order, each once; unknown names are left out."""
    by_name = {entry.name: entry for entry in entries}
    return (by_name[name] for name in dict.fromkeys(names) if name in by_name)


def _entries(services: Services, resource: ConfigResource) -> tuple[ConfigEntry, ...]:
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(resource.name)
            services.cluster.find(resource.name, None)
            configs = services.cluster.configs_of(resource.resource_type, resource.name)
            return topic_entries(configs, services.cluster.topic_defaults)
        case ResourceType.BROKER:
            if resource.name not in {"", *(str(node.node_id) for node in services.cluster.nodes)}:
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST, f"there is no broker {resource.name!r} in this cluster"
                )
            of_brokers = (*_settings(services.config), *_of_topics(services))
            return (*of_brokers, *_of_broker(services, resource.name)) if resource.name else of_brokers
        case ResourceType.GROUP:
            if not resource.name:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return _group_entries(services, resource.name)
        case unknown:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"{_kind_name(unknown)} resources have no settings here"
            )


def topic_entries(configs: Mapping[str, str], defaults: TopicDefaults) -> tuple[ConfigEntry, ...]:
    """Return all settings of a topic with these settings; `defaults` are those that it inherits."""
    return tuple(
        _entry(name, configs, ConfigSource.DYNAMIC_TOPIC, _default_of(name, setting, defaults))
        for name, setting in TOPIC_SETTINGS.items()
    )


def _default_of(name: str, setting: TopicSetting, defaults: TopicDefaults) -> ConfigEntry:
    """Return the value that a topic inherits, with the broker's settings that give it.

    Like Kafka it names no setting in minutes or hours.
    """
    broker_name = BROKER_SETTINGS.get(name)
    synonyms = [
        (each, defaults.static[each], ConfigSource.STATIC_BROKER)
        for each in (broker_name, *_MILLISECONDS.get(name, ()))
        if each in defaults.static
    ]
    if broker_name is not None:
        synonyms.append((broker_name, setting.default, ConfigSource.DEFAULT))
    return ConfigEntry(
        name=name,
        value=defaults.value_of(name),
        source=synonyms[0][2] if synonyms else ConfigSource.DEFAULT,
        config_type=setting.config_type,
        synonyms=tuple(synonyms),
    )


def _entry(
    name: str, configs: Mapping[str, str], source: ConfigSource, otherwise: ConfigEntry
) -> ConfigEntry:
    """Return a setting of a resource with these settings; `otherwise` applies if it is not set."""
    value = configs.get(name)
    return ConfigEntry(
        name=name,
        value=otherwise.value if value is None else value,
        source=otherwise.source if value is None else source,
        config_type=otherwise.config_type,
        read_only=False,
        synonyms=otherwise.synonyms if value is None else ((name, value, source), *otherwise.synonyms),
    )


def _group_entries(services: Services, group_id: str) -> tuple[ConfigEntry, ...]:
    configs = services.cluster.configs_of(ResourceType.GROUP, group_id)
    of_brokers = {entry.name: entry for entry in _settings(services.config)}
    names = (field.replace("_", ".") for field in GroupConfig.__struct_fields__)
    return tuple(
        _entry(name, configs, ConfigSource.DYNAMIC_GROUP, of_brokers[f"group.{name}"]) for name in names
    )


def _named(name: str, static: str | None, config_type: ConfigType, default: str | None = None) -> ConfigEntry:
    """Return a setting of brokers: `static` if a value is set, else the default, if there is one."""
    given = ((static, ConfigSource.STATIC_BROKER), (default, ConfigSource.DEFAULT))
    synonyms = tuple((name, value, source) for value, source in given if value is not None)
    _, value, source = synonyms[0] if synonyms else (name, None, ConfigSource.DEFAULT)
    return ConfigEntry(name=name, value=value, source=source, config_type=config_type, synonyms=synonyms)


def _settings(config: msgspec.Struct) -> Iterator[ConfigEntry]:
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        static = None if value == field.default else _text(value)
        yield _named(field.name.replace("_", "."), static, _type_of(value), _text(field.default))


def _of_topics(services: Services) -> tuple[ConfigEntry, ...]:
    """Return the defaults of topics, under the names of the brokers' settings."""
    defaults = services.cluster.topic_defaults
    inherited = (
        msgspec.structs.replace(_default_of(name, TOPIC_SETTINGS[name], defaults), name=broker_name)
        for name, broker_name in BROKER_SETTINGS.items()
    )
    times = (
        _named(name, defaults.static[name], setting.config_type)
        for name, setting in TIME_SETTINGS.items()
        if name in defaults.static
    )
    return (*inherited, *times, *_settings(services.new_topics))


def _of_broker(services: Services, name: str) -> tuple[ConfigEntry, ...]:
    """Return the settings of one broker: its id, limits, listeners, rack, and the replicas to read.

    No election moves leaders here without a request.
    """
    node = next(node for node in services.cluster.nodes if str(node.node_id) == name)
    texts = {
        **services.cluster.listener_settings.get(node.node_id, {}),
        BROKER_RACK: node.rack,
        REPLICA_SELECTOR: services.cluster.replica_selector,
    }
    return (
        _named("node.id", name, ConfigType.INT),
        _named("broker.id", name, ConfigType.INT, "-1"),
        _named("max.incremental.fetch.session.cache.slots", None, ConfigType.INT, str(MAX_SESSIONS)),
        _named("max.request.partition.size.limit", None, ConfigType.INT, str(MOST_DESCRIBED_PARTITIONS)),
        _named("auto.leader.rebalance.enable", "false", ConfigType.BOOLEAN, "true"),
        _named(QUEUED_MAX_REQUEST_BYTES, str(services.queued_max_request_bytes), ConfigType.LONG, "-1"),
        *(_named(setting, value, ConfigType.STRING) for setting, value in texts.items()),
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _type_of(value: object) -> ConfigType:
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    if isinstance(value, int):
        return ConfigType.INT
    return ConfigType.LIST if isinstance(value, tuple) else ConfigType.STRING


@in_turns
def alter_configs(
    services: Services, request: administration.AlterConfigsRequest, asked: Asked
) -> Work[administration.AlterConfigsResponse]:
    """Change each resource by itself."""
    times = Counter((resource.resource_type, resource.name) for resource in request.resources)
    results = []
    for resource in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            if times[resource.resource_type, resource.name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{resource.name!r} is named twice")
            _check_kind(resource.resource_type)
            changed = _changed(services, resource, incremental=request.incremental)
            entries = _read(services, resource, changed)
            if not request.validate_only:
                services.cluster.set_configs(ConfigKey(resource.resource_type, resource.name), entries)
        except ProtocolError as error:
            code, message = error.code, error.message
        results.append(
            AlteredConfigs(
                resource_type=resource.resource_type,
                name=resource.name,
                error_code=code,
                error_message=message,
            )
        )
        yield CHANGE if code is ErrorCode.NONE else 10
    return administration.AlterConfigsResponse(resources=tuple(results))


def _check_kind(kind: int) -> None:
    if kind not in {ResourceType.TOPIC, ResourceType.GROUP}:
        message = (
            f"settings of {_kind_name(kind)} resources can't be changed here, only those of topics and groups"
        )
        if kind == ResourceType.BROKER:
            message += "; start the broker with other settings"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)


def _kind_name(kind: int) -> str:
    """Return the name of a resource's type, such as `broker logger`."""
    if kind not in _KINDS:
        return f"unknown ({kind})"
    return ResourceType(kind).name.lower().replace("_", " ")


def _read(services: Services, resource: ChangedResource, entries: Mapping[str, str]) -> Mapping[str, str]:
    """Return these settings as they are set on the resource.

    :raises ProtocolError: if there is no such resource, or a setting is wrong.
    """
    if resource.resource_type == ResourceType.TOPIC:
        if not resource.name:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(resource.name)
        read = read_topic_configs(entries, services.cluster.topic_defaults)
        services.cluster.find(resource.name, None)
        return read
    if not resource.name:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    try:
        config = GroupConfig.from_properties(entries, services.config)
    except FencepostError as error:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return {name: _text(getattr(config, name.replace(".", "_"))) for name in entries}


def _changed(services: Services, resource: ChangedResource, *, incremental: bool) -> dict[str, str]:
    """Return the settings of the resource after the changes.

    :raises ProtocolError: INVALID_REQUEST or INVALID_CONFIG for an invalid change.
    """
    if max(Counter(change.name for change in resource.changes).values(), default=1) > 1:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    given = [each for each in resource.changes if each.operation != ConfigOperation.DELETE]
    nulls = [each.name for each in given if each.value is None]
    if nulls:
        message = f"Null value not supported for : {','.join(nulls)}"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    before = services.cluster.configs_of(resource.resource_type, resource.name) if incremental else {}
    entries = dict(before)
    for change in resource.changes:
        match change.operation:
            case ConfigOperation.SET:
                entries[change.name] = change.value or ""
            case ConfigOperation.DELETE:
                entries.pop(change.name, None)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                entries[change.name] = _in_list(change, entries)
            case unknown:
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST, f"Unknown operation {unknown} of config {change.name}"
                )
    return entries


def _elements(value: str) -> list[str]:
    """Split the text as Java does: only empty elements at its end are left out."""
    return value.rstrip(",").split(",") if value.strip(",") or not value else []


def _in_list(change: ConfigChange, entries: Mapping[str, str]) -> str:
    """Return a list with more or fewer elements."""
    wanted = _elements(change.value or "")
    setting = TOPIC_SETTINGS.get(change.name)
    if setting is None or setting.config_type is not ConfigType.LIST:
        raise ProtocolError(
            ErrorCode.INVALID_CONFIG, f"Can't change {change.name} by elements: its type is not LIST"
        )
    present = [part for part in entries.get(change.name, setting.default).split(",") if part]
    if change.operation == ConfigOperation.APPEND:
        return ",".join([*present, *(part for part in wanted if part not in present)])
    return ",".join(part for part in present if part not in wanted)
