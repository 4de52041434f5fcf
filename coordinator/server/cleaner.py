"""Deletes and compacts records as the settings of topics demand, in slices between other work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import structlog

from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.cluster_records import ConfigKey
from fencepost.coordinator.protocol.slices import Sliced, at_once
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.coordinator.server.logs import PartitionLog
from fencepost.coordinator.server.loop import ServerClock
from fencepost.coordinator.server.turns import FairTurns, Share, WorkQueue

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
"""Between two rounds. Kafka looks for old segments each five minutes, and for keys when enough is new."""
_ACTING = frozenset({"retention.ms", "retention.bytes", "cleanup.policy"})


class Cleaner:
    """Cleans in rounds the logs of topics with retention or compaction; without such topics it sleeps."""

    def __init__(self, cluster: KafkaCluster, turns: FairTurns) -> None:
        self._cluster = cluster
        self._clock: ServerClock | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._work_queue = WorkQueue(turns)
        self._share = Share()
        self._is_cleaning = False
        self._acts_on_all = cluster.topic_defaults.inherits(_ACTING)
        """True if the broker's own settings limit what all topics keep."""

    def start(self, clock: ServerClock) -> None:
        """Start cleaning."""
        self._clock = clock
        self.settings_changed()

    def close(self) -> None:
        """Stop cleaning."""
        self._clock = None
        self._work_queue.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def settings_changed(self) -> None:
        """Perhaps there is something to do from now on."""
        if self._clock is None or self._timer is not None or self._is_cleaning:
            return
        if self._acts_on_all or any(map(self._acts, self._cluster.configs)):
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._start_round)

    def _start_round(self) -> None:
        self._timer, self._is_cleaning = None, True
        self._work_queue.run(self._round(), self._share)

    def _round(self) -> Sliced[None]:
        try:
            yield from self._cleaning()
        finally:
            self._is_cleaning = False
            self.settings_changed()

    def run(self) -> None:
        """Clean all logs now, without a pause."""
        at_once(self._cleaning())

    def _cleaning(self) -> Sliced[None]:
        """Run one round. A log that can't be cleaned is logged, and the others are still cleaned."""
        if self._clock is None:
            return
        now_ms = self._clock.now_ms()
        for topic, configs in self._configured():
            for partition, each in self._cluster.logs_of(topic):
                try:
                    yield from self._clean(topic, partition, each, configs, now_ms)
                except Exception as error:
                    # If one log has a problem, the others must still not grow forever.
                    log.warning("log_not_cleaned", topic=topic.name, partition=partition, reason=str(error))

    def _configured(self) -> list[tuple[Topic, Mapping[str, str]]]:
        topics = self._cluster.image.by_name
        if self._acts_on_all:
            return [
                (topic, self._cluster.configs_of(ResourceType.TOPIC, name)) for name, topic in topics.items()
            ]
        return [
            (topics[key.name], configs)
            for key, configs in self._cluster.configs.items()
            if self._acts(key) and key.name in topics
        ]

    def _acts(self, key: ConfigKey) -> bool:
        return key.resource_type == ResourceType.TOPIC and bool(_ACTING & self._cluster.configs[key].keys())

    def _clean(
        self, topic: Topic, partition: int, each: PartitionLog, configs: Mapping[str, str], now_ms: int
    ) -> Sliced[None]:
        if each.is_closed:
            return
        setting_of = partial(self._cluster.topic_defaults.setting_of, configs)
        policy = setting_of("cleanup.policy").split(",")
        if "delete" in policy:
            start = each.retained_from(
                now_ms,
                retention_ms=int(setting_of("retention.ms")),
                retention_bytes=int(setting_of("retention.bytes")),
            )
            if start > each.log_start_offset:
                self._cluster.delete_records(topic, partition, start)
        if "compact" in policy:
            unreadable = yield from each.compact(
                now_ms,
                min_lag_ms=int(setting_of("min.compaction.lag.ms")),
                delete_retention_ms=int(setting_of("delete.retention.ms")),
            )
            if unreadable:
                log.warning(
                    "batches_not_compacted", topic=topic.name, partition=partition, offsets=unreadable
                )
