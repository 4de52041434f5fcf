"""Configuration under Kafka's names, with Kafka 4.3's defaults, ranges and rules between settings.

A field's name is the property's with underscores: `group.consumer.session.timeout.ms` is
`group_consumer_session_timeout_ms`. A field's annotation holds its allowed range. Some settings exist so
that a file written for a broker is accepted: those of the broker's threads have no counterpart in a
coordinator that does no I/O.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion

INT32_MAX = 2**31 - 1

CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Session length of a classic member that still waits in its first join; Kafka has no setting for it."""

Positive = Annotated[int, Meta(ge=1, le=INT32_MAX)]
NotNegative = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Int32 = Annotated[int, Meta(ge=-INT32_MAX - 1, le=INT32_MAX)]

Settings = TypeVar("Settings", bound=msgspec.Struct)


class ConsumerGroupMigrationPolicy(enum.StrEnum):
    """The online conversions between classic and consumer groups that are allowed (KIP-848, Migration)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"


class ReleaseVersion(enum.StrEnum):
    """A release of Kafka whose rules differ from those of the one before, as `kafka-storage` takes it."""

    V4_3 = "4.3"
    V4_4 = "4.4"
    """A change of the preferred assignor raises a consumer group's epoch (KAFKA-20434), and one that has lost
    its last member needs no other target (KAFKA-20442)."""


RELEASE_VERSION = "release.version"
"""A setting that is no property of Kafka's: there it is the code that runs."""


class GroupCoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a broker for groups, offsets and transactions; their names give the units.

    :raises FencepostError: on construction, if a value is out of its range or two contradict each other.
    """

    group_consumer_session_timeout_ms: Positive = 45_000
    group_consumer_min_session_timeout_ms: Positive = 45_000
    group_consumer_max_session_timeout_ms: Positive = 60_000
    group_consumer_heartbeat_interval_ms: Positive = 5_000
    group_consumer_min_heartbeat_interval_ms: Positive = 5_000
    group_consumer_max_heartbeat_interval_ms: Positive = 15_000
    group_consumer_max_size: Positive = INT32_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Names of registered assignors; the first is used when no member asks for one."""
    group_consumer_migration_policy: ConsumerGroupMigrationPolicy = ConsumerGroupMigrationPolicy.BIDIRECTIONAL
    group_consumer_assignment_interval_ms: NotNegative = 1_000
    """Least time between two targets of a group (KIP-1263); 0 computes one on each change."""
    group_consumer_min_assignment_interval_ms: NotNegative = 0
    group_consumer_max_assignment_interval_ms: NotNegative = 15_000
    group_consumer_assignor_offload_enable: bool = True
    group_consumer_regex_refresh_interval_ms: Annotated[int, Meta(ge=10_000, le=INT32_MAX)] = 600_000

    group_streams_session_timeout_ms: Positive = 45_000
    group_streams_min_session_timeout_ms: Positive = 45_000
    group_streams_max_session_timeout_ms: Positive = 60_000
    group_streams_heartbeat_interval_ms: Positive = 5_000
    group_streams_min_heartbeat_interval_ms: Positive = 5_000
    group_streams_max_heartbeat_interval_ms: Positive = 15_000
    group_streams_max_size: Positive = INT32_MAX
    group_streams_num_standby_replicas: NotNegative = 0
    group_streams_max_standby_replicas: NotNegative = 2
    group_streams_initial_rebalance_delay_ms: NotNegative = 3_000
    """Time that a group without members waits for more members after the first one, in ms; 0 does not wait.
    """
    group_streams_assignment_interval_ms: NotNegative = 1_000
    group_streams_min_assignment_interval_ms: NotNegative = 0
    group_streams_max_assignment_interval_ms: NotNegative = 15_000

    group_coordinator_rebalance_protocols: tuple[str, ...] = ("classic", "consumer", "streams")
    group_coordinator_threads: Positive = 4
    group_coordinator_background_threads: Positive = 2
    group_coordinator_append_linger_ms: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = -1
    """-1 writes as soon as no more work waits."""
    group_coordinator_cached_buffer_max_bytes: Annotated[int, Meta(ge=512 * 1024, le=INT32_MAX)] = 1_048_588

    group_min_session_timeout_ms: Int32 = 6_000
    group_max_session_timeout_ms: Int32 = 1_800_000
    group_initial_rebalance_delay_ms: Int32 = 3_000
    group_max_size: Positive = INT32_MAX

    offset_metadata_max_bytes: Int32 = 4_096
    offsets_retention_minutes: Positive = 10_080
    offsets_retention_check_interval_ms: Annotated[int, Meta(ge=1)] = 600_000
    offsets_commit_timeout_ms: Positive = 5_000
    offsets_load_buffer_size: Positive = 5_242_880
    offsets_topic_num_partitions: Positive = 50
    offsets_topic_replication_factor: Annotated[int, Meta(ge=1, le=2**15 - 1)] = 3
    offsets_topic_segment_bytes: Positive = 104_857_600
    offsets_topic_compression_codec: Annotated[int, Meta(ge=0, le=4)] = 0

    transaction_max_timeout_ms: Positive = 900_000
    transactional_id_expiration_ms: Positive = 604_800_000

    release_version: ReleaseVersion = ReleaseVersion.V4_3
    """The Kafka release whose rules apply."""

    def __post_init__(self) -> None:
        _check_ranges(self)
        for kind in _KINDS:
            for middle in _BOUNDED:
                _check_between(self, kind, middle)
            session_ms = getattr(self, f"group_{kind}_session_timeout_ms")
            heartbeat_ms = getattr(self, f"group_{kind}_heartbeat_interval_ms")
            if heartbeat_ms >= session_ms:
                raise FencepostError(
                    f"group.{kind}.heartbeat.interval.ms {heartbeat_ms} must be less than"
                    f" group.{kind}.session.timeout.ms {session_ms}"
                )
        if self.group_streams_num_standby_replicas > self.group_streams_max_standby_replicas:
            raise FencepostError(
                f"group.streams.num.standby.replicas {self.group_streams_num_standby_replicas} must be at"
                f" most group.streams.max.standby.replicas {self.group_streams_max_standby_replicas}"
            )
        _check_names("group.consumer.assignors", self.group_consumer_assignors)
        protocols = self.group_coordinator_rebalance_protocols
        _check_names("group.coordinator.rebalance.protocols", protocols)
        if unknown := [name for name in protocols if name not in _PROTOCOLS]:
            raise FencepostError(
                f"group.coordinator.rebalance.protocols: {unknown[0]!r} is not one of {', '.join(_PROTOCOLS)}"
            )
        if "classic" not in protocols:
            raise FencepostError("group.coordinator.rebalance.protocols must hold 'classic'")

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> GroupCoordinatorConfig:
        """Return the configuration that a broker's properties describe; values are text or already typed.

        :raises FencepostError: for a name that does not exist, a value of the wrong type, one out of its
            range, or values that contradict each other.
        """
        return _from_properties(cls, properties)

    def properties(self) -> dict[str, bool | int | str]:
        """Return all of it under Kafka's names, as `from_properties` reads it."""
        return {
            setting.name: ",".join(value) if isinstance(value := getattr(self, field), tuple) else value
            for field, setting in _settings(type(self)).items()
        }

    @property
    def offsets_retention_ms(self) -> int:
        """Time that a committed offset is kept, in ms."""
        return self.offsets_retention_minutes * 60_000


_KINDS = ("consumer", "streams")
_BOUNDED = ("session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms")
"""Settings of groups of either kind that have a least and a greatest value of their own."""
_PROTOCOLS = ("classic", "consumer", "share", "streams")


class NewTopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's properties about creating and deleting topics.

    :raises FencepostError: on construction, if a value is out of its range.
    """

    auto_create_topics_enable: bool = True
    num_partitions: Positive = 1
    default_replication_factor: Annotated[int, Meta(ge=1, le=2**15 - 1)] = 1
    delete_topic_enable: bool = True
    auto_create_topics_retry_enable: bool = False
    """True if the Metadata request that creates a topic gets UNKNOWN_TOPIC_OR_PARTITION, as in Kafka.

    The next request gets the partitions. If it is False, the first one gets them already.
    """

    def __post_init__(self) -> None:
        _check_ranges(self)

    @classmethod
    def taken_from(cls, properties: dict[str, Any]) -> NewTopicConfig:
        """Remove these settings from `properties` and return them. By default no topic is created on demand.

        :raises FencepostError: for a value of the wrong type, or one out of its range.
        """
        found = {name: properties.pop(name) for name in setting_names(cls) if name in properties}
        return _from_properties(cls, {"auto.create.topics.enable": False, **found})


class AuthorizerClass(enum.StrEnum):
    """The class of Kafka that decides what clients may do."""

    NONE = ""
    STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class SecurityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's properties about the rights of clients."""

    authorizer_class_name: AuthorizerClass = AuthorizerClass.NONE
    super_users: str = ""
    """Principals, separated by semicolons: `User:admin;User:carol`."""
    allow_everyone_if_no_acl_found: bool = True
    """True if a resource without an ACL is open to all clients. Kafka's default is false."""
    connections_max_reauth_ms: NotNegative = 0
    """Time after which clients must log in again on their connections; 0 stands for never (KIP-368)."""

    def __post_init__(self) -> None:
        _check_ranges(self)

    @classmethod
    def taken_from(cls, properties: dict[str, Any]) -> SecurityConfig:
        """Remove these settings from `properties` and return them.

        :raises FencepostError: for a value of the wrong type.
        """
        found = {name: properties.pop(name) for name in setting_names(cls) if name in properties}
        return _from_properties(cls, found)


class ReplicaSelector(enum.StrEnum):
    """The classes of Kafka that choose the replica that a consumer fetches from (KIP-392)."""

    LEADER = "org.apache.kafka.common.replica.LeaderSelector"
    RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class SecurityProtocol(enum.Enum):
    """The protocol between clients and a listener: with TLS, a login, both or neither."""

    PLAINTEXT = (False, False)
    SSL = (False, True)
    SASL_PLAINTEXT = (True, False)
    SASL_SSL = (True, True)

    @classmethod
    def of(cls, *, has_login: bool, has_tls: bool) -> SecurityProtocol:
        """Return the protocol with these two properties."""
        return cls((has_login, has_tls))

    @property
    def has_login(self) -> bool:
        """True if clients must log in."""
        return self.value[0]

    @property
    def has_tls(self) -> bool:
        """True if clients must speak TLS."""
        return self.value[1]


BROKER_RACK = "broker.rack"
REPLICA_SELECTOR = "replica.selector.class"


def replica_selector_from(properties: dict[str, Any]) -> ReplicaSelector | None:
    """Return the value of `replica.selector.class` in these properties, and remove it from them.

    :raises FencepostError: for a class that is not one of Kafka's.
    """
    value = properties.pop(REPLICA_SELECTOR, None)
    if value is None:
        return None
    text = str(value).strip()
    found = next((each for each in ReplicaSelector if each == text), None)
    if found is None:
        expected = " or ".join(ReplicaSelector)
        raise FencepostError(f"{REPLICA_SELECTOR}: {value!r} is unknown, expected {expected}")
    return found


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one group, made of its own configuration and the broker's."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


OfGroup = TypeVar("OfGroup", bound=GroupSettings)


class ConsumerGroupSettings(GroupSettings, frozen=True, kw_only=True):
    """The settings of a consumer group."""

    assignor_offload_enable: bool


