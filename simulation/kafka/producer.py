"""A member's transactional producer, limited to the group's positions (KIP-98, KIP-447, KIP-890)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest, OffsetFetchRequest
from fencepost.member.base.transport import TransportError
from fencepost.simulation.kafka.requests import TxnOffsetCommit, error_of
from fencepost.simulation.kafka.transport import SimulatedTransport

if TYPE_CHECKING:
    from fencepost.member.base.driver import MemberDriver
    from fencepost.simulation.kafka.member import MemberHost

_BACKOFF_US: Final = 100_000
_GIVES_UP_US: Final = 20_000_000
"""Time that a producer tries, in microseconds: max.block.ms. A rebalance callback that waits for the producer
must not time out."""
_OUTPUT: Final = TopicPartition("output", 0)
"""The partition that the application writes to. Its records are not simulated."""
_LATE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Errors after which a producer looks up the coordinator."""
_FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Errors that mean a producer was replaced, if it gets them when it requests its next epoch."""


class TransactionFailed(Exception):
    """Raised if the transaction must be aborted; `code` is the error."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ProducerReplaced(Exception):
    """Raised if another producer has this one's transactional id: its process can't continue."""


class SimulatedProducer:
    """One producer. Its transactional id is its host's name, so that a new process fences the previous one.

    One method runs at a time. A method that raises TransactionFailed leaves the transaction to `renew`.
    """

    def __init__(self, host: MemberHost, driver: MemberDriver) -> None:
        world = host.world
        self._host = host
        self._driver = driver
        self._group_id = world.group_id
        self._id = host.name
        self._timeout_ms = world.scenario.transactions.timeout.ms
        self._version = world.scenario.transactions.version
        self._request_ms = world.scenario.network.request_timeout.ms
        self._requested = world.hooks["on_member_request"]
        self._committed = world.hooks["on_commit"]
        self._transactions = self._transport(of_transactions=True)
        self._group = self._transport(of_transactions=False)
        self._producer_id = transactions.NO_PRODUCER_ID
        self._epoch = transactions.NO_PRODUCER_EPOCH
        self._is_added = False
        """True if the group is part of the transaction, if the client has to add it."""

    def _transport(self, *, of_transactions: bool) -> SimulatedTransport:
        world = self._host.world
        return SimulatedTransport(
            self._host,
            world.network,
            world.cluster.brokers,
            first=0,
            timeout_us=world.scenario.network.request_timeout.us,
            of_transactions=of_transactions,
        )

    # -- for the application -------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Get the next epoch, or the first one; an open transaction of the id is aborted (KIP-360).

        :raises ProducerReplaced: if another producer has the id.
        :raises TransactionFailed: if there was no response in time.
        """
        try:
            reply = await self._ask(
                self._transactions,
                lambda: transactions.InitProducerIdRequest(
                    transactional_id=self._id,
                    timeout_ms=self._timeout_ms,
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                ),
            )
        except TransactionFailed as failed:
            if failed.code in _FENCED:
                raise ProducerReplaced(self._id) from None
            raise
        self._producer_id, self._epoch = reply.producer_id, reply.producer_epoch
        self._is_added = False

    async def stage(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Add positions of the group to the transaction; the first ones begin it.

        :raises ProducerReplaced: if another producer has the id.
        :raises TransactionFailed: if they can't be added.
        """
        if self._producer_id == transactions.NO_PRODUCER_ID:
            await self.renew()
        if self._version < transactions.EPOCH_PER_TRANSACTION and not self._is_added:
            await self._add()

        def request() -> TxnOffsetCommit:
            commit = OffsetCommitRequest(
                group_id=self._group_id,
                member_id=self._driver.member_id,
                member_epoch=self._driver.member_epoch,
                instance_id=self._host.instance_id,
                offsets=offsets,
                producer_id=self._producer_id,
            )
            for hook in self._requested:
                hook(self._host.name, commit, self._host.loop.now_us)
            return TxnOffsetCommit(self._id, self._epoch, self._version, commit)

        await self._ask(self._group, request)

    async def _add(self) -> None:
        """Add the output partition and the group to the transaction."""
        await self._ask(
            self._transactions,
            lambda: transactions.AddPartitionsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                partitions=(_OUTPUT,),
            ),
        )
        await self._ask(
            self._transactions,
            lambda: transactions.AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=self._group_id,
            ),
        )
        self._is_added = True

    async def end(self, *, commit: bool) -> None:
        """Commit the transaction, or abort it.

        :raises TransactionFailed: if it can't be ended, or if its outcome is unknown.
        """
        reply = await self._ask(
            self._transactions,
            lambda: transactions.EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                committed=commit,
                client_version=self._version,
            ),
        )
        if self._version >= transactions.EPOCH_PER_TRANSACTION:
            self._producer_id, self._epoch = reply.producer_id, reply.producer_epoch
        self._is_added = False

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's positions, once no open transaction can change them; -1 stands for no position.

        :raises TransactionFailed: if there was no response in time.
        """
        request = OffsetFetchRequest(
            group_id=self._group_id, partitions=tuple(partitions), require_stable=True
        )
        reply = await self._ask(self._group, lambda: request)
        return {partition: found.offset for partition, found in reply.offsets.items()}

    # -- requests -----------------------------------------------------------------------------------------

    async def _ask(self, way: SimulatedTransport, make: Callable[[], Any]) -> Any:
        """Send a request until the response is one that a retry would not change.

        :raises TransactionFailed: if that response is an error, or if it took too long.
        """
        loop = self._host.loop
        until_us = loop.now_us + _GIVES_UP_US
        while True:
            request = make()
            response: Any
            try:
                response = await way.send(request, self._request_ms)
                code = error_of(response)
                if code is ErrorCode.NONE and getattr(response, "unstable", None):
                    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            except TransportError as error:
                response, code = error, ErrorCode.NOT_COORDINATOR
            if isinstance(request, TxnOffsetCommit):
                for hook in self._committed:
                    hook(self._host.name, request.offsets, response, loop.now_us)
            if code is ErrorCode.NONE:
                return response
            if not code.retriable or code in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_ID,
            ):
                raise TransactionFailed(code)
            if loop.now_us >= until_us:
                raise TransactionFailed(ErrorCode.REQUEST_TIMED_OUT)
            await self._host.pause_us(_BACKOFF_US)
            if code in _LATE:
                await self._find(way)

    async def _find(self, way: SimulatedTransport) -> None:
        try:
            await way.find_coordinator(self._group_id if way is self._group else self._id)
        except (TransportError, ProtocolError):
            await self._host.pause_us(_BACKOFF_US)
