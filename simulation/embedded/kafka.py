"""`EmbeddedKafka`: brokers on ports of this process, in a thread of their own, for a test to drive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from fencepost.coordinator.codec.releases import max_versions
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.server.new_topics import MAX_PARTITIONS
from fencepost.simulation.embedded.controls import BlockingControls
from fencepost.simulation.embedded.groups import AsyncGroup, Group
from fencepost.simulation.embedded.lifecycle import Embedded
from fencepost.simulation.embedded.settings import (
    LOOPBACK,
    Config,
    Tls,
    address,
    broker_count,
    config_of,
    flag,
    ports_of,
    racks_of,
    tls_of,
    topics_of,
    trace_topic_of,
    users_of,
    whole,
)
from fencepost.simulation.embedded.thread import LoopThread, on_loop

if TYPE_CHECKING:
    from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint, JournalLike
    from fencepost.simulation.embedded.tracing import TopicTracing


class EmbeddedKafka(BlockingControls[Group], Embedded["EmbeddedEndpoint", "AsyncEmbeddedKafka"]):
    """A Kafka in this process, for any client: up in milliseconds, and driven by the test.

        with EmbeddedKafka(topics={"orders": 12}) as kafka:
            consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, ...})
            ...
            kafka.group("g").wait_stable(members=1)

    With `async with`, waiting is awaited: `await kafka.group("g").wait_stable()`. In both cases the brokers
    have their own thread and event loop, so a client or a test that blocks does not block them.

    `brokers` share partitions and groups. Each has its own port, a free one unless `ports` gives it, and its
    own rack if `racks` gives one. `topics` are created at once: partitions by name, or names of topics with
    one partition. `config` is a whole `GroupCoordinatorConfig`, or settings by Kafka's names over a quick
    profile (a heartbeat every 0.1 s, no delay before a first rebalance). `journal` keeps groups, topics and
    records beyond this object: a path, or an object for records of groups alone. With `auto_create_topics`, a
    topic is created with `default_partitions` when a client asks for it. With `users` (passwords by name),
    clients must log in by PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. With `tls` (an `ssl.SSLContext`, or the PEM
    files of certificate and key), they must speak TLS. `as_release` caps API versions to those of an older
    Kafka, such as "2.8". `trace_topic` receives the trace as it grows:
    HOST:PORT/TOPIC of another Kafka without TLS or login, or a topic of this one, unless its `tls` demands
    client certificates.

    :raises FencepostError: for invalid settings, and on entering if it can't listen on a port.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        topics: Mapping[str, int] | Iterable[str] | None = None,
        config: Config = None,
        journal: JournalLike = None,
        host: str = LOOPBACK,
        ports: Iterable[int] = (),
        racks: Iterable[str | None] = (),
        auto_create_topics: bool = False,
        default_partitions: int = 1,
        users: Mapping[str, str] | None = None,
        tls: Tls = None,
        as_release: str | None = None,
        trace_topic: str | None = None,
    ) -> None:
        super().__init__(LoopThread("fencepost-embedded-kafka"), Group)
        count, broker_config, context = broker_count(brokers), config_of(config), tls_of(tls)
        self._settings: dict[str, Any] = {
            "brokers": count,
            "topics": topics_of(topics),
            "config": broker_config.groups,
            "journal": journal,
            "host": address(host),
            "ports": ports_of(ports, count),
        }
        if broker_config.listeners.listeners and (self._settings["ports"] or host != LOOPBACK):
            raise FencepostError("config: listeners has the addresses to listen on; leave out host and ports")
        self._settings["options"] = {
            **broker_config.options,
            "new_topics": msgspec.structs.replace(
                broker_config.new_topics,
                auto_create_topics_enable=flag("auto_create_topics", auto_create_topics),
                num_partitions=whole("default_partitions", default_partitions, 1, MAX_PARTITIONS),
            ),
            "users": users_of(users),
            "tls": context,
            "racks": racks_of(racks, count),
            "as_release": as_release,
        }
        if as_release is not None:
            max_versions(as_release)
        self._trace_topic = trace_topic_of(trace_topic, context)
        self._tracing: TopicTracing | None = None

    @property
    def awaited(self) -> AsyncEmbeddedKafka:
        """Return the same Kafka for a test that awaits. It must be running.

        :raises FencepostError: if it does not run.
        """
        return AsyncEmbeddedKafka(self)

    def start(self) -> None:
        """Start to listen, as `with` does.

        :raises FencepostError: if it runs already, a topic is one that Kafka would refuse, or the journal
            is broken.
        :raises EnvironmentLacks: if it can't listen on a port, a library is missing, or the broker of the
            trace's topic does not respond.
        """
        if self._trace_topic is not None and find_spec("aiokafka") is None:
            raise EnvironmentLacks("trace_topic needs aiokafka: pip install 'fencepost[kafka]'")
        super().start()
        if self._trace_topic is not None:
            self._trace(self.endpoint, self._trace_topic)

    def _trace(self, endpoint: EmbeddedEndpoint, topic: str) -> None:
        from fencepost.simulation.embedded.tracing import TopicTracing

        try:
            self._tracing = TopicTracing(endpoint, topic)
        except BaseException:
            self.close()
            raise
        self._begin(self._tracing)

    @on_loop
    def _begin(self, tracing: TopicTracing) -> None:
        tracing.begin()

    @on_loop
    def _end(self, tracing: TopicTracing) -> None:
        tracing.end()

    async def _opened(self) -> EmbeddedEndpoint:
        from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint

        endpoint = EmbeddedEndpoint(**self._settings)
        await endpoint.start()
        return endpoint

    def close(self) -> None:
        """Close ports and connections, as the end of `with` does. Closing twice is harmless.

        :raises EnvironmentLacks: if rows could not be written to the trace's topic.
        """
        tracing, self._tracing = self._tracing, None
        try:
            if tracing is not None and self.is_running:
                self._end(tracing)
                tracing.close()
        finally:
            super().close()

    async def _closed(self, endpoint: EmbeddedEndpoint) -> None:
        await endpoint.brokers.close()


class AsyncEmbeddedKafka(BlockingControls[AsyncGroup]):
    """The result of `async with EmbeddedKafka()`: the same Kafka, but waiting for its groups is awaited.

    :raises FencepostError: for the arguments of an `EmbeddedKafka`; the text says where they belong.
    """

    def __init__(self, kafka: EmbeddedKafka | None = None, **arguments: object) -> None:
        if not isinstance(kafka, EmbeddedKafka) or arguments:
            given = ", ".join(f"{name}=..." for name in arguments)
            raise FencepostError(
                f"AsyncEmbeddedKafka({given}): expected a running EmbeddedKafka; write `async with "
                f"EmbeddedKafka({given}) as kafka`, where kafka is an AsyncEmbeddedKafka"
            )
        super().__init__(kafka.thread, AsyncGroup, kafka)

    @property
    def awaited(self) -> AsyncEmbeddedKafka:
        """Itself, so that code that awaits can use `awaited` of any Kafka."""
        return self
