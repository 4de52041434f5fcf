"""Brokers in this process: one port each, and one cluster behind them with its coordinators."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import TypedDict, TypeVar, Unpack

from fencepost.coordinator.codec.batches import load_checksum
from fencepost.coordinator.codec.framing import KAFKA_MAX_FRAME_BYTES
from fencepost.coordinator.codec.registry import load_first_answers
from fencepost.coordinator.codec.releases import max_versions
from fencepost.coordinator.config import (
    NO_AUTHORIZER,
    NO_NEW_TOPICS,
    GroupConfig,
    GroupCoordinatorConfig,
    NewTopicConfig,
    ReplicaSelector,
    SecurityConfig,
)
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.cluster import Node
from fencepost.coordinator.protocol.cluster_records import ConfigKey
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError, ProtocolError
from fencepost.coordinator.sasl.credentials import Credentials
from fencepost.coordinator.server import listener_config
from fencepost.coordinator.server.admin_apis import create_internal_topics
from fencepost.coordinator.server.buffers import MAX_QUEUED_REQUEST_BYTES, Buffers
from fencepost.coordinator.server.cleaner import Cleaner
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.coordinator.server.connection import KafkaServerConnection
from fencepost.coordinator.server.dispatch import handlers
from fencepost.coordinator.server.groups import GroupCoordinators, KeptJournal, MakeHooks, Shard
from fencepost.coordinator.server.listener import Listener
from fencepost.coordinator.server.loop import ServerClock
from fencepost.coordinator.server.new_topics import check_replicas
from fencepost.coordinator.server.offsets_topic import OffsetsTopic
from fencepost.coordinator.server.repeated import RepeatedAnswers
from fencepost.coordinator.server.rights import Rights
from fencepost.coordinator.server.services import Handler, Services
from fencepost.coordinator.server.storage import Gate, Storage
from fencepost.coordinator.server.topic_configs import KAFKA_DEFAULTS, TopicDefaults
from fencepost.coordinator.server.transactions import TransactionCoordinators
from fencepost.coordinator.server.turns import FairTurns, WorkQueue

Self = TypeVar("Self", bound="Brokers")

Intercept = Callable[[int, Mapping[int, Handler]], Mapping[int, Handler]]
"""Takes a broker's id and its handlers, and returns the handlers to use instead."""


