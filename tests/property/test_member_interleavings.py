"""The pure member under any interleaving of answers, failures, callbacks, polls and time.

The machine plays the world around one member. The judges of simulated runs know what must hold of every
move, request and callback. The rest is said here: commits in their order, positions, and the end.
"""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencepost.coordinator.protocol import consumer, offsets
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import Partitions, TopicPartition
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.member.base.actions import (
    FetchOffsets,
    FindLogOffsets,
    FindOffsetsByDuration,
    LeaveFinished,
    RaiseToApplication,
    ResolveTopicNames,
    RunCallback,
    SendCommit,
    SendFindCoordinator,
)
from fencepost.member.base.commits import Commit, CommitKind
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import RequestFailure
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.transport import RequestTimedOut
from fencepost.member.consumer.actions import (
    Action,
    ConsumerMoved,
    SendHeartbeat,
)
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.states import ACTIVE, NEVER_TAKEN
from fencepost.member.consumer.states import ConsumerMemberState as S
from fencepost.simulation.judge.members import Callbacks, Transitions
from fencepost.simulation.judge.requests import Requests
from tests.unit.simulation.member_worlds import world_of_members

NAMES = {"foo-id": "foo", "bar-id": "bar"}
TOPICS = TopicsImage.of(Topic(topic_id=one, name=name, partitions=3) for one, name in NAMES.items())
MAX_POLL_MS = 20_000

