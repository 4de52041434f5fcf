"""The trace of an embedded cluster in a Kafka topic, as it grows: of another Kafka, or of this one itself."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
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
    """Sends the rows of a cluster that runs to a topic, each group as a run of its own.

    `text` is HOST:PORT/TOPIC, where `security` gets in, or the name of a topic of the cluster itself. In the
    latter case groups that read the trace are not traced: what they do would be told to them, for ever. Made
    and closed in another thread than the cluster's, for that waits for the topic's broker; begun and ended in
    the cluster's own. `option` is where the text was given, for mistakes.

    :raises FencepostError: if the login is refused, or the topic is not there.
    :raises EnvironmentLacks: if no broker answers.
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
            place = TraceTopic(brokers.bootstrap_servers, text, _own_security(endpoint), option)
        self._endpoint = endpoint
        self._topic = place.topic
        ports = {port for _, port in kafka_addresses(place.servers, option)}
        self._own = place.topic in brokers.cluster.image.by_name and not ports.isdisjoint(brokers.ports)
        self._writer = TopicWriter(place, patient=False)
        run_id = f"{WORLD}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{brokers.ports[0]}"
        self._runs = GroupRuns(run_id, self._writer.send, self._reads_trace)

    def begin(self) -> None:
        """Send what there is, and whatever comes."""
        observer = self._endpoint.observer
        for row in observer.rows:
            self._runs.take(row)
        observer.trace.on_row = self._runs.take

    def end(self) -> None:
        """Take in what was not told yet; nothing comes any more."""
        self._endpoint.observer.catch_up()
        self._endpoint.observer.trace.on_row = lambda row: None

    def close(self) -> None:
        """Send what waits. It blocks, and a cluster that traces itself must still serve.

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


def _own_security(endpoint: EmbeddedEndpoint) -> ClientSecurity:
    """How a cluster gets into itself: as its first user, and with trust in the certificate that it shows."""
    name, password = next(iter(endpoint.users.items()), ("", ""))
    host, port = kafka_addresses(endpoint.brokers.bootstrap_servers, "this cluster")[0]
    return ClientSecurity(
        tls=endpoint.has_tls,
        trusted=ssl.get_server_certificate((host, port)) if endpoint.has_tls else "",
        checks_host=False,
        mechanism=_OWN_MECHANISM if name else "",
        username=name,
        password=password,
    )


async def serve_traced(
    endpoint: EmbeddedEndpoint, text: str, on_ready: Callable[[Brokers], None], security: ClientSecurity
) -> None:
    """Serve until cancelled, with the trace going to a topic. `on_ready` is called once clients may connect.

    `security` is for another cluster; see `TopicTracing`.

    :raises FencepostError: if the login is refused, or the topic is not there.
    :raises EnvironmentLacks: if it can't listen, the topic's broker does not answer, or rows get lost.
    """
    await endpoint.start()
    try:
        tracing = await asyncio.to_thread(TopicTracing, endpoint, text, security, option=OPTION)
        tracing.begin()
        on_ready(endpoint.brokers)
        try:
            await endpoint.brokers.until_failure()
        finally:
            tracing.end()
            # It must close, though this is cancelled: what waits may go to these very brokers.
            await asyncio.shield(asyncio.to_thread(tracing.close))
    finally:
        await endpoint.brokers.close()
