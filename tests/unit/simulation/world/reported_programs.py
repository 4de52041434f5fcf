"""A pipeline with transactions on aiokafka as it was, with bugs that users reported put back."""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.producer import sender

from tests.unit.simulation.world.programs_of_users import consumer

GROUP_ID = "billing"
TRANSACTIONAL_ID = "billing-1"
"""One broker coordinates both."""


def keep_dead_coordinators() -> None:
    """Let a producer send to a coordinator that it can't reach, again and again, as aiokafka 0.12 does."""
    for handler in (
        sender.InitPIDHandler,
        sender.AddPartitionsToTxnHandler,
        sender.AddOffsetsToTxnHandler,
        sender.TxnOffsetCommitHandler,
        sender.EndTxnHandler,
    ):
        handler.handle_error = lambda self: self._default_backoff


def forget_shared_coordinators() -> None:
    """Let a client forget a broker that has two parts when it loses one of them, as aiokafka 0.13 does."""
    client: Any = AIOKafkaClient
    connect, look_up = client._get_conn, client.coordinator_lookup

    async def coordinator_lookup(self: Any, kind: Any, key: str) -> int:
        node_id: int = await look_up(self, kind, key)
        self.known = getattr(self, "known", set())
        self.parts = getattr(self, "parts", {})
        if (kind, key) in self.parts:
            self.known.discard(self.parts.pop((kind, key)))
        self.parts[kind, key] = node_id
        self.known.add(node_id)
        return node_id

    async def _get_conn(
        self: Any, node_id: int, *, group: Any = ConnectionGroup.DEFAULT, **options: Any
    ) -> Any:
        found = self._conns.get((node_id, group))
        if group != ConnectionGroup.DEFAULT and (found is None or not found.connected()):
            assert node_id in self.known
        return await connect(self, node_id, group=group, **options)

    client.coordinator_lookup, client._get_conn = coordinator_lookup, _get_conn


BUGS = {
    "keep-dead-coordinators": keep_dead_coordinators,
    "forget-shared-coordinators": forget_shared_coordinators,
}


async def forwards(bug: str) -> None:
    """Write an invoice for each order, in transactions with the offsets."""
    if bug:
        BUGS[bug]()
    producer = AIOKafkaProducer(
        bootstrap_servers="kafka:9092", transactional_id=TRANSACTIONAL_ID, request_timeout_ms=10_000
    )
    async with consumer("orders", group_id=GROUP_ID) as reading, producer:
        async for order in reading:
            async with producer.transaction():
                await producer.send("invoices", order.value)
                (partition,) = reading.assignment()
                await producer.send_offsets_to_transaction({partition: order.offset + 1}, GROUP_ID)