assignments = st.dictionaries(
    st.sampled_from(sorted(NAMES)),
    st.sets(st.integers(0, 2), min_size=1).map(lambda numbers: tuple(sorted(numbers))),
)
errors = st.sampled_from(
    [
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ]
)
commit_errors = st.sampled_from(
    [
        ErrorCode.NONE,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
)
failures = st.sampled_from(list(RequestFailure))
resets = st.sampled_from(["earliest", "latest", "by_duration:PT1H", "none"])
LOGS = (FindLogOffsets, FindOffsetsByDuration)
OTHERS = (SendFindCoordinator, ResolveTopicNames, SendCommit, FetchOffsets, *LOGS)


class MemberWorld(RuleBasedStateMachine):
    """One member, and all that an observer may conclude from what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.member = ConsumerMember("group", "member", ConsumerConfig(), random.Random(0))
        self.open: list[Any] = []
        self.world = world_of_members(topics=TOPICS)
        self.world.scenario = SimpleNamespace(
            application=SimpleNamespace(commit="manual"),
            group=self.world.scenario.group,
            network=self.world.scenario.network,
        )
        self.callbacks, self.requests = Callbacks(), Requests()
        self.judges = (Transitions(), self.callbacks, self.requests)
        for judge in self.judges:
            # Responses take any time, and say anything.
            judge.left_out = frozenset({"heartbeats-go-on", "frees-own-instance"})
            judge.attach(self.world, self.report)
        self.tell("on_member_host", "start")
        self.commits: dict[int, Commit] = {}
        """The commit that each request is of."""
        self.running: RunCallback | None = None
        self.leaves_wanted = 0
        self.closed = False
        self.fatal = False
        self.last_poll_end: int | None = None
        self.subscribed = False
        self.reset = "earliest"

    # -- watching ------------------------------------------------------------------------------------------

    def report(self, invariant: str, message: str, rule: str = "") -> None:
        # A list of partitions may be repeated once if the heartbeat before it was lost: no harm is done.
        assert "repeats the partitions" in message, f"{invariant}: {message} ({rule})"

    def tell(self, hook: str, *arguments: Any) -> None:
        for judge in self.judges:
            getattr(judge, hook)("m", *arguments, self.now * 1_000)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """on_assigned began, and on_revoked or on_lost has not ended."""
        return self.requests.processes["m"].holds

    @property
    def confirmed(self) -> frozenset[TopicPartition]:
        """on_assigned ended, and on_revoked or on_lost has not begun."""
        known = self.callbacks.processes["m"]
        return known.owned - known.releasing

    def take(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            watch = getattr(self, f"saw_{type(action).__name__}", None)
            if watch is not None:
                watch(action)
            if hasattr(action, "token"):
                assert action.token not in [each.token for each in self.open]
                self.open.append(action)

    def saw_ConsumerMoved(self, action: ConsumerMoved) -> None:  # noqa: N802
        assert (action.source, action.event, action.target) not in NEVER_TAKEN
        self.tell("on_member_state", action.event, action.source, action.target)

    def saw_SendHeartbeat(self, action: SendHeartbeat) -> None:  # noqa: N802
        self.tell("on_member_request", action.request)
        if action.request.member_epoch >= 0:
            assert self.subscribed or self.member.state is S.PREPARE_LEAVING
            if self.last_poll_end is not None:
                assert self.now < self.last_poll_end + MAX_POLL_MS, "heartbeats go on, but nobody polls"

    def saw_SendFindCoordinator(self, action: SendFindCoordinator) -> None:  # noqa: N802
        self.tell("on_member_search")

    def saw_RunCallback(self, action: RunCallback) -> None:  # noqa: N802
        self.running = action
        if action.releases:
            assert set(action.partitions) == self.owned
        self.tell("on_callback", action.kind, "begin", action.partitions)

    def saw_SendCommit(self, action: SendCommit) -> None:  # noqa: N802
        queue = self.member.commits.queue
        others = [self.commits[each.token] for each in self.open if isinstance(each, SendCommit)]
        overtaken = [other for other in others if self.now < other.deadline_ms]
        assert not any(other in queue for other in overtaken), "overtakes one that is waited for"
        assert all(other.kind is not CommitKind.MANUAL for other in overtaken), (
            "overtakes the application's own"
        )
        self.commits[action.token] = queue[0]
        self.tell("on_member_request", action.request)

    def saw_FetchOffsets(self, action: FetchOffsets) -> None:  # noqa: N802
        assert set(action.request.partitions or ()) <= self.confirmed
        assert action.request.member_epoch == self.member.member_epoch

    def saw_FindLogOffsets(self, action: FindLogOffsets) -> None:  # noqa: N802
        assert set(action.partitions) <= self.confirmed
        assert self.reset == ("earliest" if action.earliest else "latest")

    def saw_FindOffsetsByDuration(self, action: FindOffsetsByDuration) -> None:  # noqa: N802
        assert set(action.partitions) <= self.confirmed
        assert (self.reset, action.duration_ms) == ("by_duration:PT1H", 3_600_000)

    def saw_RaiseToApplication(self, action: RaiseToApplication) -> None:  # noqa: N802
        self.fatal = self.fatal or action.fatal

    def saw_LeaveFinished(self, action: LeaveFinished) -> None:  # noqa: N802
        assert self.leaves_wanted > 0
        self.leaves_wanted = 0

    # -- the application -----------------------------------------------------------------------------------

    @initialize(auto_commit=st.booleans(), seed=st.integers(0, 3), depth=st.integers(0, 12), reset=resets)
    def start(self, auto_commit: bool, seed: int, depth: int, reset: str) -> None:
        self.reset = reset
        config = ConsumerConfig(
            enable_auto_commit=auto_commit,
            auto_commit_interval_ms=2_000,
            max_poll_interval_ms=MAX_POLL_MS,
            auto_offset_reset=reset,
            unreleased_instance_id_retries=2,
        )
        self.member = ConsumerMember("group", "member", config, random.Random(seed))
        self.subscribe("foo")
        self.poll_begin()
        for _ in range(depth):
            if self.running is not None:
                self.callback_ends(raises=False)
            elif self.open:
                self.answer_well(self.open[0])
            else:
                self.time_passes(1_000)

    def subscribe(self, *names: str, pattern: str | None = None) -> None:
        self.subscribed = True
        self.take(self.member.subscribe(names, pattern, self.now))

    @rule()
    def poll_begin(self) -> None:
        self.last_poll_end = None
        self.take(self.member.poll_begin(self.now))

    @precondition(lambda self: self.member.polls.in_poll)
    @rule(count=st.integers(0, 5))
    def poll_end(self, count: int) -> None:
        consumed = {p: position + count for p, position in self.member.positions.fetchable().items()}
        self.last_poll_end = self.now
        self.take(self.member.poll_end(consumed, self.now))

    @precondition(lambda self: self.member.positions.fetchable())
    @rule(data=st.data())
    def the_log_has_lost_a_position(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.member.positions.fetchable())))
        self.take(self.member.offset_out_of_range(partition, self.now))
        assert partition not in self.member.positions.fetchable()

    @precondition(lambda self: self.confirmed)
    @rule(data=st.data(), offset=st.integers(50, 60))
    def the_application_seeks(self, data: st.DataObject, offset: int) -> None:
        partition = data.draw(st.sampled_from(sorted(self.confirmed)))
        with contextlib.suppress(ValueError):  # it is about to be given up
            self.take(self.member.seek(partition, offset, self.now))
            assert self.member.positions.position(partition) == offset

    @rule(what=st.sampled_from(["commit", "foo", "foo bar", "x.*", "unsubscribe", "rejoin", "close"]))
    def the_application_decides(self, what: str) -> None:
        if what == "commit":
            self.take(self.member.commit(None, self.now)[1])
        elif self.closed:
            return
        elif what in ("unsubscribe", "rejoin"):
            self.unsubscribe()
            if what == "rejoin":
                self.subscribe("bar")
        elif what == "close":
            self.close()
        elif what == "x.*":
            self.subscribe("foo", pattern=what)
        else:
            self.subscribe(*what.split())

    def unsubscribe(self) -> None:
        self.leaves_wanted += 1
        self.subscribed = False
        self.take(self.member.unsubscribe(self.now))

    def close(self) -> None:
        self.leaves_wanted += 1
        self.closed = True
        self.subscribed = False
        self.take(self.member.close(self.now, CloseOption.DEFAULT, 3_600_000))

    @precondition(lambda self: self.running is not None)
    @rule(raises=st.sampled_from([False, False, False, True]))
    def callback_ends(self, raises: bool) -> None:
        action, self.running = self.running, None
        assert action is not None
        self.open.remove(action)
        gives_up = action.releases or not raises
        self.tell("on_callback", action.kind, "end" if gives_up else "raised", action.partitions)
        error = RuntimeError("the application's") if raises else None
        self.take(self.member.callback_finished(action.token, error, self.now))

    # -- the cluster ---------------------------------------------------------------------------------------

    def pick(self, kind: type[Any] | tuple[type[Any], ...], data: st.DataObject) -> Any:
        action = data.draw(st.sampled_from([each for each in self.open if isinstance(each, kind)]))
        self.open.remove(action)
        return action

    def has(self, kind: type[Any]) -> bool:
        return any(isinstance(each, kind) for each in self.open)

    def answer(self, action: SendHeartbeat, **fields: Any) -> None:
        response = consumer.ConsumerGroupHeartbeatResponse(**fields)
        self.tell("on_member_response", action.request, response)
        self.take(self.member.heartbeat_answered(action.token, response, self.now))

    @precondition(lambda self: self.has(SendHeartbeat))
    @rule(data=st.data(), step=st.integers(0, 1), assignment=st.none() | assignments)
    def heartbeat_succeeds(self, data: st.DataObject, step: int, assignment: Partitions | None) -> None:
        action = self.pick(SendHeartbeat, data)
        request: consumer.ConsumerGroupHeartbeatRequest = action.request
        epoch = request.member_epoch
        if epoch >= 0:
            epoch = max(2, epoch) + step
            if request.member_epoch == 0 or self.full(request):
                assignment = assignment or {}
        assignment = assignment if request.member_epoch >= 0 else None
        self.answer(action, member_epoch=epoch, heartbeat_interval_ms=5_000, assignment=assignment)

    @staticmethod
    def full(request: consumer.ConsumerGroupHeartbeatRequest) -> bool:
        return request.rebalance_timeout_ms != -1 and request.topic_partitions is not None

    @precondition(lambda self: self.has(SendHeartbeat))
    @rule(data=st.data(), code=errors)
    def heartbeat_is_refused(self, data: st.DataObject, code: ErrorCode) -> None:
        action = self.pick(SendHeartbeat, data)
        self.answer(action, error_code=code)

    @precondition(lambda self: any(not isinstance(each, RunCallback) for each in self.open))
    @rule(data=st.data(), failure=failures)
    def a_request_fails(self, data: st.DataObject, failure: RequestFailure) -> None:
        action = self.pick((SendHeartbeat, *OTHERS), data)
        if isinstance(action, SendHeartbeat):
            self.tell("on_member_response", action.request, RequestTimedOut("late"))
        self.take(self.member.request_failed(action.token, failure, self.now))

    @precondition(lambda self: any(isinstance(each, OTHERS) for each in self.open))
    @rule()
    def the_cluster_answers(self) -> None:
        self.answer_well(next(each for each in self.open if isinstance(each, OTHERS)))

    @precondition(lambda self: any(isinstance(each, OTHERS) for each in self.open))
    @rule(data=st.data(), code=commit_errors)
    def the_cluster_answers_badly(self, data: st.DataObject, code: ErrorCode) -> None:
        action = self.pick(OTHERS, data)
        member, token, before = self.member, action.token, self.member.member_epoch
        if isinstance(action, SendFindCoordinator):
            self.take(member.coordinator_refused(token, ErrorCode.COORDINATOR_NOT_AVAILABLE, self.now))
        elif isinstance(action, ResolveTopicNames):
            self.take(member.topic_names_found(token, {"foo-id": "foo"}, self.now))
        elif isinstance(action, SendCommit):
            refused = offsets.OffsetCommitResponse(errors=dict.fromkeys(action.request.offsets, code))
            self.take(member.commit_answered(token, refused, self.now))
        elif isinstance(action, FetchOffsets):
            unknown = offsets.OffsetFetchResponse(group_id="group", error_code=code)
            self.take(member.offsets_fetched(token, unknown, self.now))
        else:
            self.take(member.log_offsets_found(token, {}, self.now))
        assert member.member_epoch == before

    def logs_answer(self, action: FindLogOffsets | FindOffsetsByDuration) -> None:
        known = dict(self.member.positions.fetchable())
        self.take(self.member.log_offsets_found(action.token, dict.fromkeys(action.partitions, 1), self.now))
        after = self.member.positions.fetchable()
        assert all(after.get(each, at) == at for each, at in known.items()), "moves a position that is known"

    # -- time ----------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 100, 1_000, 5_000, 30_000]))
    def time_passes(self, ms: int) -> None:
        end = self.now + ms
        steps = 0
        while (deadline := self.member.deadline_ms) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.take(self.member.deadline_reached(self.now))
            steps += 1
            assert steps < 1_000, "spins"
        self.now = end

    # -- always --------------------------------------------------------------------------------------------

    @invariant()
    def what_is_fetchable_is_owned_and_not_on_its_way_out(self) -> None:
        assert set(self.member.positions.fetchable()) <= self.confirmed

    @invariant()
    def the_owned_set_is_what_callbacks_say(self) -> None:
        assert set(self.member.owned_partitions()) == self.owned

    @invariant()
    def the_deadline_is_in_the_future(self) -> None:
        if (deadline := self.member.deadline_ms) is not None:
            assert deadline >= self.now or self.member.state in ACTIVE

    @invariant()
    def a_fatal_member_is_silent(self) -> None:
        if self.fatal:
            assert self.member.state is S.FATAL

    def teardown(self) -> None:
        """Whatever happened: once the world answers again, the member settles, or ends."""
        for _ in range(400):
            if self.running is not None:
                self.callback_ends(raises=False)
            elif self.open:
                self.answer_well(self.open[0])
            elif self.settled():
                break
            else:
                self.poll_begin()
                self.time_passes(1_000)
        assert self.settled(), f"stuck in {self.member.state} with {self.open}"

    def settled(self) -> bool:
        if self.leaves_wanted or self.running is not None:
            return False
        if self.fatal:
            return not self.owned
        if self.subscribed:
            return self.member.state is S.STABLE and self.knows_where_to_read()
        return self.member.state in (S.UNSUBSCRIBED, S.STALE) and not self.owned

    def knows_where_to_read(self) -> bool:
        positions = self.member.positions
        left = self.confirmed - positions.fetchable().keys()
        return left == positions.undecided.keys() and (not left or self.reset == "none")

    def answer_well(self, action: Any) -> None:
        self.open.remove(action)
        member, token, now = self.member, action.token, self.now
        if isinstance(action, SendHeartbeat):
            epoch = action.request.member_epoch
            good = {"foo-id": (0, 1)}
            if epoch >= 0:
                epoch = max(2, epoch)
            self.answer(
                action,
                member_epoch=epoch,
                heartbeat_interval_ms=5_000,
                assignment=good if epoch >= 0 else None,
            )
        elif isinstance(action, SendFindCoordinator):
            self.take(member.coordinator_found(token, now))
        elif isinstance(action, ResolveTopicNames):
            self.take(member.topic_names_found(token, NAMES, now))
        elif isinstance(action, SendCommit):
            done = offsets.OffsetCommitResponse(errors=dict.fromkeys(action.request.offsets, ErrorCode.NONE))
            self.take(member.commit_answered(token, done, now))
        elif isinstance(action, FetchOffsets):
            committed = [each for each in action.request.partitions or () if each.partition == 0]
            found = dict.fromkeys(committed, offsets.OffsetAndMetadata(offset=1))
            fetched = offsets.OffsetFetchResponse(group_id="group", offsets=found)
            self.take(member.offsets_fetched(token, fetched, now))
        elif isinstance(action, LOGS):
            self.logs_answer(action)


MemberWorld.TestCase.settings = settings(
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestMemberInterleavings = MemberWorld.TestCase
