"""One schedule against the broker and against our coordinator, response by response.

The broker goes first. Its arbitrary choices (ids, and which of several equal targets `uniform` takes) are
given to our side, whose clock shows the time since the schedule began. Everything else must be equal. The
first difference ends the schedule: nothing after it could be compared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicId, partitions_of
from fencepost.coordinator.protocol.streams import StreamsGroupDescribeResponse
from fencepost.simulation.brokers.connection import BrokerConnection, to_the_end
from fencepost.simulation.brokers.requests import poll
from fencepost.simulation.judge.base import OF_LOG
from fencepost.simulation.lab.conform.broker import READY_S, ReferenceBroker, await_topics
from fencepost.simulation.lab.conform.classic_requests import MAY_WAIT
from fencepost.simulation.lab.conform.deviations import (
    NOTHING_MATCHES,
    TAKES_INSTANCE_ID,
    WARMS_TASKS_UP,
    Deviation,
    deviation_of,
)
from fencepost.simulation.lab.conform.equality import comparable, differing
from fencepost.simulation.lab.conform.exchange import ConformExchange, ConformGroupView, History
from fencepost.simulation.lab.conform.exercised import exercised
from fencepost.simulation.lab.conform.own import Own, OwnWaiting
from fencepost.simulation.lab.conform.resolve import ADMIN, ResolveContext, WireRequest
from fencepost.simulation.lab.conform.schedule import (
    AwaitStep,
    Configure,
    CreateTopicStep,
    DeleteTopicStep,
    Describe,
    DescribeStreams,
    Grow,
    Schedule,
    Step,
    StreamsBeat,
    Wait,
)

EPOCH_MS = 1_000_000_000
"""The time of our clock when a schedule begins: not 0, which means "never" to a coordinator."""
_UNSPECIFIED = "unspecified"
_RETRY_S = 0.05
_SETTLE_S = 2.0
_POLL_S = 0.01
_QUIET_S = 0.05
"""Time that a resolution may take that changes no epoch, so that nothing shows its end, in seconds."""

_WAITS_S = 0.03
"""Time after which a request without a response is assumed to wait for other members, in seconds."""
_UNANSWERED_S = 0.1
"""Time for which a response is awaited that Kafka is known not to give, in seconds."""
_GRACE_S = 2.0
"""Time by which our own timers may end a wait later than the broker, in seconds."""
_LONGEST_WAIT_S = 60.0
_CLASSIC_DESCRIPTION = 5
"""The version of DescribeGroups that lists the members of a classic group, with instance ids."""


class LockstepDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The point at which the two sides part: the rule that accounts for it, the schedule, and its step."""

    rule: str
    schedule: Schedule
    step: int
    fields: tuple[str, ...]
    """Each field that differs, with both values."""
    request: Any


class LockstepResult(msgspec.Struct, kw_only=True):
    """The result of one schedule."""

    requests: int = 0
    exercised: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of times that each rule was exercised with equal responses."""
    deviation: Deviation | None = None
    """The known deviation that ended the schedule early."""
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of requests that were not sent, by API and version, because ApiVersions does not list it."""
    passed: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of times that known deviations showed that end no schedule."""
    difference: LockstepDifference | None = None
    raced: bool = False
    """True if a timer ended while a request was under way, or so close to it that the sides may disagree."""


class _Parted(Exception):
    """The two sides differ."""

    def __init__(self, rule: str, fields: list[str], request: Any) -> None:
        super().__init__(rule)
        self.rule = rule
        self.fields = fields
        self.request = request


class _Deviates(Exception):
    """The two sides differ in a known way."""

    def __init__(self, deviation: Deviation) -> None:
        super().__init__(deviation.name)
        self.deviation = deviation


class _WaitingExchange(NamedTuple):
    """A request that waits for other members, on our side at least."""

    exchange: ConformExchange
    call: WireRequest
    connection: BrokerConnection
    answering: asyncio.Task[Any]
    """The task that waits for the broker's response."""
    ours: OwnWaiting


