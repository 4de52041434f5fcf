"""Our side of a comparison: the coordinator behind the endpoint's own translators, without a socket.

It takes the same bytes as the broker and returns bytes. Its clock is set from outside, and it gets the ids
that a broker makes up, so that both sides can be compared value by value. Targets are compared as soon as
they are computed. The broker decides which of several equal ones `uniform` chooses, and our side takes that
over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from fencepost.coordinator.assign.java_order import hash_map_order
from fencepost.coordinator.assign.spec import Assignor, GroupSpec
from fencepost.coordinator.assign.tasks import TaskGroupSpec
from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import read_header
from fencepost.coordinator.codec.registry import api_name, codec_of
from fencepost.coordinator.config import GroupConfig, GroupCoordinatorConfig, ReleaseVersion
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost, HostHooks, ManualClock
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.classic import JoinGroupRequest
from fencepost.coordinator.protocol.cluster import Node
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicId
from fencepost.coordinator.protocol.outcome import (
    CreateInternalTopics,
    Event,
    MemberFenced,
    Outcome,
    RegularExpressionsResolved,
    Request,
    Response,
    TopicsChanged,
)
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.slices import Sliced, at_once
from fencepost.coordinator.protocol.streams import NO_TASKS, TopicInfo
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.coordinator.server.dispatch import handlers
from fencepost.coordinator.server.groups import GroupCoordinators
from fencepost.coordinator.server.rights import Rights
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.transactions import TransactionCoordinators
from fencepost.coordinator.server.turns import WorkQueue
from fencepost.simulation.embedded.logs import NoConnection
from fencepost.simulation.lab.conform.targets import (
    TARGET_RULES,
    TASKS_ARE_VALID,
    Target,
    TaskTarget,
    broken_rules,
    valid_tasks,
)


class TargetWanted(Exception):
    """The broker's target must be known before ours can be."""


class _Following(GroupCoordinator):
    """The coordinator, with assignors that are checked against the broker's, and take over its choice."""

    def __init__(self, config: GroupCoordinatorConfig) -> None:
        super().__init__(config)
        self.wanted = False
        self.offered: Target | None = None
        self.alone = False
        """True if the broker has computed no target, so that ours is as good as any."""
        self.checked: list[str] = []
        """The rules about targets that the last request tested."""
        self.broken: list[str] = []
        """Those of them that do not hold."""
        own = self.consumer.assignors.items()
        self.consumer.assignors = {name: partial(self._follow, name, assignor) for name, assignor in own}
        self.follows_tasks = config.release_version is not ReleaseVersion.V4_3
        """True if the broker's targets of streams groups are taken over: those of Kafka 4.4 differ from ours.
        """
        self.offered_tasks: TaskTarget = {}
        if self.follows_tasks:
            self.streams.assignor = self._follow_tasks

    def _follow(self, name: str, assignor: Assignor, spec: GroupSpec) -> Mapping[MemberId, Partitions]:
        if self.alone:
            return assignor(spec)
        if self.offered is None:
            self.wanted = True
            raise TargetWanted
        self.checked += TARGET_RULES.get(name, ())
        if not spec.homogeneous and name in TARGET_RULES:
            self.checked.append(f"assignor.{name}.mixed")
        self.broken += broken_rules(name, spec, assignor(spec), self.offered)
        return {member: self.offered.get(member, {}) for member in spec.subscriptions}

    def _follow_tasks(self, spec: TaskGroupSpec) -> TaskTarget:
        target = {member_id: self.offered_tasks.get(member_id, NO_TASKS) for member_id in spec.members}
        self.checked.append(TASKS_ARE_VALID)
        if not valid_tasks(target, spec):
            self.broken.append(TASKS_ARE_VALID)
        return target


class _Groups:
    """The handlers' access to the one coordinator."""

    def __init__(self, own: Own) -> None:
        self._own = own

    def ask(self, request: Request, node_id: int) -> Response | OwnWaiting:
        reply = self._own.process(request)
        return self._own.park(request) if reply is None else reply

    def explained(self, group_id: str, reply: Response) -> Response:
        """Return the reply unchanged: topics are created where they are compared, and nothing fails."""
        return reply


class OwnWaiting:
    """A request of the classic protocol that waits on our side."""

    def __init__(self) -> None:
        self.reply: Response | None = None
        """Its response, once it has one."""
        self.over_the_wire: Callable[[Response], Any] = lambda reply: reply

    @property
    def answer(self) -> Any:
        """Return the response as the client reads it; None while it waits."""
        return None if self.reply is None else self.over_the_wire(self.reply)


class _OwnHooks(HostHooks):
    """The hooks of our side's host: they note what it reports and asks for."""

    def __init__(self, own: Own) -> None:
        self._own = own

    def stepped(self, event: Event, outcome: Outcome, now_ms: int) -> None:
        self._own.take(event, outcome)

    def later(self, work: Sliced[None]) -> None:
        self._own.later(work)

    def deliver(self, responses: Sequence[tuple[OwnWaiting, Response]], outcome: Outcome) -> None:
        for waiting, response in responses:
            waiting.reply = response


