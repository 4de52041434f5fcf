"""Asks brokers that a user named for their cluster, and whether KIP-848 groups work there."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from fencepost.coordinator.codec.conversation import identify, load_codec, protocol_of
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.brokers.address import kafka_addresses
from fencepost.simulation.brokers.connection import BrokerConnection, reason_of

GROUP_VERSION = "group.version"
"""The feature that turns KIP-848 on; absent while its level is 0."""


class NotKafka(Exception):
    """Raised if a server responds, but not in Kafka's protocol."""


class BrokerIdentity(NamedTuple):
    """One broker's report about itself and its cluster."""

    address: tuple[str, int]
    """Host and port at which it was asked."""
    cluster_id: str
    nodes: dict[int, str]
    """Every broker that this one considers alive: HOST:PORT by node id."""
    apis: dict[int, tuple[int, int]]
    """Versions by API key."""
    features: dict[str, int]
    """Finalized features and their levels."""

    @property
    def speaks_kip848(self) -> bool:
        """True if KIP-848 consumer groups work on this broker. Brokers other than Kafka may report no
        features."""
        return ApiKey.CONSUMER_GROUP_HEARTBEAT in self.apis and (
            not self.features or self.features.get(GROUP_VERSION, 0) > 0
        )


async def identity_of(host: str, port: int, seconds: float = 2.0) -> BrokerIdentity:
    """Return the identity of one broker.

    :raises OSError: if there is no connection, or no response within `seconds` (TimeoutError).
    :raises NotKafka: if the response is not in Kafka's format.
    """
    load_codec()
    connection = BrokerConnection(host, port, "fencepost", seconds)
    where = "no answer in time"
    try:
        async with asyncio.timeout(seconds):
            await connection.connect()
            where = "it accepts connections, and there was no answer in time"
            return await _identified(connection)
    except TimeoutError as error:
        raise TimeoutError(where) from error
    finally:
        await connection.close()


async def _identified(connection: BrokerConnection) -> BrokerIdentity:
    try:
        versions, metadata = await connection.follow(identify())
    except MalformedFrame as error:
        raise NotKafka(str(error)) from error
    except asyncio.IncompleteReadError as error:
        raise NotKafka(protocol_of(error.partial) or "it closes the connection at a Kafka request") from error
    except ConnectionError as error:
        raise NotKafka("it breaks the connection off at a Kafka request") from error
    return BrokerIdentity(
        connection.address,
        metadata.cluster_id or "",
        {node.node_id: f"{node.host}:{node.port}" for node in metadata.brokers},
        {key: (api.min_version, api.max_version) for key, api in versions.api_versions.items()},
        dict(versions.features),
    )


async def examine(servers: str, seconds: float = 5.0) -> BrokerIdentity:
    """Return the identity of a broker that a user named, after checking that KIP-848 groups work there.

    :raises FencepostError: if one of `servers` is not HOST:PORT.
    :raises EnvironmentLacks: if no broker responds, or no broker is suitable; the text says what to do.
    """
    complaint: EnvironmentLacks | None = None
    for host, port in kafka_addresses(servers, "--cluster"):
        try:
            return await _examine(host, port, seconds)
        except EnvironmentLacks as error:
            complaint = complaint or error
    assert complaint is not None
    raise complaint


async def _examine(host: str, port: int, seconds: float) -> BrokerIdentity:
    address = f"{host}:{port}"
    try:
        identity = await identity_of(host, port, seconds)
    except NotKafka as error:
        raise EnvironmentLacks(
            f"{address} does not answer as a plaintext Kafka listener does: {error}; "
            "name one of the broker's PLAINTEXT listeners"
        ) from error
    except OSError as error:
        raise EnvironmentLacks(
            f"no broker answers at {address} ({reason_of(error)}): start one, or: fencepost cluster up"
        ) from error
    if not identity.speaks_kip848:
        raise EnvironmentLacks(
            f"the broker at {address} has no KIP-848 consumer groups: "
            "Kafka 4.0 or newer is needed, with the feature group.version at 1 or above"
        )
    return identity