class StreamsGroupSettings(GroupSettings, frozen=True, kw_only=True):
    """The settings of a streams group."""

    num_standby_replicas: int
    initial_rebalance_delay_ms: int


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The dynamic configuration of one group (resource type GROUP). The broker's value applies to fields that
    are None.

    :raises FencepostError: on construction, if a value is out of its range.
    """

    consumer_session_timeout_ms: Positive | None = None
    consumer_heartbeat_interval_ms: Positive | None = None
    consumer_assignment_interval_ms: NotNegative | None = None
    consumer_assignor_offload_enable: bool | None = None
    streams_session_timeout_ms: Positive | None = None
    streams_heartbeat_interval_ms: Positive | None = None
    streams_assignment_interval_ms: NotNegative | None = None
    streams_num_standby_replicas: NotNegative | None = None
    streams_initial_rebalance_delay_ms: NotNegative | None = None

    def __post_init__(self) -> None:
        _check_ranges(self)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], broker: GroupCoordinatorConfig) -> GroupConfig:
        """Return a group's configuration as AlterConfigs would take it: within the broker's bounds.

        :raises FencepostError: for an unknown name, a wrong type, or a value the broker's bounds exclude.
        """
        config = _from_properties(cls, properties)
        for field in cls.__struct_fields__:
            value, bounds = getattr(config, field), _bounds(broker, field)
            if value is not None and bounds is not None and not bounds[0] <= value <= bounds[1]:
                raise FencepostError(
                    f"{_dotted(field)}: {value} is out of range, the broker allows {bounds[0]} to {bounds[1]}"
                )
        for kind in _KINDS:
            session_ms = config._value(broker, f"{kind}_session_timeout_ms")
            heartbeat_ms = config._value(broker, f"{kind}_heartbeat_interval_ms")
            if heartbeat_ms >= session_ms:
                raise FencepostError(
                    f"{kind}.heartbeat.interval.ms {heartbeat_ms} must be less than"
                    f" {kind}.session.timeout.ms {session_ms}"
                )
        return config

    @classmethod
    def from_record(cls, properties: Mapping[str, object]) -> GroupConfig:
        """Return a configuration that was accepted before, perhaps within other bounds.

        :raises FencepostError: for an unknown name or a wrong type.
        """
        return _from_properties(cls, properties)

    def settings(self, broker: GroupCoordinatorConfig) -> ConsumerGroupSettings:
        """Return the group's settings. A value that the broker's current bounds exclude is moved to the
        bound."""
        return self._settings(broker, "consumer", ConsumerGroupSettings)

    def streams_settings(self, broker: GroupCoordinatorConfig) -> StreamsGroupSettings:
        """Return the same, for a streams group."""
        return self._settings(broker, "streams", StreamsGroupSettings)

    def _settings(self, broker: GroupCoordinatorConfig, kind: str, of: type[OfGroup]) -> OfGroup:
        return of(**{name: self._value(broker, f"{kind}_{name}") for name in of.__struct_fields__})

    def _value(self, broker: GroupCoordinatorConfig, field: str) -> Any:
        """Return the group's value or the broker's, within the broker's bounds."""
        value = getattr(self, field)
        if value is None:
            value = getattr(broker, f"group_{field}")
        bounds = _bounds(broker, field)
        return value if bounds is None else max(bounds[0], min(value, bounds[1]))


class SettingsByGroup(Generic[OfGroup]):
    """The settings of each group. `settings_of` makes them from a group's configuration, which most groups
    lack."""

    __slots__ = ("_default", "_own", "_settings_of")

    def __init__(self, settings_of: Callable[[GroupConfig], OfGroup]) -> None:
        self._settings_of = settings_of
        self._own: dict[str, OfGroup] = {}
        self._default: OfGroup | None = None
        """Made on first use, as many coordinators only load."""

    def configure(self, group_id: str, config: GroupConfig | None) -> None:
        """Set the configuration of a group, or remove it with None."""
        if config is None:
            self._own.pop(group_id, None)
        else:
            self._own[group_id] = self._settings_of(config)

    def of(self, group_id: str) -> OfGroup:
        """Return the settings of a group."""
        found = self._own.get(group_id) or self._default
        if found is None:
            found = self._default = self._settings_of(GroupConfig())
        return found


def _bounds(broker: GroupCoordinatorConfig, field: str) -> tuple[int, int] | None:
    """Return the least and the greatest value that the broker allows in a field of `GroupConfig`."""
    if field == "streams_num_standby_replicas":
        return 0, broker.group_streams_max_standby_replicas
    kind, _, name = field.partition("_")
    if name not in _BOUNDED:
        return None
    return getattr(broker, f"group_{kind}_min_{name}"), getattr(broker, f"group_{kind}_max_{name}")


def _check_between(config: GroupCoordinatorConfig, kind: str, field: str) -> None:
    value: int = getattr(config, f"group_{kind}_{field}")
    low, high = getattr(config, f"group_{kind}_min_{field}"), getattr(config, f"group_{kind}_max_{field}")
    name = _dotted(field)
    if low > high:
        raise FencepostError(f"group.{kind}.max.{name} {high} must be at least group.{kind}.min.{name} {low}")
    if not low <= value <= high:
        raise FencepostError(
            f"group.{kind}.{name}: {value} is out of range, allowed are {low} to {high}"
            f" (group.{kind}.min.{name}, group.{kind}.max.{name})"
        )


