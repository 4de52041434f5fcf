"""The cluster behind the endpoint: its topics, their logs, and the brokers that serve them."""

from __future__ import annotations

import base64
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fencepost.coordinator.config import ReplicaSelector
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.cluster import Node
from fencepost.coordinator.protocol.cluster_records import (
    ClusterKey,
    ClusterRecord,
    ClusterValue,
    ConfigKey,
    ConfigValue,
    LogStartKey,
    LogStartValue,
    ProducerIdsKey,
    ProducerIdsValue,
    TopicKey,
    TopicValue,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.logs import NO_REPLICA, OfTopic
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC, Topic, TopicsImage
from fencepost.coordinator.server.leaders import EPOCHS_OF_A_RESTART, NO_LEADER, Leadership, running
from fencepost.coordinator.server.listener_config import WILDCARDS
from fencepost.coordinator.server.logs import LogSettings, PartitionLog
from fencepost.coordinator.server.new_topics import check_partitions, check_topic_name, new_topic_id
from fencepost.coordinator.server.storage import Storage
from fencepost.coordinator.server.topic_configs import KAFKA_DEFAULTS, TopicDefaults

if TYPE_CHECKING:
    from fencepost.coordinator.server.offsets_topic import OffsetsTopic

MAX_CLUSTER_PARTITIONS = 100_000
"""The most partitions of all topics together that clients may bring a cluster to."""
PRODUCER_IDS_AT_ONCE = 1_000
"""Number of producer ids that are recorded together, as in Kafka: a restart leaves a gap."""


def _unified(name: str) -> str:
    """Return the name as metrics show it; names must differ in this form."""
    return name.replace(".", "_")


def _seen_from(local_host: str, node: Node) -> Node:
    """Return the broker with an address to tell: one that listens on all addresses has none of its own."""
    return msgspec.structs.replace(node, host=local_host) if node.host in WILDCARDS else node


class KafkaCluster:
    """Topics and logs, shared by all brokers of the cluster.

    `on_change` is called with the new image after each change of the topics. With a `storage`, the cluster is
    loaded from it, and changes are stored. `topic_defaults` are the settings that topics inherit.
    """

    def __init__(
        self, storage: Storage | None = None, topic_defaults: TopicDefaults = KAFKA_DEFAULTS
    ) -> None:
        self.topic_defaults = topic_defaults
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        self.nodes: tuple[Node, ...] = ()
        """All brokers, including stopped ones."""
        self.advertised: Mapping[str, tuple[Node, ...]] = {}
        """The brokers that advertise an address to the clients of a listener, by its name."""
        self.listener_settings: Mapping[int, Mapping[str, str]] = {}
        """The settings of each broker about its listeners, by Kafka's names."""
        self.stopped: frozenset[int] = frozenset()
        """The ids of the brokers that are stopped."""
        self.leader_changes = 0
        """The number of events so far that changed leaders: broker stops, starts, restarts, elections."""
        self.replica_selector: ReplicaSelector | None = None
        """The setting `replica.selector.class`."""
        self.image = TopicsImage()
        """The topics that clients have created."""
        self._offsets: OffsetsTopic | None = None
        self._offsets_topic: Topic | None = None
        self._shows_offsets = False
        self._with_offsets = self.image
        self._counted_of: TopicsImage | None = None
        self._partitions = 0
        """The number of partitions in the image that was counted last."""
        self._unified_of = self.image
        self._unified: dict[str, str] = {}
        """The topics of that image under their names with '_' in place of '.'."""
        self.on_change: Callable[[TopicsImage], None] = lambda image: None
        self.configs: dict[ConfigKey, Mapping[str, str]] = {}
        """The settings that were set on resources, by Kafka's names."""
        self.on_configs: Callable[[ConfigKey, Mapping[str, str]], None] = lambda key, entries: None
        """Called with the new settings of a resource."""
        self._storage = storage
        self._logs: dict[TopicId, dict[int, PartitionLog]] = {}
        self._log_starts: dict[LogStartKey, int] = {}
        self._created_at: dict[TopicId, int] = {}
        """The number of changes of leaders before each topic was created."""
        self._loaded_at = 0
        """The number of changes when the cluster was loaded."""
        self._leaderships: dict[TopicId, dict[int, Leadership]] = {}
        """The partitions that existed at the last change of leaders, and their state since then."""
        self._next_producer_id = 1
        self._producer_ids_end = 1
        """Ids from here on are on no record yet."""
        if storage is not None:
            self._load(storage)

    def _load(self, storage: Storage) -> None:
        topics: dict[TopicId, Topic] = {}
        version, created_at = 0, dict[TopicId, int]()
        for record in storage.cluster_records():
            match record:
                case ClusterRecord(ClusterKey(), ClusterValue(cluster_id, version, leader_changes)):
                    self.cluster_id, self.leader_changes = cluster_id, leader_changes + 1
                case ClusterRecord(TopicKey(topic_id), TopicValue() as value):
                    fields = msgspec.structs.asdict(value)
                    created_at[topic_id] = fields.pop("leader_changes")
                    topics[topic_id] = Topic(topic_id=topic_id, **fields)
                case ClusterRecord(TopicKey(topic_id), None):
                    topics.pop(topic_id, None)
                case ClusterRecord(ConfigKey() as key, ConfigValue(entries)):
                    self.configs[key] = entries
                case ClusterRecord(ConfigKey() as key, None):
                    self.configs.pop(key, None)
                case ClusterRecord(ProducerIdsKey(), ProducerIdsValue(next_block)):
                    self._next_producer_id = self._producer_ids_end = next_block
                case ClusterRecord(LogStartKey() as key, LogStartValue(offset)):
                    self._log_starts[key] = offset
                case ClusterRecord(LogStartKey() as key, None):
                    self._log_starts.pop(key, None)
        self.image = self._with_offsets = TopicsImage.of(topics.values(), version)
        self._restore_logs(storage)
        self._loaded_at, self._created_at = self.leader_changes, created_at
        self._lead_all()

    def _restore_logs(self, storage: Storage) -> None:
        topics = self.image.by_id
        for topic_id, partition, batch in storage.batches():
            if topic_id in topics:
                self.log(topics[topic_id], partition).restore(batch)

    def _lead_all(self) -> None:
        """Let records that are appended to loaded logs have a later epoch than all that are in them."""
        if self.leader_changes:
            self._write_cluster()
        for topic_id, logs in self._logs.items():
            for log in logs.values():
                log.lead(self._first_epoch(topic_id))

    def add_offsets_topic(self, offsets: OffsetsTopic) -> None:
        """Let coordinators know `__consumer_offsets`, and also clients after `show_offsets_topic`."""
        self._offsets, self._offsets_topic = offsets, offsets.topic
        self.offsets_led()

    def show_offsets_topic(self) -> None:
        """Let clients see `__consumer_offsets`. Kafka creates it when it is first needed."""
        self._shows_offsets = True

    def offsets_led(self) -> None:
        """Note that partitions of `__consumer_offsets` have other leaders."""
        topic = self._offsets_topic
        self._with_offsets = self.image if topic is None else self.image.beside(topic)

    @property
    def known(self) -> TopicsImage:
        """The topics that coordinators know."""
        return self._with_offsets

    @property
    def shown(self) -> TopicsImage:
        """The topics that clients see. It is another object whenever they may see something else."""
        return self._with_offsets if self._shows_offsets else self.image

    def check_own(self, topic: Topic, what: str) -> None:
        """Refuse what clients can't do to `__consumer_offsets`, which is the coordinators' journal.

        :raises ProtocolError: INVALID_TOPIC_EXCEPTION.
        """
        if topic is self._offsets_topic:
            raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{what} internal topic {topic.name}")

    def _write(self, *records: ClusterRecord) -> None:
        if self._storage is not None and records:
            self._storage.append(records)

    @property
    def log_folder(self) -> Path | None:
        """The folder whose disk keeps the logs; None if they are only in memory."""
        storage = self._storage
        return storage.folder if storage is not None and storage.keeps_records else None

    @property
    def controller_id(self) -> int:
        """The broker that administrators talk to."""
        return self.running[0].node_id

    @property
    def running(self) -> tuple[Node, ...]:
        """The brokers that are not stopped."""
        if not self.stopped:
            return self.nodes
        return tuple(node for node in self.nodes if node.node_id not in self.stopped)

    def running_from(self, node_id: int) -> int:
        """Return the broker itself if it runs, otherwise the next one that runs."""
        ids = [node.node_id for node in self.nodes]
        place = ids.index(node_id)
        return next(each for each in ids[place:] + ids[:place] if each not in self.stopped)

    def leadership(self, topic: Topic, partition: int) -> Leadership:
        """Return the leader of a partition, its epoch and its replicas."""
        if topic is self._offsets_topic and self._offsets is not None:
            return self._offsets.leadership(partition, self.replica_ids(topic, partition))
        changed = self._leaderships.get(topic.topic_id, {}).get(partition)
        if changed is not None:
            return changed
        replicas = self.replica_ids(topic, partition)
        return Leadership.first(replicas, self.stopped, self._first_epoch(topic.topic_id))

    def leader_id(self, topic: Topic, partition: int) -> int:
        """Return the broker that serves a partition; NO_LEADER if its in-sync replicas are all stopped."""
        if not self.leader_changes and topic is not self._offsets_topic:
            placed = self._placed(topic, partition)
            return placed[0] if placed else self.nodes[partition % len(self.nodes)].node_id
        return self.leadership(topic, partition).leader_id

    def leader_epoch(self, topic: Topic, partition: int) -> int:
        """Return the leader epoch of a partition, which rises with each change of its leader."""
        if topic is self._offsets_topic:
            return self.leadership(topic, partition).epoch
        if not self.leader_changes:
            return 0
        changed = self._leaderships.get(topic.topic_id, {}).get(partition)
        return self._first_epoch(topic.topic_id) if changed is None else changed.epoch

    def _first_epoch(self, topic_id: TopicId) -> int:
        """Return 0, or a higher epoch than any before the cluster was loaded."""
        created_at = self._created_at.get(topic_id, self._loaded_at)
        return EPOCHS_OF_A_RESTART * max(0, self._loaded_at - created_at)

    def in_sync_ids(self, topic: Topic, partition: int) -> tuple[int, ...]:
        """Return the in-sync replicas of a partition that run."""
        return running(self.leadership(topic, partition).in_sync, self.stopped)

    def stop_node(self, node_id: int) -> None:
        """Let other replicas lead the partitions of a broker. A partition without one has no leader."""
        self._change_leaders(lambda each: each.without(node_id))
        self.stopped |= {node_id}

    def start_node(self, node_id: int) -> None:
        """Let a stopped broker lead the partitions that only it can lead, and follow in the others."""
        self._change_leaders(lambda each: each.with_started(node_id, self.stopped))
        self.stopped -= {node_id}

    def keep_replicas(self) -> None:
        """Let replicas stay on their brokers when others are added: their places follow from the brokers."""
        self._change_leaders(lambda each: each)
        self._place_offsets(lambda replicas: replicas)

    def check_removable(self, node_id: int) -> None:
        """Refuse to lose records: those of partitions that only this broker, which is stopped, can lead.

        :raises ProtocolError: KAFKA_STORAGE_ERROR.
        """
        for topic in self.image.by_id.values() if node_id in self.stopped else ():
            for number in range(topic.partitions):
                state = self.leadership(topic, number)
                if state.leader_id == NO_LEADER and node_id in state.in_sync:
                    raise ProtocolError(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"broker {node_id} is stopped, and only it has all records of {topic.name}-{number}: "
                        "start it before, or delete the topic",
                    )

    def move_replicas_off(self, node_id: int) -> None:
        """Move each replica of a broker to a running one that has none of the partition, if there is one.

        If it led the partition, the next replica leads.
        """
        others = [each.node_id for each in self.running if each.node_id != node_id]
        turns = itertools.cycle(others)

        def moved(replicas: tuple[int, ...]) -> tuple[int, ...]:
            if node_id not in replicas:
                return replicas
            left = tuple(each for each in replicas if each != node_id)
            spare = (each for each in itertools.islice(turns, len(others)) if each not in left)
            return left + tuple(itertools.islice(spare, 1))

        self._change_leaders(
            lambda each: (
                each.placed_on(moved(each.replicas), self.stopped | {node_id})
                if node_id in each.replicas
                else each
            )
        )
        self._place_offsets(moved)

    def _place_offsets(self, place: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
        """Let the replicas of `__consumer_offsets` be on other brokers."""
        if self._offsets is None:
            return
        topic = self._offsets.topic
        placed = tuple(place(self.replica_ids(topic, number)) for number in range(topic.partitions))
        self._offsets.topic = self._offsets_topic = msgspec.structs.replace(topic, assignments=placed)
        self.offsets_led()

    def restart_nodes(self) -> None:
        """Give each partition the leader epoch that it has after all brokers were killed and started."""
        self._change_leaders(Leadership.restarted)

    def elect_preferred_leaders(self) -> None:
        """Let the first replica of each partition lead it, if it runs and has all records."""
        self._change_leaders(lambda each: each.preferred(self.stopped))

    def change_leader(
        self, topic: Topic, partition: int, change: Callable[[Leadership], Leadership]
    ) -> Leadership:
        """Change the leader or the in-sync replicas of one partition, and return its new state."""
        self._change_leaders(change, (topic.topic_id, partition))
        return self.leadership(topic, partition)

    def truncate(self, topic: Topic, partition: int, offset: int, leader_id: int) -> int:
        """Drop records as an unclean election does: a broker without them leads (KIP-320). Return the end.

        :raises ProtocolError: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE, or KAFKA_STORAGE_ERROR if the
            records are in a journal.
        """
        if self._storage is not None and self._storage.keeps_records:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "records in a journal can't be truncated")
        end = self.log(topic, partition).truncate(offset)
        self.change_leader(topic, partition, lambda each: each.moved_to(leader_id, alone=True))
        return end

    def _change_leaders(
        self, change: Callable[[Leadership], Leadership], only: tuple[TopicId, int] | None = None
    ) -> None:
        after: dict[TopicId, dict[int, Leadership]] = {}
        for topic in self.image.by_id.values():
            states = {number: self.leadership(topic, number) for number in range(topic.partitions)}
            after[topic.topic_id] = {
                number: change(state) if only in (None, (topic.topic_id, number)) else state
                for number, state in states.items()
            }
        self._leaderships = after
        self.leader_changes += 1
        self._write_cluster()
        for topic_id, states in after.items():
            for number, log in self._logs.get(topic_id, {}).items():
                log.lead(states[number].epoch)

    def preferred_read_replica(self, topic: Topic, partition: int, rack_id: str) -> int:
        """Return the follower that a client in `rack_id` shall fetch from; NO_REPLICA if it is the leader.

        All replicas in sync have the same records, so the highest id in the rack is taken. Kafka would take
        the one that caught up last.
        """
        if self.replica_selector is not ReplicaSelector.RACK_AWARE or not rack_id:
            return NO_REPLICA
        in_sync = self.in_sync_ids(topic, partition)
        in_rack = [node.node_id for node in self.nodes if node.node_id in in_sync and node.rack == rack_id]
        return max(in_rack) if in_rack and self.leader_id(topic, partition) not in in_rack else NO_REPLICA

    def replica_ids(self, topic: Topic, partition: int) -> tuple[int, ...]:
        """Return the brokers of a partition's replicas, the preferred leader first.

        There may be fewer brokers than when the topic was created.
        """
        state = self._leaderships.get(topic.topic_id, {}).get(partition)
        if state is not None:
            return state.replicas
        return self._placed(topic, partition) or tuple(
            self.nodes[(partition + nth) % len(self.nodes)].node_id
            for nth in range(min(topic.replicas, len(self.nodes)))
        )

    def _placed(self, topic: Topic, partition: int) -> tuple[int, ...]:
        """Return the brokers on which a partition was placed by request, without those that do not exist
        here."""
        if partition >= len(topic.assignments):
            return ()
        known = {node.node_id for node in self.nodes}
        return tuple(node_id for node_id in topic.assignments[partition] if node_id in known)

    def _advertised(self, listener_name: str) -> tuple[Node, ...]:
        return self.advertised.get(listener_name, self.nodes)

    def nodes_seen_from(self, listener_name: str, local_host: str) -> tuple[Node, ...]:
        """Return the running brokers under the addresses for a listener's client that is connected to
        `local_host`."""
        return tuple(
            _seen_from(local_host, node)
            for node in self._advertised(listener_name)
            if node.node_id not in self.stopped
        )

    def node_seen_from(self, listener_name: str, local_host: str, node_id: int) -> Node | None:
        """Return one broker under such an address; None if it advertises none for this listener."""
        return next(
            (
                _seen_from(local_host, node)
                for node in self._advertised(listener_name)
                if node.node_id == node_id
            ),
            None,
        )

    def advertises(self, listener_name: str, node_id: int) -> bool:
        """Return true if the clients of a listener receive an address of this broker."""
        advertised = self._advertised(listener_name)
        return len(advertised) == len(self.nodes) or any(node.node_id == node_id for node in advertised)

    def next_producer_id(self) -> int:
        """Return a fresh producer id."""
        if self._next_producer_id >= self._producer_ids_end:
            self._producer_ids_end = self._next_producer_id + PRODUCER_IDS_AT_ONCE
            self._write(ClusterRecord(ProducerIdsKey(), ProducerIdsValue(self._producer_ids_end)))
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def create_topics(
        self, topics: Mapping[str, int], configs: Mapping[str, str] | None = None, *, replicas: int = 1
    ) -> tuple[Topic, ...]:
        """Create topics with these numbers of partitions and these settings; all of them, or none.

        :raises ProtocolError: INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS or TOPIC_ALREADY_EXISTS.
        """
        for name, partitions in topics.items():
            self.check_new_name(name)
            check_partitions(partitions)
        return self.add_topics(topics, configs, replicas=replicas)

    def check_new_name(self, name: str) -> None:
        """Refuse the name of a topic that there is, or that differs from one in '.' for '_' only.

        :raises ProtocolError: INVALID_TOPIC_EXCEPTION or TOPIC_ALREADY_EXISTS.
        """
        check_topic_name(name)
        if name in self._with_offsets.by_name:
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if "." in name or "_" in name:
            if self._unified_of is not self.image:
                self._unified_of = self.image
                self._unified = {_unified(other): other for other in reversed(tuple(self.image.by_name))}
            if (other := self._unified.get(_unified(name))) is not None:
                raise ProtocolError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"Topic '{name}' collides with existing topic: {other}",
                )

    def check_room(self, partitions: int) -> None:
        """Refuse new partitions if the cluster would have too many.

        :raises ProtocolError: POLICY_VIOLATION.
        """
        if self._counted_of is not self.image:
            self._counted_of = self.image
            self._partitions = sum(topic.partitions for topic in self.image.by_name.values())
        present = self._partitions
        if present + partitions > MAX_CLUSTER_PARTITIONS:
            raise ProtocolError(
                ErrorCode.POLICY_VIOLATION,
                f"{present} partitions exist and {partitions} would be added, expected at most "
                f"{MAX_CLUSTER_PARTITIONS} in all (MAX_CLUSTER_PARTITIONS): delete topics, or ask for fewer",
            )

    def add_topics(
        self, topics: Mapping[str, int], configs: Mapping[str, str] | None = None, *, replicas: int = 1
    ) -> tuple[Topic, ...]:
        """Create topics that were checked.

        Clients see `replicas` replicas of each partition; there is one log.
        """
        created = tuple(
            Topic(topic_id=new_topic_id(), name=name, partitions=partitions, replicas=replicas)
            for name, partitions in topics.items()
        )
        self.add(created, dict.fromkeys(topics, configs) if configs else {})
        return created

    def add(self, topics: Sequence[Topic], configs: Mapping[str, Mapping[str, str]]) -> None:
        """Create topics that were checked, in one change; `configs` has their settings by name."""
        for name, entries in configs.items():
            if entries:
                self.set_configs(ConfigKey(ResourceType.TOPIC, name), entries)
        if topics:
            self._change(TopicsImage.of([*self.image.by_name.values(), *topics], self.image.version + 1))

    def have_topics(self, topics: Mapping[str, int], *, replicas: int = 1) -> None:
        """Create the topics that there are not, and give those that there are as many partitions.

        :raises ProtocolError: as `create_topics`, and INVALID_PARTITIONS for one that has more.
        """
        known = self.image.by_name
        missing = {name: count for name, count in topics.items() if name not in known}
        self.create_topics(missing, replicas=replicas)
        for name, count in topics.items():
            if name in known and known[name].partitions != count:
                self.grow_topic(known[name], count)

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic with its records."""
        logs = self._logs.pop(topic.topic_id, {})
        self._leaderships.pop(topic.topic_id, None)
        self._created_at.pop(topic.topic_id, None)
        self.set_configs(ConfigKey(ResourceType.TOPIC, topic.name), {})
        self._change(self.image.without(topic.name))
        if self._storage is not None:
            for partition, log in logs.items():
                self._write(ClusterRecord(LogStartKey(topic.topic_id, partition), None))
                self._storage.drop_batches(topic.topic_id, partition, log.high_watermark)
        for log in logs.values():
            log.close()

    def configs_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Return the settings that were set on a resource."""
        configs = self.configs.get(ConfigKey(resource_type, name), {})
        if name == OFFSETS_TOPIC and resource_type == ResourceType.TOPIC and self._offsets is not None:
            return {**self._offsets.configs, **configs}
        return configs

    def set_configs(self, key: ConfigKey, entries: Mapping[str, str]) -> None:
        """Let exactly these settings be set on a resource; they were checked."""
        if entries == self.configs.get(key, {}):
            return
        if entries:
            self.configs[key] = entries
        else:
            del self.configs[key]
        self._write(ClusterRecord(key, ConfigValue(dict(entries)) if entries else None))
        topic = self.image.by_name.get(key.name) if key.resource_type == ResourceType.TOPIC else None
        for log in self._logs.get(topic.topic_id, {}).values() if topic is not None else ():
            log.settings = self._log_settings(key.name)
        self.on_configs(key, entries)

    def _log_settings(self, topic: str) -> LogSettings:
        setting_of = partial(self.topic_defaults.setting_of, self.configs_of(ResourceType.TOPIC, topic))
        return LogSettings(
            max_batch_bytes=int(setting_of("max.message.bytes")),
            stamps=setting_of("message.timestamp.type") == "LogAppendTime",
            compacts="compact" in setting_of("cleanup.policy").split(","),
            before_max_ms=int(setting_of("message.timestamp.before.max.ms")),
            after_max_ms=int(setting_of("message.timestamp.after.max.ms")),
            min_in_sync=int(setting_of("min.insync.replicas")),
        )

    def only_compacts(self, topic: Topic) -> bool:
        """Return true if records of a topic go only when later ones have their keys."""
        configs = self.configs_of(ResourceType.TOPIC, topic.name)
        return self.topic_defaults.setting_of(configs, "cleanup.policy").strip() == "compact"

    def logs_of(self, topic: Topic) -> list[tuple[int, PartitionLog]]:
        """Return the logs of a topic's partitions that exist already, by their numbers."""
        return sorted(self._logs.get(topic.topic_id, {}).items())

    def delete_records(self, topic: Topic, partition: int, offset: int) -> int:
        """Move the start of a log to an offset, -1 for its end; return the new start.

        :raises ProtocolError: UNKNOWN_TOPIC_OR_PARTITION or OFFSET_OUT_OF_RANGE.
        """
        log = self.log(topic, partition)
        first_kept = log.delete_records(offset)
        start = log.log_start_offset
        self._write(ClusterRecord(LogStartKey(topic.topic_id, partition), LogStartValue(start)))
        if self._storage is not None:
            self._storage.drop_batches(topic.topic_id, partition, first_kept)
        return start

    def check_growth(self, topic: Topic, partitions: int) -> None:
        """Refuse a partition count that is not larger.

        :raises ProtocolError: INVALID_PARTITIONS, or as `check_own`.
        """
        self.check_own(topic, "Cannot add partitions to")
        if partitions == topic.partitions:
            raise ProtocolError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {partitions} partition(s).")
        if partitions < topic.partitions:
            raise ProtocolError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {topic.partitions} partition(s); {partitions} would "
                "not be an increase.",
            )
        check_partitions(partitions)

    def grow_topic(
        self, topic: Topic, partitions: int, assignments: tuple[tuple[int, ...], ...] = ()
    ) -> None:
        """Give a topic more partitions, on these brokers if they are placed manually.

        :raises ProtocolError: INVALID_PARTITIONS, unless there are more than before.
        """
        self.check_growth(topic, partitions)
        placed = topic.assignments
        if assignments:
            placed += ((),) * (topic.partitions - len(placed)) + assignments
        self._change(
            self.image.with_topic(msgspec.structs.replace(topic, partitions=partitions, assignments=placed))
        )

    def _change(self, image: TopicsImage) -> None:
        before, self.image = self.image, image
        self.offsets_led()
        for topic_id in image.by_id:
            self._created_at.setdefault(topic_id, self.leader_changes)
        gone = (
            ClusterRecord(TopicKey(topic_id), None)
            for topic_id in before.by_id
            if topic_id not in image.by_id
        )
        new = (
            ClusterRecord(
                TopicKey(topic.topic_id),
                TopicValue(
                    topic.name,
                    topic.partitions,
                    topic.replicas,
                    topic.assignments,
                    self._created_at[topic.topic_id],
                ),
            )
            for topic in image.by_id.values()
            if before.by_id.get(topic.topic_id) != topic
        )
        self._write_cluster(*gone, *new)
        self.on_change(self.known)

    def _write_cluster(self, *records: ClusterRecord) -> None:
        value = ClusterValue(self.cluster_id, self.image.version, self.leader_changes)
        self._write(ClusterRecord(ClusterKey(), value), *records)

    def name_of(self, topic_id: TopicId) -> str | None:
        """Return the name of the topic with that id, if there is one."""
        return self.shown.name_of(topic_id)

    def topic_of(self, reference: OfTopic[Any]) -> Topic:
        """Return the topic that a request means.

        :raises ProtocolError: UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self.find(reference.name, reference.topic_id)

    def find(self, name: str | None, topic_id: TopicId | None) -> Topic:
        """Return the topic of that name, or of that id when there is no name.

        :raises ProtocolError: UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION.
        """
        if name is not None:
            topic = self.shown.by_name.get(name)
            if topic is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            return topic
        topic = None if topic_id is None else self.shown.by_id.get(topic_id)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
        return topic

    def check_partition(self, topic: Topic, partition: int) -> None:
        """Refuse a partition that the topic does not have.

        :raises ProtocolError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        if not 0 <= partition < topic.partitions:
            raise ProtocolError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic.name!r} has {topic.partitions} partitions, not one numbered {partition}",
            )

    def log(self, topic: Topic, partition: int) -> PartitionLog:
        """Return the log of one partition, which is created on first use.

        :raises ProtocolError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        logs = self._logs.setdefault(topic.topic_id, {})
        log = logs.get(partition)
        if log is None:
            self.check_partition(topic, partition)
            start = self._log_starts.get(LogStartKey(topic.topic_id, partition), 0)
            log = logs[partition] = PartitionLog(self.leader_epoch(topic, partition), start=start)
            log.settings = self._log_settings(topic.name)
            if topic is self._offsets_topic and self._offsets is not None:
                self._offsets.fill(partition, log)
            elif self._storage is not None and self._storage.keeps_records:
                log.on_append = partial(self._storage.append_batch, topic.topic_id, partition)
        return log
