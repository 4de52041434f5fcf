"""Whole comparisons with our own endpoint as the judge: nothing may differ, unless it is made to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.classic import SyncGroupResponse
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode, FencepostError
from fencepost.coordinator.protocol.outcome import Event, Outcome
from fencepost.coordinator.server.brokers import Broker
from fencepost.simulation.brokers.connection import BrokerConnection
from fencepost.simulation.lab.conform import own, scripts
from fencepost.simulation.lab.conform.broker import ReferenceBroker
from fencepost.simulation.lab.conform.generate import generate
from fencepost.simulation.lab.conform.generate_tables import CLASSIC, STREAMS
from fencepost.simulation.lab.conform.lockstep import EPOCH_MS, Lockstep
from fencepost.simulation.lab.conform.schedule import (
    Beat,
    ClassicBeat,
    Configure,
    CreateTopicStep,
    Schedule,
    Step,
)
from fencepost.simulation.lab.conform.steps import steps
from fencepost.simulation.lab.conform.suite import Report, Suite

pytestmark = pytest.mark.real

CONFIG = GroupCoordinatorConfig(
    group_consumer_min_session_timeout_ms=100,
    group_consumer_session_timeout_ms=30_000,
    group_consumer_heartbeat_interval_ms=5_000,
    group_consumer_assignment_interval_ms=0,
    group_consumer_max_size=5,
    group_streams_min_session_timeout_ms=100,
    group_streams_session_timeout_ms=30_000,
    group_streams_min_heartbeat_interval_ms=50,
    group_streams_assignment_interval_ms=0,
    group_streams_initial_rebalance_delay_ms=0,
    group_streams_max_size=5,
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=100,
    group_max_size=5,
)
TOPICS = {"x": 4, "y": 3}
UNLISTED = {ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE}

BY_CHANCE = {
    "classic_beat.none.UNKNOWN_MEMBER_ID",
    "classic_join.classic.INVALID_SESSION_TIMEOUT",
    "classic_join.consumer.FENCED_INSTANCE_ID",
    "group.classic.PreparingRebalance.Empty",
}
"""Names of the classic protocol that no script reaches, only random schedules."""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(config=CONFIG) as broker:
        yield broker


async def compare(broker: Broker, *schedules: Schedule, seed: int = 1, requests: int = 0) -> Report:
    judge = await ReferenceBroker.connect(broker.bootstrap_servers)
    try:
        return await Suite(judge, "run", workers=2).run(schedules, seed=seed, requests=requests)
    finally:
        await judge.close()


def schedule(*taken: Any, **fields: Any) -> Schedule:
    return Schedule(**{"name": "s", "topics": TOPICS, **fields}, steps=taken)


def verdicts(report: Report) -> dict[str, str]:
    return {rule.rule: rule.verdict for rule in report.rules}


def falsify(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, change: Callable[[Event, Outcome], Outcome]
) -> None:
    """The judge's coordinator, and it alone, answers otherwise."""
    truthful = broker.coordinator.consumer.heartbeat

    def heartbeat(request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        return change(request, truthful(request, now_ms))

    handlers = {**broker.coordinator._handlers, ConsumerGroupHeartbeatRequest: heartbeat}
    monkeypatch.setattr(broker.coordinator, "_handlers", handlers)


async def test_random_schedules_agree_with_ourselves(broker: Broker) -> None:
    report = await compare(broker, requests=600)
    assert report.requests >= 600
    assert report.differences == []
    assert sum(rule.verdict == "pass" for rule in report.rules) > 60
    assert {rule.verdict for rule in report.rules} == {"pass", "untested"}


async def test_what_was_made_is_deleted(broker: Broker) -> None:
    await compare(broker, requests=150)
    assert dict(broker.cluster.image.by_name) == {}
    assert dict(broker.coordinator.groups) == {}
    assert broker.coordinator.offsets.group_ids == ()
    assert not any(broker.cluster.configs.values())


@pytest.mark.parametrize("request_number", range(3, 90, 6))
async def test_what_was_made_is_deleted_when_a_run_is_cancelled(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, request_number: int
) -> None:
    asked = 0
    ask = BrokerConnection.ask

    async def cancelling(connection: BrokerConnection, *given: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == request_number:
            running.cancel()
        return await ask(connection, *given)

    monkeypatch.setattr(BrokerConnection, "ask", cancelling)
    schedules = [
        generate(STREAMS, "1-3"),
        schedule(CreateTopicStep(topic="w", partitions=2), topics={}),
        schedule(Configure(values={"consumer.session.timeout.ms": "20000"}), Beat(member="A", epoch=0)),
    ]
    running = asyncio.ensure_future(compare(broker, *schedules))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert dict(broker.cluster.image.by_name) == {}
    assert dict(broker.coordinator.groups) == {}
    assert not any(broker.cluster.configs.values())


async def test_scripts_agree_with_ourselves(broker: Broker) -> None:
    bodies = [
        scripts.SCRIPTS["offsets without a group"],
        scripts.SCRIPTS["offsets of members"],
        scripts.SCRIPTS["a revocation step by step"],
        scripts.SCRIPTS["static members come and go"],
        scripts.SCRIPTS["expressions"],
        scripts.SCRIPTS["administrators remove members"],
        steps(scripts.full(5)),
    ]
    topics = {"x": 4, "y": 3, "z": 1, "w": 6}
    report = await compare(broker, *(schedule(*body, topics=topics) for body in bodies))
    assert report.differences == []
    passed = {rule for rule, verdict in verdicts(report).items() if verdict == "pass"}
    codes = {
        "beat.consumer.GROUP_MAX_SIZE_REACHED",
        "beat.consumer.UNRELEASED_INSTANCE_ID",
        "commit.none.NONE",
    }
    assert codes <= passed
    assert {"regex.resolution", "beat.member.UNREVOKED.STABLE+", "assignor.range.equal"} <= passed


async def test_classic_scripts_agree_with_ourselves(broker: Broker) -> None:
    report = await compare(broker, *scripts.classic(CONFIG))
    assert report.differences == []
    parts = ("classic_", "group.classic.", "group.none.classic.", "group.consumer.classic.")
    untested = {
        rule for rule, verdict in verdicts(report).items() if verdict == "untested" and rule.startswith(parts)
    }
    assert untested <= BY_CHANCE
    assert verdicts(report)["timer.join"] == verdicts(report)["timer.sync"] == "pass"


async def test_timers_of_the_two_sides_may_end_at_different_times(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    right = Lockstep._now_ms
    monkeypatch.setattr(Lockstep, "_now_ms", lambda self: EPOCH_MS + (right(self) - EPOCH_MS) // 2)
    script = schedule(*scripts.SCRIPTS["classic: time to sync is over"])
    async with asyncio.timeout(100):  # a busy machine may leave open which timer ended first
        while (report := await compare(broker, script)).unclear:
            assert report.differences == []
    assert report.differences == []
    assert verdicts(report)["timer.sync"] == "pass"


async def test_a_timer_that_ends_while_a_request_is_under_way_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    """The machine is too busy for our response to B's heartbeat, until its time to join is over."""
    paused_ms, right, ask_own = 0, Lockstep._now_ms, Lockstep._ask_own

    async def late(self: Lockstep, step: Step, call: Any, host: str, now_ms: int) -> Any:
        nonlocal paused_ms
        if isinstance(step, ClassicBeat) and step.member == "B":
            paused_ms += 700
            now_ms = self._now_ms()
        return await ask_own(self, step, call, host, now_ms)

    monkeypatch.setattr(Lockstep, "_now_ms", lambda self: right(self) + paused_ms)
    monkeypatch.setattr(Lockstep, "_ask_own", late)
    script = steps(
        "A,A classic_join rebalance_timeout_ms=600; await 10000; A classic_sync;"
        "B,B classic_join rebalance_timeout_ms=600; A classic_join rebalance_timeout_ms=600; await 10000;"
        "A,B classic_sync; A classic_join rebalance_timeout_ms=600; B classic_beat"
    )
    report = await compare(broker, schedule(*script))
    assert (report.differences, report.unclear) == ([], 1)


async def test_random_classic_schedules_agree_with_ourselves(broker: Broker) -> None:
    report = await compare(broker, *(generate(CLASSIC, f"1-{number}", first_ms=500) for number in range(20)))
    assert report.differences == []
    assert verdicts(report)["classic.waits"] == verdicts(report)["classic_join.consumer.NONE"] == "pass"


@pytest.mark.long
async def test_a_request_that_waits_at_one_side_alone_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    monkeypatch.setattr(own.OwnWaiting, "answer", None)
    report = await compare(broker, schedule(*steps("A,A classic_join; describe")))
    (difference,) = report.differences
    assert difference.rule == "classic.waits"
    assert difference.fields[0].endswith("fencepost null")


async def test_another_assignment_of_the_classic_protocol_is_found(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    honest = own.Own.process

    def stingy(self: own.Own, event: Event) -> Any:
        reply: Any = honest(self, event)
        if isinstance(reply, SyncGroupResponse):
            return msgspec.structs.replace(reply, assignment=b"")
        return reply

    monkeypatch.setattr(own.Own, "process", stingy)
    script = steps("A,A classic_join; A classic_sync gives=A:x:0+1; describe")
    report = await compare(broker, schedule(*script))
    (difference,) = report.differences
    assert difference.rule == "group.classic.CompletingRebalance.Stable"
    assert difference.schedule.steps[difference.step] == script[-2]


async def test_a_full_streams_group_agrees_with_ourselves(broker: Broker) -> None:
    report = await compare(broker, schedule(*steps(scripts.full_streams(5))))
    assert report.differences == []
    assert verdicts(report)["streams_beat.streams.GROUP_MAX_SIZE_REACHED"] == "pass"


async def test_nothing_is_sent_that_the_broker_does_not_list(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    """A group without its protocol says no goodbye in it either."""
    asked: list[int] = []
    truthful = BrokerConnection.ask

    async def ask(connection: BrokerConnection, api_key: int, version: int, message: Any) -> Any:
        asked.append(api_key)
        return await truthful(connection, api_key, version, message)

    speaks = ReferenceBroker.speaks
    monkeypatch.setattr(BrokerConnection, "ask", ask)
    monkeypatch.setattr(
        ReferenceBroker,
        "speaks",
        lambda judge, key, version: key not in UNLISTED and speaks(judge, key, version),
    )
    script = scripts.SCRIPTS["streams: the life of a group"]
    report = await compare(broker, schedule(*script, topics={"x": 4, "y": 3, "z": 1, "w": 6}))
    assert not report.differences
    assert asked
    assert not UNLISTED & set(asked)
    assert {each.api for each in report.left_out} == {f"{key.name} 0" for key in UNLISTED}


async def test_a_session_ends_on_both_sides() -> None:
    config = msgspec.structs.replace(
        CONFIG,
        group_consumer_session_timeout_ms=300,
        group_consumer_heartbeat_interval_ms=100,
        group_consumer_min_session_timeout_ms=100,
        group_consumer_min_heartbeat_interval_ms=50,
    )
    async with Broker(config=config) as broker:
        judge = await ReferenceBroker.connect(broker.bootstrap_servers)
        judge.config = config
        try:
            script = steps("A joins x; wait 450; A beat; describe")
            report = await Suite(judge, "run").run([schedule(*script)], seed=0, requests=0)
        finally:
            await judge.close()
    assert report.differences == []
    assert verdicts(report)["timer.session"] == "pass"


async def test_a_wrong_code_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    def lenient(request: Any, outcome: Outcome) -> Outcome:
        reply: Any = outcome.reply
        if reply.error_code is ErrorCode.FENCED_MEMBER_EPOCH:
            reply = msgspec.structs.replace(reply, error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return Outcome(records=outcome.records, reply=reply, effects=outcome.effects)

    falsify(monkeypatch, broker, lenient)
    noise = steps("describe; B beat; A beat assigned")
    joins, ahead = steps("A joins x; A beat ahead")
    report = await compare(broker, schedule(*noise, joins, *noise, ahead, *noise))
    (difference,) = report.differences
    assert difference.rule == "beat.consumer.FENCED_MEMBER_EPOCH"
    assert verdicts(report)["beat.consumer.FENCED_MEMBER_EPOCH"] == "differ"
    assert difference.fields == ('error_code: Kafka "UNKNOWN_MEMBER_ID", fencepost "FENCED_MEMBER_EPOCH"',)
    assert difference.schedule.steps == (joins, ahead)
    assert difference.step == 1


@pytest.mark.parametrize("times", [1, 2])
async def test_what_does_not_show_again_each_time_is_unclear(
    times: int, monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    lies = iter([True] * times)

    def once(request: Any, outcome: Outcome) -> Outcome:
        reply: Any = outcome.reply
        if request.group_id.endswith(("-g1", "-g2")) and next(lies, False):
            reply = msgspec.structs.replace(reply, heartbeat_interval_ms=1)
        return Outcome(records=outcome.records, reply=reply, effects=outcome.effects)

    falsify(monkeypatch, broker, once)
    report = await compare(broker, schedule(*steps("A joins x")))
    assert (report.differences, report.unclear) == ([], 1)


async def test_another_target_is_found_where_it_is_computed(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    everything = dict(broker.coordinator.consumer.assignors)
    monkeypatch.setattr(
        broker.coordinator.consumer, "assignors", {**everything, "range": everything["uniform"]}
    )
    report = await compare(broker, schedule(*steps("A,B joins x,y; describe")))
    (difference,) = report.differences
    assert difference.rule == "assignor.range.equal"
    assert difference.step == 1


async def test_a_known_deviation_is_counted_and_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    def keeps_old_instance_ids(request: Any, outcome: Outcome) -> Outcome:
        if request.member_id == "B":
            code = ErrorCode.UNRELEASED_INSTANCE_ID
            return Outcome(reply=msgspec.structs.replace(outcome.reply, error_code=code))  # type: ignore[type-var]
        return outcome

    falsify(monkeypatch, broker, keeps_old_instance_ids)
    report = await compare(broker, schedule(*steps("A@i1,A@i2,B@i1 joins x")))
    assert report.differences == []
    assert [(one.name, one.times) for one in report.deviations] == [("abandoned-instance-id", 1)]


async def test_a_defect_of_ours_is_a_difference(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    def broken(self: own.Own, *args: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(own.Own, "ask", broken)
    report = await compare(broker, schedule(*steps("A joins x")))
    (difference,) = report.differences
    assert (difference.rule, difference.fields) == ("crash", ("fencepost raised RuntimeError: no",))


class TestTheJudge:
    @pytest.mark.parametrize("address", ["nowhere", "host:", ":1", "host:99999"])
    async def test_an_address_must_be_one(self, address: str) -> None:
        with pytest.raises(FencepostError, match="expected HOST:PORT"):
            await ReferenceBroker.connect(address)

    async def test_nobody_there(self) -> None:
        with pytest.raises(EnvironmentLacks, match=r"no broker answers at 127\.0\.0\.1:1 "):
            await ReferenceBroker.connect("127.0.0.1:1")

    async def test_of_several_brokers_the_first_that_answers_judges(self, broker: Broker) -> None:
        judge = await ReferenceBroker.connect(f"127.0.0.1:1, {broker.bootstrap_servers}")
        assert judge.config == CONFIG
        await judge.close()

    async def test_its_settings_are_ours(self, broker: Broker) -> None:
        judge = await ReferenceBroker.connect(broker.bootstrap_servers)
        assert judge.config == CONFIG
        await judge.close()

    async def test_a_broker_that_goes_away_ends_the_comparison(self, broker: Broker) -> None:
        judge = await ReferenceBroker.connect(broker.bootstrap_servers)
        suite = Suite(judge, "run", workers=2)
        comparing = asyncio.create_task(suite.run((), seed=1, requests=10**9))
        await asyncio.sleep(0.3)
        await broker.close()
        with pytest.raises(EnvironmentLacks):
            await comparing
        await judge.close()