class Brokers:
    """Serves the Kafka protocol on some ports of the running loop. Without a storage everything is in memory.

    `ports` has one port for each broker; 0 takes a free one. `hosts` has a host for each of them, if they do
    not share `host`. `listeners` are properties about listeners; if they have addresses to listen on, those
    replace hosts and ports. Partitions and groups are spread over the brokers. `storage` keeps groups and
    topics, and is closed with the brokers; topics in it are unchanged. `new_topics` and `topic_defaults` are
    the broker's settings of topics. With `users`, passwords by name, clients have to log in; with `tls` they
    have to speak TLS. `racks` has the rack of each broker, if they have any. `replica_selector` chooses the
    replica that consumers fetch from. `security` has the settings
    of the authorizer. `as_release` caps API versions to those of an older Kafka. `intercept`
    stands between clients and handlers; `make_hooks` and `on_state` watch the coordinators.
    :raises FencepostError: for a topic that Kafka would refuse, an invalid user, or listeners that do not
        fit the brokers, the users or the certificate.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        host: str = "127.0.0.1",
        hosts: Sequence[str] = (),
        ports: Sequence[int] = (0,),
        listeners: listener_config.ListenerConfig = listener_config.NO_LISTENERS,
        config: GroupCoordinatorConfig | None = None,
        journal: KeptJournal | None = None,
        storage: Storage | None = None,
        new_topics: NewTopicConfig = NO_NEW_TOPICS,
        topic_defaults: TopicDefaults = KAFKA_DEFAULTS,
        max_frame_bytes: int = KAFKA_MAX_FRAME_BYTES,
        max_connections: int = 10_000,
        queued_max_request_bytes: int = MAX_QUEUED_REQUEST_BYTES,
        users: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        racks: Sequence[str | None] = (),
        replica_selector: ReplicaSelector | None = None,
        security: SecurityConfig = NO_AUTHORIZER,
        as_release: str | None = None,
        intercept: Intercept = lambda node_id, table: table,
        make_hooks: MakeHooks | None = None,
        on_state: Callable[[Shard, str], None] = lambda shard, what: None,
    ) -> None:
        self.config = config or GroupCoordinatorConfig()
        self.storage = storage
        self.cluster = KafkaCluster(storage, topic_defaults)
        self.cluster.replica_selector = replica_selector
        node_ids = range(listeners.node_id, listeners.node_id + len(ports))
        self._racks = dict(zip(node_ids, tuple(racks) or (None,) * len(ports), strict=True))
        self._turns = FairTurns()
        self.groups = GroupCoordinators(
            self.config,
            node_ids=node_ids,
            journal=journal if storage is None else storage,
            make_hooks=make_hooks,
            on_state=on_state,
            turns=self._turns,
        )
        self.cluster.add_offsets_topic(OffsetsTopic(self.cluster, self.groups))
        self.cleaner = Cleaner(self.cluster, self._turns)
        self.cluster.on_configs = self._configured
        for key, entries in self.cluster.configs.items():
            self._configured(key, entries)
        self.transactions = TransactionCoordinators(self.cluster, self.groups, storage)
        self.clock: ServerClock | None = None
        self.services: tuple[Services, ...] = ()
        """The services of each broker, once started."""
        self.rights = Rights.of(security, Credentials(users or {}, secrets.token_bytes(32)))
        self.rights.on_active = self._be_guarded
        self._max_versions = None if as_release is None else max_versions(as_release)
        self._intercept = intercept
        self.new_topics = new_topics
        self._max_frame_bytes = max_frame_bytes
        self._queued_max_request_bytes = queued_max_request_bytes
        self._buffers = Buffers(queued_max_request_bytes)
        of_brokers = listeners.of_brokers(
            hosts or (host,) * len(ports), ports, has_login=bool(users), has_tls=tls is not None
        )
        self._serve_on = partial(_ServedListener, max_connections=max_connections, tls=tls)
        self._listeners: dict[int, tuple[_ServedListener, ...]] = {
            node_id: tuple(map(self._serve_on, of_broker))
            for node_id, of_broker in zip(node_ids, of_brokers, strict=True)
        }
        self._gate = Gate() if storage is None else storage.gate
        self._work_queue = WorkQueue(self._turns)
        self._failed = asyncio.Event()
        self._changing = asyncio.Lock()
        """Held while a broker starts, stops, comes or goes, and while all close."""
        self._closed = False
        try:
            if topics:
                check_replicas(new_topics.default_replication_factor, len(ports))
            self.cluster.have_topics(topics or {}, replicas=new_topics.default_replication_factor)
        except ProtocolError as error:
            raise FencepostError(error.message) from error

    async def start(self) -> None:
        """Load the groups and listen.

        :raises EnvironmentLacks: if a port is taken or not allowed, the host is not one of this machine, or a
            library is missing.
        :raises InconsistentRecord: if the journal is broken.
        """
        for library in ("cramjam", "crc32c", "kio"):
            if find_spec(library) is None:
                raise EnvironmentLacks(f"a broker needs {library}: pip install 'fencepost[embedded]'")
        self._closed = False
        load_first_answers()
        load_checksum()
        loop = asyncio.get_running_loop()
        self.clock = ServerClock(loop)
        if self.storage is not None:
            self.storage.on_failure = self._storage_failed
        self.groups.start(self.clock, self.cluster.known)
        if any(next(iter(shard.journal), None) is not None for shard in self.groups.shards):
            self.cluster.show_offsets_topic()
        self.transactions.start(self.clock)
        self.cleaner.start(self.clock)
        self.cluster.on_change = self.groups.topics_changed
        self.services = tuple(map(self._new_services, self.groups.node_ids))
        self.groups.internal_topics.create = partial(create_internal_topics, self.services[0])
        try:
            for services in self.services:
                await self._listen(services, self._listeners[services.node_id])
        except BaseException:
            await self.close()
            raise
        self._register()

    def _new_services(self, node_id: int) -> Services:
        return Services(
            cluster=self.cluster,
            groups=self.groups,
            transactions=self.transactions,
            config=self.config,
            node_id=node_id,
            loop=asyncio.get_running_loop(),
            work_queue=self._work_queue,
            turns=self._turns,
            queued_max_request_bytes=self._queued_max_request_bytes,
            gate=self._gate,
            new_topics=self.new_topics,
            rights=self.rights,
            max_versions=self._max_versions,
        )

    def _register(self) -> None:
        """Let clients see the brokers that listen."""
        self.cluster.nodes = tuple(
            Node(node_id=node_id, host=first.socket.host, port=first.socket.port, rack=self._racks[node_id])
            for node_id, (first, *_) in self._listeners.items()
        )
        self.cluster.advertised = {
            name: tuple(
                Node(node_id=node_id, host=host, port=port, rack=self._racks[node_id])
                for node_id, of_broker in self._listeners.items()
                for each in of_broker
                if each.listener.name == name and each.advertised is not None
                for host, port in (each.advertised,)
            )
            for name in self._listener_names
        }
        self.cluster.listener_settings = {
            node_id: _settings_of(of_broker) for node_id, of_broker in self._listeners.items()
        }

    async def _listen(self, services: Services, listeners: Sequence[_ServedListener]) -> None:
        """Open all listeners of a broker, or none.

        The services of each listener know its name, and its users if it has any.
        """
        try:
            await self._open(services, listeners)
        except BaseException:
            await _close(listeners)
            raise

    async def _open(self, services: Services, listeners: Sequence[_ServedListener]) -> None:
        table = self._intercept(services.node_id, self.rights.around(handlers()))
        for each in listeners:
            has_login = each.listener.protocol.has_login
            of_listener = services._replace(
                listener_name=each.listener.name, credentials=self.rights.credentials if has_login else None
            )
            await each.socket.open(
                partial(
                    KafkaServerConnection,
                    of_listener,
                    table,
                    RepeatedAnswers(self.cluster, table),
                    max_frame_bytes=self._max_frame_bytes,
                    buffers=self._buffers,
                )
            )

    async def stop_broker(self, node_id: int) -> None:
        """Stop one broker: its port closes, and others lead its partitions and coordinate its groups.

        A partition without another replica has no leader until then.
        :raises FencepostError: if there is no such broker, it is stopped, or it is the last one that runs.
        """
        async with self._change():
            self.check_known(node_id)
            if node_id in self.cluster.stopped:
                raise FencepostError(f"broker {node_id} is stopped already")
            self._check_not_last(node_id)
            self.cluster.stop_node(node_id)
            self._move_groups_off(node_id)
            await _close(self._listeners[node_id])

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """Let one change of the brokers come after the other.

        :raises FencepostError: if they are closed.
        """
        async with self._changing:
            if self._closed:
                raise FencepostError("the brokers are closed: start new ones")
            yield

    def _check_not_last(self, node_id: int) -> None:
        if [node.node_id for node in self.cluster.running] == [node_id]:
            raise FencepostError(f"broker {node_id} is the last running one: close all of them instead")

    def _move_groups_off(self, node_id: int) -> int:
        """Let the next broker that runs coordinate the groups of a broker that is stopped; return it."""
        following = self.cluster.running_from(node_id)
        for shard in self.groups.shards:
            if shard.node_id == node_id:
                self.groups.move(shard, following)
        return following

    async def start_broker(self, node_id: int) -> None:
        """Start a broker that was stopped, on its port. It leads the partitions that had no other leader.

        :raises FencepostError: if there is no such broker, or it runs.
        :raises EnvironmentLacks: if its port was taken in the meantime.
        """
        async with self._change():
            self.check_known(node_id)
            if node_id not in self.cluster.stopped:
                raise FencepostError(f"broker {node_id} is running already")
            await self._listen(self.services_of(node_id), self._listeners[node_id])
            self.cluster.start_node(node_id)

    async def add_broker(self, port: int = 0, rack: str | None = None) -> int:
        """Add a broker, with the id after the highest one, and return that id.

        It has the listeners of the first broker, the first of them at `port`, the others at free ports. It
        has no replicas and coordinates nothing, until new partitions are placed on it or others are moved.
        :raises FencepostError: if no id is left.
        :raises EnvironmentLacks: if the port is taken or not allowed; nothing has changed then.
        """
        async with self._change():
            node_id = max(self.groups.node_ids) + 1
            listener_config.check_node_id(node_id)
            first, *others = (each.listener for each in next(iter(self._listeners.values())))
            made = (first.at_port(port), *(each.at_port(0) for each in others))
            listeners = tuple(map(self._serve_on, made))
            services = self._new_services(node_id)
            await self._listen(services, listeners)
            self.cluster.keep_replicas()
            self._racks[node_id] = rack
            self._listeners[node_id] = listeners
            self.groups.node_ids += (node_id,)
            self.services += (services,)
            self._register()
            return node_id

    async def remove_broker(self, node_id: int) -> None:
        """Remove a broker as an administrator does: move its replicas, shut it down, and unregister it.

        :raises FencepostError: as `check_removable`.
        """
        async with self._change():
            self.check_removable(node_id)
            await _close(self._unregister(node_id))

    def check_removable(self, node_id: int) -> None:
        """Refuse to remove the last broker, or records.

        :raises FencepostError: if there is no such broker, it is the last one that runs, or it is stopped
            and no other broker has all records of one of its partitions.
        """
        self.check_known(node_id)
        self._check_not_last(node_id)
        try:
            self.cluster.check_removable(node_id)
        except ProtocolError as error:
            raise FencepostError(error.message) from error

    def _unregister(self, node_id: int) -> tuple[_ServedListener, ...]:
        """Let others do what a broker did, and return its listeners, without connections."""
        self.cluster.move_replicas_off(node_id)
        self.cluster.stopped |= {node_id}
        self.transactions.move_off(node_id, self._move_groups_off(node_id))
        removed = self._listeners.pop(node_id)
        for each in removed:
            each.socket.drop()  # before the loop's next turn, which may bring requests
        del self._racks[node_id]
        self.groups.node_ids = tuple(each for each in self.groups.node_ids if each != node_id)
        self.services = tuple(each for each in self.services if each.node_id != node_id)
        self.groups.internal_topics.create = partial(create_internal_topics, self.services[0])
        self._register()
        self.cluster.stopped -= {node_id}
        return removed

    def check_known(self, node_id: int) -> None:
        """Refuse a broker that does not exist.

        :raises FencepostError: then, with the ids of those that do.
        """
        if isinstance(node_id, bool) or node_id not in self.groups.node_ids:
            known = ", ".join(map(str, self.groups.node_ids))
            raise FencepostError(f"there is no broker {node_id!r}; the brokers are numbered {known}")

    def restart(self) -> None:
        """Stop and start again: connections break, leader epochs rise, and the groups are loaded from the
        journal.

        :raises InconsistentRecord: if the journal is broken.
        """
        assert self.clock is not None
        self.transactions.close()
        self.groups.close()
        for socket in self._sockets:
            socket.drop()
        self.cluster.restart_nodes()
        self.groups.start(self.clock, self.cluster.known)
        self.transactions.start(self.clock)

    def advance(self, length_ms: int, before_each: Callable[[int], None] = lambda end_ms: None) -> None:
        """Let that much time pass at once: every timer fires at its time, in order, and logs are cleaned.

        `before_each` is called whenever the clock was moved and before timers fire, with the time at the end.
        """
        assert self.clock is not None
        end_ms = self.clock.now_ms() + length_ms
        is_over = False
        while not is_over:
            deadlines = (self.groups.next_deadline(), self.transactions.next_deadline())
            due_ms = min((each for each in deadlines if each is not None and each <= end_ms), default=None)
            is_over = due_ms is None
            self.clock.advance_to(end_ms if due_ms is None else due_ms)
            before_each(end_ms)
            # Also shards without due timers: their timers were set by the old time.
            self.groups.run_due()
            self.transactions.run_due()
        self.cleaner.run()

    async def close(self) -> None:
        """Stop listening and close all connections. Clients get no message, as when brokers die."""
        self._closed = True
        async with self._changing:  # a broker that starts has all its ports then, or none
            self.cleaner.close()
            self._work_queue.close()
            self._turns.clear()
            self.transactions.close()
            self.groups.close()
            self._gate.open()
            for socket in self._sockets:
                socket.drop()  # before the loop's next turn, which may bring requests
            for socket in self._sockets:
                await socket.close()
            self._buffers.close()
            if self.storage is not None:
                self.storage.close()

    def _be_guarded(self) -> None:
        for connection in self.connections:
            connection.be_guarded()

    def _configured(self, key: ConfigKey, entries: Mapping[str, str]) -> None:
        if key.resource_type == ResourceType.GROUP:
            config = GroupConfig.from_record(entries) if entries else None
            self.groups.configure(key.name, config)
        else:
            self.cleaner.settings_changed()

    def _storage_failed(self) -> None:
        """Close all connections and stop serving: clients must not learn of data that is not on disk."""
        for socket in self._sockets:
            socket.drop()
        self._failed.set()

    async def serve(self, on_ready: Callable[[Brokers], None]) -> None:
        """Serve until cancelled; `on_ready` is called once, when connections are accepted.

        :raises EnvironmentLacks: if the address can't be listened on, or the storage accepts no more data;
            the text says what to do.
        """
        async with self:
            on_ready(self)
            await self.until_failure()

    async def until_failure(self) -> None:
        """Wait until the storage fails.

        :raises JournalFailed: then.
        """
        await self._failed.wait()
        assert self.storage is not None
        assert self.storage.failure is not None
        raise self.storage.failure

    async def __aenter__(self: Self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def services_of(self, node_id: int) -> Services:
        """Return the services of one broker, once started."""
        return self.services[self.groups.node_ids.index(node_id)]

    @property
    def bootstrap_servers(self) -> str:
        """The value for a client's setting `bootstrap.servers`: what each broker advertises for its first
        listener that advertises an address."""
        firsts = (
            next((address for each in of_broker if (address := each.advertised) is not None), None)
            for of_broker in self._listeners.values()
        )
        return ",".join(listener_config.address_text(*first) for first in firsts if first is not None)

    @property
    def listening(self) -> dict[str, str]:
        """The addresses that are listened on, by listener; those of several brokers have commas between."""
        return self._addresses_by_name(lambda each: each.socket.address)

    @property
    def advertised(self) -> dict[str, str]:
        """The addresses that the clients of each listener receive; empty if it has none."""
        return self._addresses_by_name(
            lambda each: None if each.advertised is None else listener_config.address_text(*each.advertised)
        )

    def _addresses_by_name(self, of: Callable[[_ServedListener], str | None]) -> dict[str, str]:
        return {
            name: ",".join(
                filter(None, (of(each) for each in self._all_listeners if each.listener.name == name))
            )
            for name in self._listener_names
        }

    @property
    def ports(self) -> tuple[int, ...]:
        """The port of each broker's first listener, once started."""
        return tuple(first.socket.port for first, *_ in self._listeners.values())

    @property
    def connections(self) -> tuple[KafkaServerConnection, ...]:
        """All open connections."""
        return tuple(each for socket in self._sockets for each in socket.connections if not each.is_closed)

    @property
    def listeners(self) -> tuple[listener_config.BrokerListener, ...]:
        """All listeners, those of the first broker first."""
        return tuple(each.listener for each in self._all_listeners)

    @property
    def _all_listeners(self) -> list[_ServedListener]:
        return [each for of_broker in self._listeners.values() for each in of_broker]

    @property
    def _listener_names(self) -> list[str]:
        return list(dict.fromkeys(each.listener.name for each in self._all_listeners))

    @property
    def _sockets(self) -> list[Listener[KafkaServerConnection]]:
        return [each.socket for each in self._all_listeners]


