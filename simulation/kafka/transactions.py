"""The transaction coordinator of a simulated cluster: one broker leads all transactional ids.

It is the coordinator that `serve` runs, in the same kind of host. Its environment is simulated: its broker
crashes or freezes, and markers take time to reach the group's coordinator, which may be loading or gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fencepost.coordinator.host import AppendFailed, CoordinatorHost, HostHooks
from fencepost.coordinator.journal.memory import RecordBatches
from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.transaction_records import TransactionRecord
from fencepost.coordinator.transactions.coordinator import (
    TransactionConfig,
    TransactionCoordinator,
    TransactionRequest,
    refusal,
)
from fencepost.simulation.kafka.requests import TRANSACTION_REQUESTS, TxnOffsetCommit
from fencepost.simulation.kernel.host import HostClock
from fencepost.simulation.kernel.network import Call
from fencepost.simulation.kernel.rng import Quantiles

if TYPE_CHECKING:
    from fencepost.simulation.kafka.broker import BrokerHost
    from fencepost.simulation.kafka.cluster import SimulatedCluster

_AGAIN_US: Final = 20_000
"""Time until a marker that reached no coordinator is sent again, in microseconds."""
_COMPACT_BEYOND: Final = 2_000
"""Number of records from which on the log is compacted: a loading coordinator reads all records."""


class TransactionJournal(RecordBatches[TransactionRecord]):
    """The log of transactions. It fails to append whenever the group's log does."""

    __slots__ = ("_fails",)

    def __init__(self, fails: Callable[[], bool]) -> None:
        super().__init__(compact_beyond=_COMPACT_BEYOND)
        self._fails = fails

    def append(self, records: tuple[TransactionRecord, ...]) -> None:
        """Append one batch.

        :raises AppendFailed: while the log fails.
        """
        if self._fails():
            raise AppendFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not enough replicas are in sync")
        super().append(records)


