"""The coordinators of groups: shards of the groups, each with a journal and one broker as its leader.

A shard corresponds to a partition of `__consumer_offsets` in Kafka: the groups whose ids hash to it, their
records, and the broker that leads it. Only the leader handles requests for its groups, once it has read the
records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, overload

import msgspec
import structlog

from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.config import GroupConfig, GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost, HostHooks, Journal
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.acls import AclOperation, AclResourceType
from fencepost.coordinator.protocol.asks import Asks, AsksAndWaits
from fencepost.coordinator.protocol.consumer import ListGroupsRequest, ListGroupsResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    CreateInternalTopics,
    MemberFenced,
    Request,
    Response,
    TopicsChanged,
)
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.slices import Sliced
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatResponse
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.refusals import refusal
from fencepost.coordinator.server.internal_topics import InternalTopics
from fencepost.coordinator.server.leaders import EPOCHS_OF_A_RESTART
from fencepost.coordinator.server.loop import ServerClock
from fencepost.coordinator.server.turns import PIECE_S, FairTurns, Share

if TYPE_CHECKING:
    from fencepost.coordinator.server.services import May

log = structlog.get_logger(__name__)


class KeptJournal(Journal[Record], Protocol):
    """A journal that can be read again: the records of all batches, in their order."""

    def __iter__(self) -> Iterator[Record]: ...


class ServedHooks(HostHooks):
    """The ways out of a served coordinator: parked responses are futures, and work waits for the next turn.

    `internal_topics` creates the topics that groups of Streams applications wait for.
    """

    __slots__ = ("_internal_topics", "_loop", "host", "rights", "turns")

    def __init__(self, internal_topics: InternalTopics) -> None:
        self._internal_topics = internal_topics
        self._loop = asyncio.get_running_loop()
        self.turns = FairTurns()
        self.rights: Callable[[], May | None] = lambda: None
        """Returns the rights of the client whose request is handled; None if it may do everything."""
        self.host: CoordinatorHost[GroupCoordinator]

    def deliver(
        self, responses: Sequence[tuple[asyncio.Future[Response], Response]], outcome: object
    ) -> None:
        """Resolve the futures. One is cancelled when its client has hung up."""
        for future, response in responses:
            if not future.done():
                future.set_result(response)

    def later(self, work: Sliced[None]) -> None:
        """Run the slices of the work in turn with the clients', as if it were a client of its own."""
        share = Share()
        self._loop.call_soon(self.turns.run, share, partial(self._slice, work, share))

    def _slice(self, work: Sliced[None], share: Share) -> None:
        try:
            next(work)
        except StopIteration:
            return
        self.turns.run(share, partial(self._slice, work, share))

    def turn(self) -> Iterator[None]:
        """Let timers that are due together run for one piece of work at a time."""
        end_s = self._loop.time() + PIECE_S
        yield
        while self._loop.time() < end_s:
            yield

    def carry_out(self, effect: object) -> None:
        """Create topics, and log fenced members if the application has set up logging."""
        if type(effect) is CreateInternalTopics:
            if not self._internal_topics.deny(effect, self.rights()):
                self._loop.call_soon(self._create, effect)
        elif type(effect) is MemberFenced and structlog.is_configured():
            log.info(
                "member_fenced",
                group_id=effect.group_id,
                member_id=effect.member_id,
                reason=effect.reason,
            )

    def may_describe(self) -> Callable[[str], bool] | None:
        """Return the client's rights to topics; None if it may do everything."""
        may = self.rights()
        return None if may is None else partial(may, AclOperation.DESCRIBE, AclResourceType.TOPIC)

    def _create(self, effect: CreateInternalTopics) -> None:
        host = self.host
        if not host.closed:
            retry_ms = 2 * host.coordinator.streams.settings(effect.group_id).heartbeat_interval_ms
            self._internal_topics.request(effect, now_ms=host.clock.now_ms(), retry_ms=retry_ms)


MakeHooks: TypeAlias = Callable[["Shard", Callable[[], GroupCoordinator]], ServedHooks]
"""Makes the hooks of a shard's host; it receives a function that loads the shard's coordinator."""
_R = TypeVar("_R")


@overload
def ask(host: CoordinatorHost[GroupCoordinator], request: Asks[_R]) -> _R: ...
@overload
def ask(host: CoordinatorHost[GroupCoordinator], request: AsksAndWaits[_R]) -> _R | asyncio.Future[_R]: ...
def ask(host: CoordinatorHost[GroupCoordinator], request: Any) -> Any:
    """Return the reply, or a future of it if the request has to wait for other members."""
    reply = host.process(request).reply
    if reply is None and hasattr(request, "token"):
        reply = asyncio.get_running_loop().create_future()
        host.park(request.token, reply)
    return reply