def _check_names(name: str, values: Sequence[str]) -> None:
    if not values or not all(value.strip() for value in values):
        raise FencepostError(f"{name} must name at least one, and no name may be blank")
    if len(set(values)) != len(values):
        raise FencepostError(f"{name} names one of {', '.join(values)} twice")


class _Setting(msgspec.Struct, frozen=True):
    name: str
    type: Any
    low: int | None
    high: int | None

    def check(self, value: int) -> None:
        low, high = self.low, self.high
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = f"at least {low}" if high is None or high == INT32_MAX else f"{low} to {high}"
            raise FencepostError(f"{self.name}: {value} is out of range, allowed is {allowed}")

    def parse(self, value: object) -> object:
        """Return the value in its type; text is read as Kafka reads it, without spaces at its ends."""
        text = value.strip() if isinstance(value, str) else value
        found: object
        if self.type is bool:
            found = text if isinstance(text, bool) else _BOOLEANS.get(str(text).lower())
        elif self.type is int:
            found = _integer(text)
        elif get_origin(self.type) is tuple:
            found = _names(text)
        elif self.type is str:
            found = str(text)
        else:
            found = next((option for option in self.type if option.lower() == str(text).lower()), None)
        if found is None:
            raise FencepostError(f"{self.name}: {value!r} is not {self._expected()}")
        if type(found) is int:
            self.check(found)
        return found

    def _expected(self) -> str:
        if self.type is bool:
            return "true or false"
        if self.type is int:
            return "a whole number"
        if get_origin(self.type) is tuple:
            return "a list of names separated by commas"
        return f"one of {', '.join(filter(None, self.type))}"


_BOOLEANS = {"true": True, "false": False}


def _integer(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.removeprefix("-").removeprefix("+").isdecimal() and value.isascii():
        with contextlib.suppress(ValueError):  # Python refuses to convert thousands of digits
            return int(value)
    return None


def _names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",")) if value else ()
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        return tuple(value)
    return None


@cache
def _settings(cls: type[msgspec.Struct]) -> dict[str, _Setting]:
    """Return the settings of a configuration by field, read off its annotations."""
    found = {}
    for field, annotation in get_type_hints(cls, include_extras=True).items():
        options = [arg for arg in get_args(annotation) if arg is not type(None)]
        optional = type(None) in get_args(annotation)
        kind = options[0] if optional else annotation
        meta: Meta | None = None
        if get_origin(kind) is Annotated:
            kind, meta = get_args(kind)
        found[field] = _Setting(
            _dotted(field),
            kind,
            None if meta is None else _whole(meta.ge),
            None if meta is None else _whole(meta.le),
        )
    return found


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def setting_names(cls: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of a configuration's settings, as Kafka writes them."""
    return tuple(setting.name for setting in _settings(cls).values())


def unknown_setting(name: str, known: Iterable[str]) -> FencepostError:
    """Return the error for a setting that does not exist, with the name that is nearest to it."""
    names = list(known)
    hint = suggestion(name, names, f"known are {', '.join(names)}")
    return FencepostError(f"unknown configuration {name!r}; {hint}")


def _check_ranges(config: msgspec.Struct) -> None:
    for field, setting in _settings(type(config)).items():
        value = getattr(config, field)
        if type(value) is int:
            setting.check(value)


def _from_properties(cls: type[Settings], properties: Mapping[str, object]) -> Settings:
    settings = {setting.name: (field, setting) for field, setting in _settings(cls).items()}
    values = {}
    for name, value in properties.items():
        if name not in settings:
            raise unknown_setting(name, settings)
        field, setting = settings[name]
        values[field] = setting.parse(value)
    return cls(**values)


def _dotted(field: str) -> str:
    return field.replace("_", ".")


NO_NEW_TOPICS = NewTopicConfig(auto_create_topics_enable=False)
"""No topic is created on demand."""
NO_AUTHORIZER = SecurityConfig()
"""All clients may do everything."""