async def _close(listeners: Iterable[_ServedListener]) -> None:
    for each in listeners:
        await each.socket.close()


class _ServedListener:
    """A listener of a broker and its socket."""

    def __init__(
        self, listener: listener_config.BrokerListener, max_connections: int, tls: ssl.SSLContext | None
    ) -> None:
        self.listener = listener
        self.socket: Listener[KafkaServerConnection] = Listener(
            listener.host,
            listener.port,
            max_connections=max_connections,
            tls=tls if listener.protocol.has_tls else None,
        )

    @property
    def advertised(self) -> tuple[str, int] | None:
        """Host and port for its clients; None if they receive none. Once it is open, no port is 0."""
        address = self.listener.advertised
        if address is None:
            return None
        return address.host or listener_config.ALL_INTERFACES, address.port or self.socket.port


def _settings_of(listeners: Sequence[_ServedListener]) -> dict[str, str]:
    """Return what DescribeConfigs reports of a broker's listeners."""
    listening = [
        listener_config.NamedAddress(each.listener.name, each.socket.host, each.socket.port)
        for each in listeners
    ]
    advertised = [
        listener_config.NamedAddress(each.listener.name, *address)
        for each in listeners
        if (address := each.advertised) is not None
    ]
    protocols = {each.listener.name: each.listener.protocol.name for each in listeners}
    return {
        listener_config.LISTENERS: ",".join(map(str, listening)),
        listener_config.ADVERTISED_LISTENERS: ",".join(map(str, advertised)),
        listener_config.PROTOCOL_MAP: ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
    }