class Lockstep:
    """Runs one schedule. Its topics exist when it begins; `close` leaves nothing else behind."""

    def __init__(
        self,
        judge: ReferenceBroker,
        schedule: Schedule,
        *,
        group_id: str,
        prefix: str,
        topic_ids: Mapping[str, TopicId],
    ) -> None:
        self._judge = judge
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._situation = ResolveContext(group_id, prefix)
        self._situation.topic_ids.update(topic_ids)
        self._own = Own(judge.config, is_kafka=judge.is_kafka)
        self._own.advance(EPOCH_MS)
        for name, topic_id in topic_ids.items():
            self._own.put_topic(prefix + name, topic_id, schedule.topics[name])
        self._connections: dict[tuple[str, tuple[str, int]], BrokerConnection] = {}
        self._comparison = LockstepResult()
        self._history = History()
        self._waiting: list[_WaitingExchange] = []
        self._replaced: list[BrokerConnection] = []
        """Connections on which a request waits, or waited, and that have a successor."""
        self._was_consumer_group = False
        self._leader_is_free = False
        """True if the members of a consumer group that became classic have no leader yet."""
        self._slowest_ms = 0
        """Time of the longest step but for waits, in ms."""

    async def run(self) -> LockstepResult:
        """Run all steps, until the sides differ.

        :raises EnvironmentLacks: if the broker goes away, or has no coordinator for the group.
        """
        found = self._comparison
        index = 0
        try:
            await self._group_is_served()
            while index < len(self._schedule.steps):
                await self._timed(self._schedule.steps[index])
                index += 1
        except _Parted as parted:
            found.difference = LockstepDifference(
                rule=parted.rule,
                schedule=self._schedule,
                step=index,
                fields=tuple(parted.fields),
                request=parted.request,
            )
        except _Deviates as deviates:
            found.deviation = deviates.deviation
        return found

    async def close(self) -> None:
        """Remove the group, as far as the broker lets us, and close the connections."""
        if not self._connections:
            return  # no request was sent: there is no group
        try:
            groups: list[Any] = [*(await self._described_by_broker()).groups]
            groups += await self._described_as_classic()
            members = tuple(
                consumer.LeaveGroupRequest(group_id=self._situation.group_id, member_id=member.member_id)
                for group in groups
                for member in group.members
            )
            for call in self._situation.farewell(members):
                if not self._judge.speaks(call.api_key, call.version):
                    continue  # nothing of that kind was sent either
                admin = await self._connection(ADMIN, call.group_id)
                await admin.ask(call.api_key, call.version, call.message)
            await self._judge.forget_group(self._situation.group_id)
        finally:
            for waiting in self._waiting:
                waiting.answering.cancel()
            for connection in (*self._connections.values(), *self._replaced):
                connection.hang_up()

    async def _connection(self, sender: str, group_id: str = "") -> BrokerConnection:
        """Return the sender's connection to a group's coordinator; requests about a blank group go anywhere.

        A connection on which a request waits is not used meanwhile: Kafka would read nothing from it.
        """
        address = await self._judge.coordinator(group_id.strip() or self._situation.group_id)
        found = self._connections.get((sender, address))
        if found is not None and any(
            waiting.connection is found and not waiting.answering.done() for waiting in self._waiting
        ):
            self._replaced.append(found)
            found = None
        if found is None:
            found = self._connections[sender, address] = await BrokerConnection.open(
                *address, sender, _LONGEST_WAIT_S
            )
        return found

    def _now_ms(self) -> int:
        return EPOCH_MS + int((self._loop.time() - self._started) * 1000)

    async def _group_is_served(self) -> None:
        """Wait until the group's coordinator has loaded its part of the log."""
        group_id = self._situation.group_id

        async def error_code() -> ErrorCode:
            code: ErrorCode = (await self._described_by_broker()).groups[0].error_code
            return code

        await poll(
            error_code,
            lambda code: code not in OF_LOG,
            lambda code: f"the coordinator of {group_id}: {code.name} for {READY_S:g} s",
            limit_s=READY_S,
            pause_s=_RETRY_S,
        )
        topics = self._own.image.by_name.values()
        await self._topics_are_known({topic.name: (topic.topic_id, topic.partitions) for topic in topics})

    async def _topics_are_known(self, topics: Mapping[str, tuple[TopicId, int]]) -> None:
        group_id = self._situation.group_id
        partitions = self._judge.config.offsets_topic_num_partitions
        await await_topics(await self._connection(ADMIN), group_id, topics, partitions)

    async def _timed(self, step: Step) -> None:
        """Take a step, and note if a timer may have ended before it on one side, and after it on the other.

        Each side's timers began some time within a step: they differ by the time of the longest step at most.
        """
        began_ms, due = self._now_ms(), [self._own.coordinator.next_deadline()]
        try:
            await self._step(step)
        finally:
            if not isinstance(step, Wait | AwaitStep):
                ended_ms = self._now_ms()
                self._slowest_ms = slack_ms = max(self._slowest_ms, ended_ms - began_ms)
                due.append(self._own.coordinator.next_deadline())
                self._comparison.raced |= any(
                    each is not None and began_ms - slack_ms <= each <= ended_ms + slack_ms for each in due
                )

    async def _step(self, step: Step) -> None:
        match step:
            case Wait():
                await asyncio.sleep(step.ms / 1000)
                await self._timers_are_over()
                await self._settle()
            case AwaitStep():
                await self._await_answers(step.ms / 1000)
            case CreateTopicStep() | Grow() | DeleteTopicStep():
                await self._change_topics(step)
            case Configure():
                await self._configure(step)
            case _:
                await self._exchange(step)

    # Requests to the group's coordinator

    async def _exchange(self, step: Step) -> None:
        call = self._situation.call(step)
        if not self._judge.speaks(call.api_key, call.version):
            self._comparison.left_out[f"{ApiKey(call.api_key).name} {call.version}"] += 1
            return
        connection = await self._connection(call.sender, call.group_id)
        if isinstance(step, MAY_WAIT):
            await self._exchange_that_may_wait(step, call, connection)
        else:
            answer = await to_the_end(connection.ask(call.api_key, call.version, call.message))
            self._own.generated_member_id = getattr(answer, "member_id", None) or "generated"
            if isinstance(step, StreamsBeat) and self._own.coordinator.follows_tasks:
                await self._offer_tasks()
            exchange = await self._ask_own(step, call, connection.host, self._now_ms())
            self._finish(msgspec.structs.replace(exchange, answer=answer))
        if (matches := self._own.resolve()) is not None:
            await self._await_resolution(matches)
        await self._await_internal_topics()
        await self._settle()

    async def _ask_own(self, step: Step, call: WireRequest, host: str, now_ms: int) -> ConformExchange:
        """Return our response; it has the broker's choice among equals if it depends on that."""
        own = self._own
        own.records.clear()
        own.internal_topics.clear()
        own.coordinator.checked.clear()
        own.advance(now_ms)
        before = ConformGroupView.of(own.coordinator, call.group_id)
        ours = self._our_answer(call, host)
        if own.coordinator.wanted:
            own.coordinator.offered = _targets(described := await self._described_by_broker())
            own.coordinator.alone = described.groups[0].error_code is not ErrorCode.NONE
            ours = self._our_answer(call, host)
            own.coordinator.wanted, own.coordinator.offered = False, None
            own.coordinator.alone = False
        after = ConformGroupView.of(own.coordinator, call.group_id)
        was_consumer_group = self._was_consumer_group or bool(before.consumers)
        self._leader_is_free |= was_consumer_group and after.kind == "classic"
        self._was_consumer_group = bool(after.consumers)
        return ConformExchange(
            step=step,
            request=call.message,
            version=call.version,
            group_id=call.group_id,
            answer=None,
            ours=ours,
            before=before,
            after=after,
            records=tuple(own.records),
            config=self._judge.config,
            history=self._history,
        )

    async def _offer_tasks(self) -> None:
        """Show our side the tasks that the broker wants each member of a streams group to have."""
        admin = await self._connection(ADMIN)
        call = self._situation.call(DescribeStreams())
        described: StreamsGroupDescribeResponse = await admin.ask(call.api_key, call.version, call.message)
        members = described.groups[0].members
        if any(member.target_assignment.warmup for member in members):
            raise _Deviates(WARMS_TASKS_UP)
        self._own.coordinator.offered_tasks = {
            member.member_id: member.target_assignment for member in members
        }

    def _our_answer(self, call: WireRequest, host: str) -> Any:
        try:
            return self._own.ask(call.api_key, call.version, call.message, call.sender, host)
        except Exception as error:
            # A defect of ours is a difference like others: its schedule is to be shrunk and shown.
            raise _Parted(
                "crash", [f"fencepost raised {type(error).__name__}: {error}"], call.message
            ) from error

    def _finish(self, exchange: ConformExchange) -> None:
        """Finish an exchange: both sides have responded."""
        self._judge_exchange(exchange)
        self._history = self._history.after(exchange)
        self._situation.hear(exchange.step, exchange.answer)

    def _judge_exchange(self, exchange: ConformExchange) -> None:
        self._comparison.requests += 1
        timers = [f"timer.{reason}" for reason in dict.fromkeys(self._own.fenced)]
        self._own.fenced.clear()
        rules = [*timers, *exercised(exchange)]
        group_id = self._situation.group_id
        fields = differing(comparable(exchange.answer, group_id), comparable(exchange.ours, group_id))
        fields = [field for field in fields if not self._passes(exchange, field)]
        own = self._own.coordinator
        broken = own.broken
        if broken and not fields:
            rules = [*broken, *rules]
            fields = [f"target: {rule} does not hold" for rule in broken]
        if fields:
            if (deviation := deviation_of(exchange, fields)) is not None:
                raise _Deviates(deviation)
            raise _Parted(rules[0] if rules else _UNSPECIFIED, fields, exchange.request)
        self._comparison.exercised.update([*rules, *own.checked])

    def _passes(self, exchange: ConformExchange, field: str) -> bool:
        """Return true if a field differs in a known way, and the two sides are in the same state
        nevertheless."""
        deviation = deviation_of(exchange, [field], ends_schedule=False)
        if deviation is None:
            return False
        self._comparison.passed[deviation.name] += 1
        return True

    # Requests that wait

    async def _exchange_that_may_wait(
        self, step: Step, call: WireRequest, connection: BrokerConnection
    ) -> None:
        """Exchange JoinGroup or SyncGroup: our side shows whether it waits, and the broker's must do the
        same."""
        sent_ms = self._now_ms()
        answering = asyncio.create_task(connection.ask(call.api_key, call.version, call.message))
        try:
            await asyncio.wait({answering}, timeout=_WAITS_S)
            if not answering.done():
                # One more request, so that the broker has handled this one before the next step.
                await self._described_as_classic()
            self._own.generated_member_id = await self._given_id(call, answering)
            self._adopt_leader(answering)
            exchange = await self._ask_own(step, call, connection.host, sent_ms)
        except BaseException:
            answering.cancel()
            raise
        self._supersede(call)
        if isinstance(exchange.ours, OwnWaiting):
            self._waiting.append(_WaitingExchange(exchange, call, connection, answering, exchange.ours))
        else:
            await self._finish_late(exchange, answering)

    async def _given_id(self, call: WireRequest, answering: asyncio.Task[Any]) -> MemberId:
        """Return the id that the broker made for a member that joins without one, which may still wait."""
        request = call.message
        if isinstance(request, classic.JoinGroupRequest) and not request.member_id:
            group = self._own.coordinator.classic.groups.get(call.group_id)
            known = set() if group is None else set(group.members)
            deadline = self._loop.time() + _SETTLE_S
            while not answering.done() and self._loop.time() < deadline:
                for described in await self._described_as_classic():
                    for member in described.members:
                        mine = member.client_id == call.sender or member.instance_id == request.instance_id
                        if mine and member.member_id not in known:
                            return member.member_id
                await asyncio.sleep(_POLL_S)
        member_id = getattr(answering.result(), "member_id", "") if answering.done() else ""
        return member_id or "generated"

    def _adopt_leader(self, answering: asyncio.Task[Any]) -> None:
        """Let the broker choose the leader of a consumer group that became classic."""
        tasks = [answering, *(waiting.answering for waiting in self._waiting)]
        answers = [task.result() for task in tasks if self._leader_is_free and task.done()]
        for answer in answers:
            if isinstance(answer, classic.JoinGroupResponse) and answer.leader:
                self._own.lead(self._situation.group_id, answer.leader)
                self._leader_is_free = False

    def _supersede(self, call: WireRequest) -> None:
        """End any waiting request of the same kind for the same member."""
        asked = call.api_key, call.message.member_id
        for place, waiting in enumerate(self._waiting):
            before = waiting.call
            if before.message.member_id and asked == (before.api_key, before.message.member_id):
                exchange = msgspec.structs.replace(waiting.exchange, superseded=True)
                self._waiting[place] = waiting._replace(exchange=exchange)

    async def _await_answers(self, limit_s: float) -> None:
        deadline = self._loop.time() + limit_s
        while self._waiting and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            await self._settle()

    async def _settle(self) -> None:
        """Compare responses to requests that have waited; check that all others wait on both sides."""
        if self._waiting:
            self._own.advance(self._now_ms())
        for waiting in tuple(self._waiting):
            if waiting.answering.done():
                await self._our_timers(waiting)
            ours = waiting.ours.answer
            exchange = msgspec.structs.replace(
                waiting.exchange,
                ours=ours,
                after=ConformGroupView.of(self._own.coordinator, waiting.call.group_id),
            )
            if ours is not None:
                self._waiting.remove(waiting)
                await self._finish_late(exchange, waiting.answering)
                self._comparison.exercised["classic.waits"] += 1
            elif waiting.answering.done():
                kafka = comparable(waiting.answering.result(), waiting.call.group_id)
                raise _Parted("classic.waits", differing(kafka, None), waiting.call.message)

    async def _our_timers(self, waiting: _WaitingExchange) -> None:
        """Wait for our timers after the broker has responded: ours may follow a little later, if one ends the
        wait."""
        deadline = self._loop.time() + _GRACE_S
        while waiting.ours.answer is None and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            self._own.advance(self._now_ms())

    async def _timers_are_over(self) -> None:
        """Wait until a timer that ended on one side has ended on the other: a busy machine delays both.

        What still differs then is found by the next request. Descriptions change nothing on the broker.
        """
        deadline = self._loop.time() + _SETTLE_S
        while True:
            self._own.advance(self._now_ms())
            if await self._same_members() or self._loop.time() > deadline:
                return
            await asyncio.sleep(_POLL_S)

    async def _same_members(self) -> bool:
        """Return true if the group has the same members, and a classic one the same state, on both sides."""
        found = self._own.coordinator.kinds.find(self._situation.group_id)
        if found is None or not self._connections:
            return True
        kind, group = found
        members: set[MemberId] = set(group.members)
        if kind is self._own.coordinator.classic:
            (described,) = await self._described_as_classic()
            phases = described.group_state, str(group.state)
            return phases[0] == phases[1] and members == {each.member_id for each in described.members}
        if kind is self._own.coordinator.consumer:
            (theirs,) = (await self._described_by_broker()).groups
            return members == {each.member_id for each in theirs.members}
        return True

    async def _finish_late(self, exchange: ConformExchange, answering: asyncio.Task[Any]) -> None:
        """Wait for the broker after our side has responded, unless Kafka is known not to respond."""
        known = deviation_of(exchange, ["answer"], ends_schedule=False)
        if known is not None:
            # A broker that does respond has done so before it responds to this, however busy it is.
            await self._described_as_classic()
        await asyncio.wait({answering}, timeout=_SETTLE_S if known is None else _UNANSWERED_S)
        if not answering.done():
            answering.cancel()
            answer = None
        else:
            answer = answering.result()
        self._finish(msgspec.structs.replace(exchange, answer=answer))

    async def _described_as_classic(self) -> tuple[classic.DescribedClassicGroup, ...]:
        """Return the schedule's group, as the broker's DescribeGroups has it."""
        admin = await self._connection(ADMIN)
        request = classic.DescribeGroupsRequest(group_ids=(self._situation.group_id,))
        answer: classic.DescribeGroupsResponse = await admin.ask(
            ApiKey.DESCRIBE_GROUPS, _CLASSIC_DESCRIPTION, request
        )
        return answer.groups

    async def _described_by_broker(self) -> consumer.ConsumerGroupDescribeResponse:
        admin = await self._connection(ADMIN)
        call = self._situation.call(Describe())
        answer: consumer.ConsumerGroupDescribeResponse = await admin.ask(
            call.api_key, call.version, call.message
        )
        return answer

    async def _await_resolution(self, matches: Mapping[str, tuple[str, ...]]) -> None:
        """Wait for the broker to match regular expressions in the background; our epochs show when it is
        done."""
        ours = self._own.coordinator.groups[self._situation.group_id]
        expected = ours.group_epoch
        await asyncio.sleep(_QUIET_S)
        deadline = self._loop.time() + _SETTLE_S
        epoch = None
        while True:
            late = self._loop.time() > deadline
            group = (await self._described_by_broker()).groups[0]
            if len(group.members) < len(ours.members):
                break  # A session expired while we waited, which raises the epoch too.
            epoch = group.group_epoch
            if epoch >= expected or late:
                break
            await asyncio.sleep(_POLL_S)
        if epoch == expected - 1 and not all(matches.values()):
            raise _Deviates(NOTHING_MATCHES)
        if epoch != expected and self._history.merged:
            raise _Deviates(TAKES_INSTANCE_ID)
        if epoch != expected:
            line = f"group epoch after the resolution: Kafka {epoch}, fencepost {expected}"
            raise _Parted("regex.resolution", [line], None)
        self._comparison.exercised["regex.resolution"] += 1

    async def _await_internal_topics(self) -> None:
        """Wait for the topics that a streams group needs, which the broker creates behind its response."""
        wanted = {topic.name: topic for topic in self._own.internal_topics}
        if not wanted:
            return
        known = {}
        for name, topic in wanted.items():
            topic_id = await self._judge.adopt_topic(name, topic.partitions)
            known[name] = (topic_id, topic.partitions)
            self._situation.topic_ids[name.removeprefix(self._situation.prefix)] = topic_id
        await self._topics_are_known(known)
        self._own.advance(self._now_ms())
        for name, (topic_id, partitions) in known.items():
            self._own.put_topic(name, topic_id, partitions)
        self._comparison.exercised["streams.topics.created"] += 1

    # Topics and configuration

    async def _change_topics(self, step: CreateTopicStep | Grow | DeleteTopicStep) -> None:
        name = self._situation.topic(step.topic)
        known = self._own.image.by_name.get(name)
        partitions = 0 if isinstance(step, DeleteTopicStep) else step.partitions
        ours = ErrorCode.NONE if known is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        theirs: Any
        match step:
            case CreateTopicStep():
                theirs = await self._judge.create_topic(name, partitions)
                ours = ErrorCode.NONE if known is None else ErrorCode.TOPIC_ALREADY_EXISTS
            case Grow():
                theirs = await self._judge.grow_topic(name, partitions)
                if known is not None and partitions <= known.partitions:
                    ours = ErrorCode.INVALID_PARTITIONS
            case DeleteTopicStep():
                theirs = await self._judge.delete_topic(name)
        self._own.advance(self._now_ms())
        if theirs.error_code is not ours:
            line = f"error_code: Kafka {theirs.error_code.name}, fencepost {ours.name}"
            raise _Parted("topics.change", [line], step)
        if ours is ErrorCode.NONE:
            topic_id = self._situation.topic_ids[step.topic] = (known or theirs).topic_id
            if partitions:
                self._own.put_topic(name, topic_id, partitions)
            else:
                self._own.drop_topic(name)
            await self._topics_are_known({name: (topic_id, partitions)})
        self._comparison.exercised["topics.change"] += 1

    async def _configure(self, step: Configure) -> None:
        if not self._judge.can_configure:
            return
        theirs = await self._judge.configure_group(self._situation.group_id, step.values)
        self._own.advance(self._now_ms())
        ours = self._own.configure_group(self._situation.group_id, step.values)
        if theirs is not ours:
            raise _Parted(
                "group.configuration", [f"error_code: Kafka {theirs.name}, fencepost {ours.name}"], step
            )
        self._comparison.exercised["group.configuration"] += 1


def _targets(described: consumer.ConsumerGroupDescribeResponse) -> dict[MemberId, Partitions]:
    return {
        member.member_id: partitions_of(
            (topic.topic_id, number) for topic in member.target_assignment for number in topic.partitions
        )
        for group in described.groups
        for member in group.members
    }
