"""Observers of a run: judges, and the recorder of the trace.

An observer overrides the hooks that it needs; the world calls no others. Hooks run inside the step that they
report, after its records were applied. They must only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicId, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Event, Outcome, Request, Response
from fencepost.coordinator.protocol.topics import TopicsImage

if TYPE_CHECKING:
    from fencepost.coordinator.config import GroupCoordinatorConfig
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.coordinator.journal.memory import MemoryJournal
    from fencepost.coordinator.transactions.coordinator import TransactionCoordinator
    from fencepost.member.base.driver import MemberDriver
    from fencepost.simulation.scenarios.scenario import Scenario


RAISED: Final = "raised "
"""The first part of the `invariant` of a violation that is an exception which ended the run; the exception's
type follows."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """An invariant that did not hold. `seq` is the trace row after which this was seen."""

    invariant: str
    seq: int
    t_us: int
    message: str
    rule: str = ""
    """The function that found it, such as `judge.targets:check_targets`; empty if that is not known."""


class RecordsObserved(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a step that was seen in a real coordinator's journal; the request that caused it is
    unknown."""

    group_id: str
    cause: str
    """The cause of a raised group epoch in the trace: join, full, leave, timeout, topics or expressions. It
    is `load` for records that existed before the observer started, and "" for records without a cause.

    `load` is what there was before anybody looked; other records are of no cause: "".
    """
    removed: Mapping[MemberId, str] = {}
    """The reason for each removed member: left, session, rebalance or replaced."""
    unsettled: frozenset[TopicId] = frozenset()
    """Topics that changed around that time: the coordinator may have seen them before or after the change."""
    refused: tuple[str, ...] = ()
    """Records that can't follow the records before them, with the reasons."""


StepEvent: TypeAlias = Event | RecordsObserved
"""The event of a coordinator's step."""


class FindingReport(Protocol):
    """Takes an invariant's name and a message; the world adds the time and the place in the trace."""

    def __call__(self, invariant: str, message: str, /, rule: str = "") -> None:
        """Record one finding of that rule."""


class CoordinatorView(Protocol):
    """A broker's host, as observers see it."""

    @property
    def name(self) -> str:
        """The host's name."""

    @property
    def status(self) -> str:
        """`standby` (not in charge), `loading`, `active` or `down`."""

    @property
    def coordinator(self) -> GroupCoordinator | None:
        """The group's coordinator while this host loads or runs it."""


class MemberView(Protocol):
    """A member's host, as observers see it."""

    @property
    def name(self) -> str:
        """The host's name; it stays the same over restarts."""

    @property
    def status(self) -> str:
        """`stopped`, `running`, `stopping`, `frozen` or `crashed`."""

    @property
    def member_id(self) -> MemberId:
        """The id of the member that runs here now, or ran here last; empty until a classic member has its
        id."""

    @property
    def instance_id(self) -> str | None:
        """The instance id of a static member."""

    @property
    def driver(self) -> MemberDriver | None:
        """The member itself while its process lives."""