class _BrokerOptions(TypedDict, total=False):
    host: str
    listeners: listener_config.ListenerConfig
    config: GroupCoordinatorConfig | None
    journal: KeptJournal | None
    storage: Storage | None
    new_topics: NewTopicConfig
    topic_defaults: TopicDefaults
    max_frame_bytes: int
    max_connections: int
    queued_max_request_bytes: int
    users: Mapping[str, str] | None
    tls: ssl.SSLContext | None


class Broker(Brokers):
    """Serves the Kafka protocol on one port of the running loop. The other arguments are those of `Brokers`.

        async with Broker(topics={"orders": 12}) as broker:
            consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, ...})

    `port` 0 takes a free one.
    """

    def __init__(
        self, topics: Mapping[str, int] | None = None, *, port: int = 0, **options: Unpack[_BrokerOptions]
    ) -> None:
        super().__init__(topics, ports=(port,), **options)

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        return self.ports[0]

    @property
    def coordinator(self) -> GroupCoordinator:
        """The coordinator, once started."""
        coordinator = self.groups.shards[0].coordinator
        assert coordinator is not None
        return coordinator


def ports_from(port: int, brokers: int) -> tuple[int, ...]:
    """Return consecutive ports, one for each broker; all 0, which stands for a free one, if the first is."""
    return tuple(port and port + nth for nth in range(brokers))