class Shard:
    """Some of the groups. `host` exists while `node_id` coordinates them, not while it loads."""

    __slots__ = ("epoch", "host", "journal", "load_timer", "node_id", "number")

    def __init__(self, number: int, node_id: int, journal: KeptJournal) -> None:
        self.number = number
        self.node_id = node_id
        self.epoch = 0
        """The leader epoch, which rises with each change of `node_id` and each restart."""
        self.journal = journal
        self.host: CoordinatorHost[GroupCoordinator] | None = None
        self.load_timer: asyncio.TimerHandle | None = None

    @property
    def coordinator(self) -> GroupCoordinator | None:
        """The coordinator, once it is loaded."""
        return None if self.host is None else self.host.coordinator


class _Part:
    """The records of one shard in a journal that all of them share."""

    def __init__(self, journal: KeptJournal, is_mine: Callable[[str], bool]) -> None:
        self._journal = journal
        self._is_mine = is_mine

    def append(self, records: tuple[Record, ...]) -> None:
        """Keep one batch."""
        self._journal.append(records)

    def __iter__(self) -> Iterator[Record]:
        return (record for record in self._journal if self._is_mine(record.key.group_id))


class GroupCoordinators:
    """The coordinators of all groups of a cluster; one shard for each of the first `node_ids`.

    `journal` holds the records of all shards; without one each shard has its own in memory. `on_state` is
    called when a broker starts to `load` a shard, is `active` for it, or `resign`s from it.
    :raises FencepostError: if the configuration names an assignor that does not exist.
    """

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        *,
        node_ids: Sequence[int],
        journal: KeptJournal | None,
        make_hooks: MakeHooks | None,
        on_state: Callable[[Shard, str], None],
        turns: FairTurns,
    ) -> None:
        GroupCoordinator(config)
        self._turns = turns
        self.config = config
        self.node_ids = tuple(node_ids)
        self._make_hooks = make_hooks
        self._on_state = on_state
        self._clock: ServerClock | None = None
        self._image = TopicsImage()
        self._configs: dict[str, GroupConfig] = {}
        self.internal_topics = InternalTopics()
        self.may: May | None = None
        """The rights of the client whose request is handled; None if it may do everything."""
        self.on_leader: Callable[[Shard], None] = lambda shard: None
        """Called when a shard gets a leader, before that leader loads it."""
        self.shards = tuple(
            Shard(number, node_id, self._journal_of(number, journal))
            for number, node_id in enumerate(self.node_ids)
        )

    def _journal_of(self, number: int, shared: KeptJournal | None) -> KeptJournal:
        if shared is None:
            return MemoryJournal(compact_beyond=_LONGEST_JOURNAL, now_ms=self.now_ms)
        if len(self.node_ids) == 1:
            return shared
        return _Part(shared, lambda group_id: self.shard_of(group_id).number == number)

    def start(self, clock: ServerClock, image: TopicsImage) -> None:
        """Load all shards, each on the broker that leads it.

        :raises InconsistentRecord: if a journal is broken.
        """
        self._clock = clock
        self._image = image
        for shard in self.shards:
            self.on_leader(shard)
            self._load(shard)

    def close(self) -> None:
        """Stop all timers, and refuse all requests."""
        for shard in self.shards:
            self._unload(shard)
            shard.epoch += EPOCHS_OF_A_RESTART
        self._clock = None

    def now_ms(self) -> int:
        """Return the coordinators' time, in ms."""
        assert self._clock is not None
        return self._clock.now_ms()

    # -- finding the coordinator ------------------------------------------------------------------------

    def shard_of(self, group_id: str) -> Shard:
        """Return the shard that a group hashes to, even if the group does not exist.

        Of n shards, number i has the partitions i, i + n, i + 2n... of `__consumer_offsets`.
        """
        shards = self.shards
        if len(shards) == 1:
            return shards[0]
        return shards[offsets_partition(group_id, self.config.offsets_topic_num_partitions) % len(shards)]

    def leader_id(self, group_id: str) -> int:
        """Return the broker that coordinates a group, or will after loading it."""
        return self.shard_of(group_id).node_id

    @overload
    def ask(self, request: Asks[_R], node_id: int) -> _R: ...
    @overload
    def ask(self, request: AsksAndWaits[_R], node_id: int) -> _R | asyncio.Future[_R]: ...
    def ask(self, request: Any, node_id: int) -> Any:
        """Return the response of the broker `node_id` to a request about groups.

        The error is NOT_COORDINATOR for groups that another broker leads, and COORDINATOR_LOAD_IN_PROGRESS
        while the broker loads them.
        """
        shards = self.shards
        if len(shards) == 1 and (host := shards[0].host) is not None and shards[0].node_id == node_id:
            return ask(host, request)
        if type(request) is ListGroupsRequest:
            return self._list(request, node_id)
        group_ids = getattr(request, "group_ids", None)
        if group_ids is None:
            return self._ask_one(request, request.group_id, node_id)
        parts = (msgspec.structs.replace(request, group_ids=(group_id,)) for group_id in group_ids)
        replies = [self._ask_one(part, part.group_ids[0], node_id) for part in parts]
        if not replies:
            return ask(shards[0].host, request) if shards[0].host else refusal(request, _LOADING)
        return type(replies[0])(groups=tuple(group for reply in replies for group in reply.groups))

    def _ask_one(self, request: Request, group_id: str, node_id: int) -> Any:
        shard = self.shard_of(group_id)
        if shard.node_id == node_id and shard.host is not None:
            return ask(shard.host, request)
        return refusal(request, self.absence(group_id, node_id))

    def absence(self, group_id: str, node_id: int) -> ErrorCode:
        """Return the error that keeps the broker `node_id` from coordinating a group; NONE if it coordinates
        the group."""
        shard = self.shard_of(group_id)
        if shard.node_id != node_id:
            return ErrorCode.NOT_COORDINATOR
        return _LOADING if shard.host is None else ErrorCode.NONE

    def _list(self, request: ListGroupsRequest, node_id: int) -> ListGroupsResponse:
        """Return the groups that this broker leads; an administrator asks all brokers."""
        led = [shard for shard in self.shards if shard.node_id == node_id]
        if any(shard.host is None for shard in led):
            return ListGroupsResponse(error_code=_LOADING)
        replies: list[Any] = [ask(shard.host, request) for shard in led if shard.host is not None]
        groups = (group for reply in replies for group in reply.groups)
        return ListGroupsResponse(groups=tuple(sorted(groups, key=lambda group: group.group_id)))

    def has_pending(self, group_id: str, producer_id: int) -> bool:
        """Return true if offsets of the group are in an open transaction of the producer."""
        coordinator = self.shard_of(group_id).coordinator
        return coordinator is not None and producer_id in coordinator.offsets.pending(group_id)

    def explained(self, group_id: str, reply: StreamsGroupHeartbeatResponse) -> StreamsGroupHeartbeatResponse:
        """Return the response to a member of a streams group, with the reason why its topics can't be
        created."""
        if self._clock is None or not reply.status:
            return reply
        return self.internal_topics.explained(group_id, reply, self._clock.now_ms())

    # -- events and changes -----------------------------------------------------------------------------

    def active(self) -> Iterable[CoordinatorHost[GroupCoordinator]]:
        """Return the hosts of all shards that are loaded."""
        return [shard.host for shard in self.shards if shard.host is not None]

    def topics_changed(self, image: TopicsImage) -> None:
        """Pass a change of the cluster's topics on to the coordinators."""
        self._image = image
        for host in self.active():
            host.process(TopicsChanged(image=image))

    def configure(self, group_id: str, config: GroupConfig | None) -> None:
        """Set the settings of a group, or remove them."""
        if config is None:
            self._configs.pop(group_id, None)
        else:
            self._configs[group_id] = config
        host = self.shard_of(group_id).host
        if host is not None:
            host.configure(group_id, config)

    def move(self, shard: Shard, node_id: int, load_s: float = 0.0) -> None:
        """Let another broker lead a shard: it loads the journal, which takes `load_s` seconds."""
        self._unload(shard)
        shard.node_id = node_id
        shard.epoch += 1
        self.on_leader(shard)
        self._on_state(shard, "load")
        if load_s <= 0:
            self._load(shard)
        else:
            loop = asyncio.get_running_loop()
            shard.load_timer = loop.call_later(load_s, self._load, shard)

    def next_deadline(self) -> int | None:
        """Return the time when the next timer of any group fires, in ms; it may be too early."""
        deadlines = (host.coordinator.next_deadline() for host in self.active())
        return min((each for each in deadlines if each is not None), default=None)

    def run_due(self) -> None:
        """Run the timers that are due; the clock may have been moved."""
        for host in self.active():
            host.run_due()

    def _unload(self, shard: Shard) -> None:
        if shard.load_timer is not None:
            shard.load_timer.cancel()
            shard.load_timer = None
        if shard.host is not None:
            shard.host.close()
            shard.host = None
            self._on_state(shard, "resign")

    def _load(self, shard: Shard) -> None:
        assert self._clock is not None
        shard.load_timer = None
        loaded = partial(self._loaded, shard, self._clock.now_ms())
        make = self._make_hooks
        hooks = ServedHooks(self.internal_topics) if make is None else make(shard, loaded)
        hooks.turns, hooks.rights = self._turns, lambda: self.may
        shard.host = hooks.host = CoordinatorHost(loaded(), shard.journal, self._clock, hooks)
        self._on_state(shard, "active")
        shard.host.process(TopicsChanged(image=self._image))

    def _loaded(self, shard: Shard, now_ms: int) -> GroupCoordinator:
        coordinator = GroupCoordinator(self.config)
        coordinator.replay(shard.journal, now_ms)
        for group_id, config in self._configs.items():
            if self.shard_of(group_id) is shard:
                coordinator.set_group_config(group_id, config)
        return coordinator


_LONGEST_JOURNAL = 100_000
"""Records that a journal in memory holds before those that newer ones replaced are dropped."""
_LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