class WorldView(Protocol):
    """The part of the world that an observer may read."""

    @property
    def now_us(self) -> int:
        """Virtual microseconds since the start of the run."""

    @property
    def group_id(self) -> str:
        """The one group of this world."""

    @property
    def config(self) -> GroupCoordinatorConfig:
        """The coordinator's configuration."""

    @property
    def topics(self) -> TopicsImage:
        """The cluster's current topics; coordinators may lag behind."""

    @property
    def journal(self) -> MemoryJournal:
        """The replicated log that all coordinators of the group write to and load from."""

    @property
    def coordinators(self) -> Mapping[str, CoordinatorView]:
        """All broker hosts by name."""

    @property
    def active(self) -> GroupCoordinator | None:
        """The coordinator that serves requests now, if there is one."""

    @property
    def members(self) -> Mapping[str, MemberView]:
        """All member hosts by name."""

    @property
    def hosts_by_member(self) -> Mapping[MemberId, str]:
        """The host of each member id that ever existed."""

    @property
    def log_ends(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition's log, as of now."""

    @property
    def faults_over(self) -> bool:
        """True if the last phase has begun, in which nothing disturbs the group."""

    @property
    def settling_ms(self) -> int | None:
        """Time that the group may take to settle once nothing disturbs it, in ms; None if it may never
        settle."""


Subscribed: TypeAlias = tuple[frozenset[str], str | None]
"""The topics and the expression that an application subscribes to."""


class ScenarioMemberView(MemberView, Protocol):
    """The host of a member that a scenario starts and stops."""

    @property
    def wanted(self) -> bool:
        """True if a process is to run there: one that ends comes back."""


class MembersWorldView(WorldView, Protocol):
    """The part that an observer may read of a world whose members a scenario has made."""

    @property
    def members(self) -> Mapping[str, ScenarioMemberView]:
        """All member hosts by name."""

    @property
    def scenario(self) -> Scenario:
        """The scenario of the run: its applications, and the requests to their members."""

    def subscription_of(self, host: str) -> Subscribed | None:
        """Return the subscription of the application on that host; None if it is not known."""


class TransactionsView(WorldView, Protocol):
    """The part of a world with transactions that an observer may read."""

    @property
    def journal_fails(self) -> bool:
        """True if the coordinators' logs refuse records now."""

    @property
    def transactions(self) -> TransactionCoordinator | None:
        """The coordinator of transactions that serves requests now, if there is one."""


class WorldObserver:
    """The base of everything that observes a world, with the hooks that every world calls.

    A kind of world declares its further hooks in a subclass with `declares_hooks`.
    """

    hooks: ClassVar[tuple[str, ...]] = ()
    """All hooks that a world of this kind calls."""
    declared_by: ClassVar[type[WorldObserver]]
    """The class that declares these hooks without doing anything in them."""
    overridden: ClassVar[tuple[str, ...]] = ()
    """The hooks of this class that do something."""

    def __init_subclass__(cls, *, declares_hooks: bool = False) -> None:
        super().__init_subclass__()
        if declares_hooks:
            cls.declared_by = cls
            cls.hooks = tuple(name for name in dir(cls) if name.startswith("on_"))
        base = cls.declared_by
        cls.overridden = tuple(hook for hook in cls.hooks if getattr(cls, hook) is not getattr(base, hook))

    def attach(self, world: Any, report: FindingReport) -> None:
        """Receive the world once, before anything happens."""

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """Observe that a fault `begin`s or `end`s; one without a duration only begins."""

    def on_faults_end(self, now_us: int) -> None:
        """Observe that nothing disturbs the world from now on."""

    def on_violation(self, violation: Violation) -> None:
        """Observe a violation that a judge reported."""

    def on_end(self, now_us: int) -> None:
        """Observe the end of the run; judges of progress report now."""


WorldObserver.declared_by = WorldObserver
WorldObserver.hooks = tuple(name for name in vars(WorldObserver) if name.startswith("on_"))


class Observer(WorldObserver, declares_hooks=True):
    """The base of observers of a group's coordinator and its members.

    The names of hosts are keys of the world's mappings.
    """

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Receive the world once, before anything happens."""

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Observe a coordinator's step that wrote records, had effects, or returned an error. Records are
        applied."""

    def on_steady_step(self, host: str, event: Event, outcome: Outcome, now_us: int) -> None:
        """Observe any other step of a coordinator, which changed nothing. This hook is called most often."""

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Observe a change of a broker's host: `crash`, `restart`, `resign`, `load` (begins) or `active` (has
        loaded)."""

    def on_member_state(self, host: str, /, event: str, source: str, target: str, now_us: int) -> None:
        """Observe a transition of a member's state machine."""

    def on_member_request(self, host: str, /, request: Request, now_us: int) -> None:
        """Observe that a member's driver sent a request."""

    def on_member_response(
        self, host: str, /, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Observe that a member's driver got a response, or an exception instead of one."""

    def on_round_trip(self, host: str, took_us: int, written: bool, now_us: int) -> None:
        """Observe the time that a request took; `written` says that its response waited for the log."""

    def on_callback(
        self, host: str, /, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        """Observe that a rebalance callback (`assigned`, `revoked`, `lost`) reached `begin`, `end` or
        `raised`."""

    def on_commit(
        self,
        host: str,
        /,
        request: OffsetCommitRequest,
        response: OffsetCommitResponse | Exception,
        now_us: int,
    ) -> None:
        """Observe the response to a member's commit, or that none came."""

    def on_commit_told(self, host: str, /, code: ErrorCode, now_us: int) -> None:
        """Observe that a commit of the application's own ended with this error; NONE if it is committed."""

    def on_poll(self, host: str, /, phase: str, now_us: int) -> None:
        """Observe that the application is about to `begin` or to `end` a poll, or that a poll has
        `failed`."""

    def on_records_delivered(
        self, host: str, /, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """Observe the end of a poll, with the records that the application received."""

    def on_records_processed(
        self, host: str, /, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """Observe that the application finished these records."""

    def on_operation(self, request: Request, response: Response | Exception | None, now_us: int) -> None:
        """Observe the response to an operator's request, or that none came."""

    def on_records_rewound(self, host: str, /, partition: TopicPartition, offset: int, now_us: int) -> None:
        """Observe that the application goes back to a committed position, because its transaction was
        aborted.

        Or, at offset 0, its process is about to end, and the next one repeats what is not committed.
        """

    def on_transaction_step(self, host: str, event: Any, outcome: Any, now_us: int) -> None:
        """Observe a step of the coordinator of transactions. Records are applied."""

    def on_transactions_loaded(self, host: str, now_us: int) -> None:
        """Observe that another broker has loaded the log of transactions, and coordinates them."""

    def on_member_host(self, host: str, /, what: str, now_us: int) -> None:
        """Observe a change of a member's host: `start`, `stop` (begins), `stopped`, `crash`, `freeze`,
        `thaw`."""

    def on_member_search(self, host: str, /, now_us: int) -> None:
        """Observe that a member looks up its group's coordinator. Until it knows, it can send nothing to the
        coordinator."""

    def on_member_lookup(self, host: str, /, request: object, now_us: int) -> None:
        """Observe that a member asks some broker for metadata, or for offsets of logs."""

    def on_loss(self, host: str, /, broker: str, kind: str, request: Request, now_us: int) -> None:
        """Observe that the network lost a member's `request`, or the `response` to it."""

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Observe that a topic was `created`, `grown` or `deleted`; `partitions` is its number of partitions
        now."""


def hook_lists(
    observers: Iterable[WorldObserver], kind: type[WorldObserver] = Observer
) -> dict[str, tuple[Callable[..., Any], ...]]:
    """Return, for each hook of that kind of world, the methods of the observers that override it, in
    order."""
    methods: dict[str, list[Callable[..., Any]]] = {hook: [] for hook in kind.hooks}
    for observer in observers:
        for hook in observer.overridden:
            methods[hook].append(getattr(observer, hook))
    return {hook: tuple(each) for hook, each in methods.items()}
