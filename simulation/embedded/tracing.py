"""Writes the trace of an embedded cluster to a Kafka topic as it grows: of another Kafka, or of this one
itself."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from typing import Final

from fencepost.coordinator.server.brokers import Brokers
from fencepost.simulation.brokers.address import kafka_addresses
from fencepost.simulation.brokers.security import OPEN, ClientSecurity
from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint
from fencepost.simulation.embedded.replayed import WORLD
from fencepost.simulation.trace.group_runs import GroupRuns
from fencepost.simulation.trace.schema import Row
from fencepost.simulation.trace.topic import OPTION, TopicWriter, TraceTopic

_OWN_MECHANISM: Final = "SCRAM-SHA-256"


class TopicTracing:
    """Sends the rows of a running cluster to a topic, each group as a run of its own.

    `text` is HOST:PORT/TOPIC, with `security` for that cluster, or the name of a topic of the cluster itself.
    In the latter case groups that read the trace are not traced, because their rows would cause further rows
    forever. Make and close it in a thread other than the cluster's, because both wait for the topic's broker;
    call `begin` and `end` in the cluster's own thread. `option` is the option with the text, for error
    messages.

    :raises FencepostError: if the login is refused, or the topic does not exist.
    :raises EnvironmentLacks: if no broker responds.
    """

    def __init__(
        self,
        endpoint: EmbeddedEndpoint,
        text: str,
        security: ClientSecurity = OPEN,
        *,
        option: str = "trace_topic",
    ) -> None:
        brokers = endpoint.brokers
        if "/" in text:
            place = TraceTopic.parse(text, security, option)
        else:
            place = TraceTopic(_own_servers(brokers), text, _own_security(endpoint), option)
        self._endpoint = endpoint
        self._topic = place.topic
        ports = {port for _, port in kafka_addresses(place.servers, option)}
        self._own = place.topic in brokers.cluster.image.by_name and not ports.isdisjoint(brokers.ports)
        self._writer = TopicWriter(place, patient=False)
        run_id = f"{WORLD}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{brokers.ports[0]}"
        self._runs = GroupRuns(run_id, self._writer.send, self._reads_trace)

    def begin(self) -> None:
        """Send all rows so far, and all new ones."""
        observer = self._endpoint.observer
        for row in observer.rows:
            self._runs.take(row)
        observer.trace.on_row = self._runs.take

    def end(self) -> None:
        """Collect the remaining rows; no more rows come."""
        self._endpoint.observer.catch_up()
        self._endpoint.observer.trace.on_row = lambda row: None

    def close(self) -> None:
        """Send the waiting rows. It blocks, and a cluster that traces itself must still serve.

        :raises EnvironmentLacks: if rows could not be written.
        """
        self._writer.close()

    def _reads_trace(self, group_id: str, row: Row) -> bool:
        if not self._own:
            return False
        if any(partition.topic == self._topic for partition in row.partitions):
            return True
        coordinator = self._endpoint.brokers.groups.shard_of(group_id).coordinator
        if coordinator is None:
            return False
        found = coordinator.kinds.find(group_id)
        return found is not None and found[0].may_read(found[1], self._topic)


def _own_servers(brokers: Brokers) -> str:
    """Return the addresses at which a cluster connects to itself: those of its first listener."""
    return next(iter(brokers.listening.values()))


def _own_security(endpoint: EmbeddedEndpoint) -> ClientSecurity:
    """Return the settings by which a cluster connects to itself: its first user, and trust in its own
    certificate."""
    protocol = endpoint.brokers.listeners[0].protocol
    name, password = next(iter(endpoint.users.items())) if protocol.has_login else ("", "")
    host, port = kafka_addresses(_own_servers(endpoint.brokers), "this cluster")[0]
    return ClientSecurity(
        tls=protocol.has_tls,
        trusted=ssl.get_server_certificate((host, port)) if protocol.has_tls else "",
        checks_host=False,
        mechanism=_OWN_MECHANISM if name else "",
        username=name,
        password=password,
    )


@contextlib.asynccontextmanager
async def traced(endpoint: EmbeddedEndpoint, text: str, security: ClientSecurity) -> AsyncIterator[None]:
    """Let the trace of a cluster that runs on this loop go to a topic. `security` is for another cluster.

    :raises FencepostError: if the login is refused, or the topic does not exist.
    :raises EnvironmentLacks: if the topic's broker does not respond, or rows get lost.
    """
    tracing = await asyncio.to_thread(TopicTracing, endpoint, text, security, option=OPTION)
    tracing.begin()
    try:
        yield
    finally:
        tracing.end()
        # It must close although this is cancelled: the waiting rows may go to these very brokers.
        await asyncio.shield(asyncio.to_thread(tracing.close))