class Own:
    """One coordinator of ours, for one schedule."""

    def __init__(self, config: GroupCoordinatorConfig, *, is_kafka: bool = True) -> None:
        """`is_kafka` is true if the broker is Kafka's own."""
        self.coordinator = _Following(config)
        self.records: list[Record] = []
        """Records that were written since the last request, timers included."""
        self.fenced: list[str] = []
        """The timers that removed members since the last request: `session` or `rebalance`."""
        self.internal_topics: list[TopicInfo] = []
        """Topics that a streams group has waited for since the last request."""
        self.generated_member_id: MemberId = ""
        """The id to give to a member that joins without one."""
        self._config = config
        self._is_kafka = is_kafka
        self._clock = ManualClock()
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._background: list[Sliced[None]] = []
        self._host = CoordinatorHost(self.coordinator, MemoryJournal(), self._clock, _OwnHooks(self))
        self._cluster = KafkaCluster()
        self._cluster.nodes = (Node(node_id=1, host="127.0.0.1", port=9092),)
        self._handlers = handlers()
        self._services = Services(
            cluster=self._cluster,
            groups=cast("GroupCoordinators", _Groups(self)),
            transactions=cast("TransactionCoordinators", None),  # nothing is produced here
            config=config,
            node_id=1,
            loop=asyncio.get_running_loop(),
            work_queue=WorkQueue(),
            rights=Rights(),
        )
        self._change(self._cluster.image)

    def ask(self, api_key: int, version: int, message: Any, client_id: str, client_host: str) -> Any:
        """Return our response to a request, through bytes both ways.

        :raises FencepostError: if our endpoint does not speak that version of the API.
        """
        frame = request_frame(api_key, version, 1, client_id, message)[4:]
        header = read_header(frame)
        codec = codec_of(api_key, version)
        if codec is None:
            raise FencepostError(f"{api_name(api_key)} version {version} is not spoken by our endpoint")
        context = RequestContext(version, header.client_id, client_host)
        request = codec.decode(frame, codec.body_of(frame, header), context)
        reply = self._handlers[api_key](self._services, request, Asked(context, "127.0.0.1", NoConnection()))

        def over_the_wire(reply: Response) -> Any:
            return read_response(api_key, version, b"".join(codec.encode(1, reply))[4:])[1]

        if isinstance(reply, OwnWaiting):
            reply.over_the_wire = over_the_wire
            return reply
        return over_the_wire(reply)

    def process(self, event: Event) -> Response | None:
        """Run one step of the coordinator."""
        if isinstance(event, ConsumerGroupHeartbeatRequest) and event.generated_member_id:
            event = msgspec.structs.replace(event, generated_member_id=self.generated_member_id)
        if isinstance(event, JoinGroupRequest):
            prefix = event.client_id if event.instance_id is None else event.instance_id
            suffix = self.generated_member_id.removeprefix(f"{prefix}-")
            event = msgspec.structs.replace(event, new_member_suffix=suffix)
        self._order_members()
        reply: Response | None = self._host.process(event).reply
        return reply

    def park(self, request: Any) -> OwnWaiting:
        """Keep a request that has no reply yet."""
        waiting = OwnWaiting()
        self._host.park(request.token, waiting)
        return waiting

    def _order_members(self) -> None:
        """Put the members of classic groups in the order of Kafka's hash map, whose first one leads next.

        Of other brokers the one that joined first leads next.
        """
        if not self._is_kafka:
            return
        for group in self.coordinator.classic.groups.values():
            members = group.members
            group.members = {member_id: members[member_id] for member_id in hash_map_order(members)}

    def lead(self, group_id: str, leader: MemberId) -> None:
        """Let the broker's choice lead a classic group whose leader it is free to choose."""
        group = self.coordinator.classic.groups.get(group_id)
        if group is not None and leader in group.members:
            group.leader = leader

    @property
    def now_ms(self) -> int:
        """The present time, in milliseconds since the schedule began."""
        return self._clock.time_ms

    def advance(self, now_ms: int) -> None:
        """Advance to that time, in milliseconds since the schedule began, and let what is due happen."""
        while (deadline := self.coordinator.next_deadline()) is not None and deadline <= now_ms:
            self._clock.time_ms = max(self._clock.time_ms, deadline)
            self._order_members()
            self._host.run_due()
        self._clock.time_ms = max(self._clock.time_ms, now_ms)

    def resolve(self) -> Mapping[str, tuple[str, ...]] | None:
        """Match regular expressions that wait for it, and return the topics of each; None if no expression
        waits."""
        background, self._background = self._background, []
        self._resolved = {}
        for work in background:
            at_once(work)
        return self._resolved if background else None

    def later(self, work: Sliced[None]) -> None:
        """Keep work for `resolve`: the broker takes its time, too."""
        self._background.append(work)

    def take(self, event: Event, outcome: Outcome) -> None:
        """Note what one step did."""
        self.records += outcome.records
        if isinstance(event, RegularExpressionsResolved):
            self._resolved |= event.topics
        for one in outcome.effects:
            if isinstance(one, CreateInternalTopics):
                self.internal_topics += one.topics
        self.fenced += [one.reason for one in outcome.effects if isinstance(one, MemberFenced)]

    # Topics and configuration, as the broker has them

    def put_topic(self, name: str, topic_id: TopicId, partitions: int) -> None:
        """Note that the topic exists, with that many partitions."""
        self._change(
            self._cluster.image.with_topic(Topic(topic_id=topic_id, name=name, partitions=partitions))
        )

    def drop_topic(self, name: str) -> None:
        """Note that the topic exists no more."""
        self._change(self._cluster.image.without(name))

    @property
    def image(self) -> TopicsImage:
        """The topics that exist."""
        return self._cluster.image

    def _change(self, image: TopicsImage) -> None:
        self._cluster.image = image
        self.process(TopicsChanged(image=image))

    def configure_group(self, group_id: str, values: Mapping[str, str]) -> ErrorCode:
        """Set the settings of one group."""
        try:
            config = GroupConfig.from_properties(values, self._config)
        except FencepostError:
            return ErrorCode.INVALID_CONFIG
        self.coordinator.set_group_config(group_id, config)
        return ErrorCode.NONE