class SimulatedTransactions(HostHooks):
    """The coordinator of transactions, and the path of its markers to the group.

    `coordinator` is there while a broker runs it.
    """

    def __init__(self, cluster: SimulatedCluster, config: TransactionConfig, latency: Quantiles) -> None:
        self.journal = TransactionJournal(lambda: bool(cluster.journal.failing))
        self.leader: BrokerHost | None = None
        self.coordinator: TransactionCoordinator | None = None
        self._cluster = cluster
        self._loop = cluster.loop
        self._config = config
        self._host: CoordinatorHost[TransactionCoordinator] | None = None
        self._term = 0
        """Grows with each election: the coordinator's epoch fences markers of the previous leader."""
        self._producers = 0
        draws, spec = cluster.draws, cluster.spec
        self._load = draws.samples("transactions/load", spec.load.quantiles)
        self._failover = draws.samples("transactions/failover", spec.failover.quantiles)
        self._replication = draws.samples("transactions/replication", spec.replication.quantiles)
        self._latency = draws.samples("transactions/latency", latency)

    # -- leadership ---------------------------------------------------------------------------------------

    def elect(self, avoid: BrokerHost | None = None) -> None:
        """Let a broker load the journal, if possible one that does not coordinate the group."""
        self._term += 1
        running = [broker for broker in self._cluster.brokers.values() if broker.running]
        chosen = [each for each in running if each is not avoid and each is not self._cluster.leader]
        chosen = chosen or running
        if not chosen:
            self._loop.schedule(
                self._loop.now_us + self._failover.draw(), self._elect_due, (self._term, avoid)
            )
            return
        self.leader = chosen[self._term % len(chosen)]
        self._loop.schedule(self._loop.now_us + self._load.draw(), self._loaded, self._term)

    def _elect_due(self, due: tuple[int, BrokerHost | None]) -> None:
        if due[0] == self._term:
            self.elect(due[1])

    def _loaded(self, term: int) -> None:
        leader = self.leader
        if term != self._term or leader is None:
            return
        if leader.frozen:
            leader.run(self._loaded, term)
            return
        self.coordinator = TransactionCoordinator(self._config)
        self._host = CoordinatorHost(self.coordinator, self.journal, HostClock(leader), self)
        prepared = self.coordinator.replay(self.journal)
        self._cluster.tell("on_transactions_loaded", leader.name)
        for effect in prepared:
            self.carry_out(effect)
        self._host.run_due()

    def lost(self, broker: BrokerHost) -> None:
        """Let another broker take over after the failover time, if the lost one was in charge."""
        if broker is not self.leader:
            return
        if self._host is not None:
            self._host.abandon()
        self.leader = self.coordinator = self._host = None
        self._term += 1
        self._loop.schedule(self._loop.now_us + self._failover.draw(), self._elect_due, (self._term, broker))

    def stands_still(self, broker: BrokerHost) -> None:
        """Let another broker take over if this one stays frozen for the failover time."""
        if broker is self.leader:
            self._loop.schedule(self._loop.now_us + self._failover.draw(), self._given_up, broker)

    def _given_up(self, broker: BrokerHost) -> None:
        if broker.frozen:
            self.lost(broker)

    # -- requests -----------------------------------------------------------------------------------------

    def receive(self, broker: BrokerHost, call: Call) -> None:
        """Respond to a producer."""
        request: Any = call.request
        assert isinstance(request, TRANSACTION_REQUESTS)
        if broker is not self.leader:
            call.answer(refusal(request, ErrorCode.NOT_COORDINATOR), self._loop.now_us)
        elif self._host is None:
            call.answer(refusal(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), self._loop.now_us)
        else:
            outcome = self._process(request)  # type: ignore[arg-type]  # it is one of TRANSACTION_REQUESTS
            ready_us = self._loop.now_us + (self._replication.draw() if outcome.records else 0)
            call.answer(outcome.reply, ready_us)

    def check(self, request: TxnOffsetCommit) -> ErrorCode:
        """Return NONE if a producer may commit offsets of the group now, else the error. The groups of newer
        clients are added to the transaction.

        The group's coordinator calls it before it writes. The marker of a transaction that ended in between
        would make the write fail (KIP-890), so both are one step here.
        """
        if self._host is None or self.leader is None or self.leader.frozen:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        added = request.client_version >= transactions.EPOCH_PER_TRANSACTION
        outcome = self._process(
            transactions.AddOffsetsToTxnRequest(
                transactional_id=request.transactional_id,
                producer_id=request.offsets.producer_id,
                producer_epoch=request.producer_epoch,
                group_id=request.offsets.group_id,
                verify_only=not added,
                client_version=request.client_version,
            )
        )
        code: ErrorCode = outcome.reply.error_code
        return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code

    def take_over(self, transactional_id: str, timeout_ms: int) -> None:
        """Let a producer elsewhere begin with the same transactional id, if it reaches the coordinator."""
        if self._host is not None and self.leader is not None and not self.leader.frozen:
            request = transactions.InitProducerIdRequest(
                transactional_id=transactional_id, timeout_ms=timeout_ms
            )
            self._process(request)

    def _process(self, event: TransactionRequest | transactions.MarkersWritten) -> Any:
        assert self._host is not None
        if self._host.coordinator.needs_producer_id(event):
            self._producers += 1
            event = msgspec.structs.replace(event, next_producer_id=self._producers)
        return self._host.process(event)

    # -- hooks of the coordinator's host ------------------------------------------------------------------

    def stepped(self, event: Any, outcome: Any, now_ms: int) -> None:
        """Notify observers of the step."""
        assert self.leader is not None
        self._cluster.tell("on_transaction_step", self.leader.name, event, outcome)

    def carry_out(self, effect: transactions.WriteMarkers) -> None:
        """Send the marker to the group."""
        self._send(self._arrives, (self._term, effect))

    def _send(self, arrives: Callable[[Any], None], marker: Any) -> None:
        self._loop.schedule(self._loop.now_us + self._latency.draw(), arrives, marker)

    def _arrives(self, marker: tuple[int, transactions.WriteMarkers]) -> None:
        term, effect = marker
        if term != self._term:
            return
        broker = self._cluster.leader
        if effect.groups:
            if broker is None or broker.frozen or broker.coordinator_host is None:
                self._loop.schedule(self._loop.now_us + _AGAIN_US, self._arrives, marker)
                return
            for group_id in effect.groups:
                broker.step(
                    transactions.TransactionEnded(
                        group_id=group_id, producer_id=effect.producer_id, commit=effect.commit
                    )
                )
            if broker.coordinator_host.failure is not None:
                self._loop.schedule(self._loop.now_us + _AGAIN_US, self._arrives, marker)
                return
        generation = 0 if broker is None else broker.generation
        ready_us = self._loop.now_us + self._replication.draw() + self._latency.draw()
        self._loop.schedule(ready_us, self._written, (term, effect, broker, generation))

    def _written(self, marker: tuple[int, transactions.WriteMarkers, BrokerHost | None, int]) -> None:
        term, effect, broker, generation = marker
        leader = self.leader
        if term != self._term or leader is None or self._host is None:
            return
        if leader.frozen:
            leader.run(self._written, marker)
            return
        if broker is not None and broker.generation != generation:  # it crashed before it could respond
            self._arrives((term, effect))
            return
        self._process(
            transactions.MarkersWritten(
                transactional_id=effect.transactional_id,
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
            )
        )
        if self._host.failure is not None:
            self._loop.schedule(self._loop.now_us + _AGAIN_US, self._written, marker)
