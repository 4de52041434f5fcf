"""The parts of a run on real brokers that need none: tempo, messages, records, and what applications do."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fencepost.simulation.faults.plan import draw_plan
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.application import FLAWS, one_expression, runs
from fencepost.simulation.lab.chaos.time_scale import faster, tempo
from fencepost.simulation.lab.chaos.topics import RecordCount
from fencepost.simulation.scenarios.load import library, load

FAST = GroupCoordinatorConfig(
    group_consumer_min_session_timeout_ms=100,
    group_consumer_session_timeout_ms=2_000,
    group_consumer_min_heartbeat_interval_ms=50,
    group_consumer_heartbeat_interval_ms=100,
)
SECOND = 1_000_000
ORDERS = [TopicPartition("orders", number) for number in range(3)]


class TestTempo:
    def test_a_classic_session_is_as_long_as_the_broker_demands(self) -> None:
        strict = msgspec.structs.replace(FAST, group_min_session_timeout_ms=30_000)
        played = tempo(load("classic-rolling-deploy"), 7, strict, 80 * SECOND)
        assert played.scenario.group.session_timeout.us == 30 * SECOND
        assert played.quiet_us > 40 * SECOND
        assert played.plan.end_us == pytest.approx(80 * SECOND, abs=10)
        shorter = tempo(load("classic-rolling-deploy"), 7, FAST, 80 * SECOND)
        assert shorter.scenario.group.session_timeout.us == pytest.approx(45 * SECOND * shorter.factor)

    @pytest.mark.parametrize("name", [entry.name for entry in library() if entry.protocol == "consumer"])
    def test_the_plan_is_that_of_simulation_played_faster(self, name: str) -> None:
        scenario = load(name)
        simulated = draw_plan(scenario, Draws(7), scenario.quiet_us)
        played = tempo(scenario, 7, FAST, 60 * SECOND)
        assert played.factor < 1
        assert played.plan.end_us == pytest.approx(60 * SECOND, abs=10)
        assert played.plan.members == simulated.members
        for real, virtual in zip(played.plan.entries, simulated.entries, strict=True):
            assert (real.kind, real.member, real.name) == (virtual.kind, virtual.member, virtual.name)
            assert real.at_us == pytest.approx(virtual.at_us * played.factor, abs=1)
            assert real.lasts_us == pytest.approx(virtual.lasts_us * played.factor, abs=1)
            assert real.at_us <= played.plan.faults_end_us

    def test_times_shrink_and_rates_grow(self) -> None:
        scenario = load("rolling-deploy")
        half = faster(scenario, 0.5)
        assert half.group.rebalance_timeout.us == scenario.group.rebalance_timeout.us // 2
        assert half.application.restart.longest_us == pytest.approx(
            scenario.application.restart.longest_us / 2, abs=1
        )
        assert half.topics[0].records_per_second == scenario.topics[0].records_per_second * 2
        assert half.faults[0].every is not None
        assert scenario.faults[0].every is not None
        assert half.faults[0].every.us == scenario.faults[0].every.us // 2
        assert half.steps[0].at == scenario.steps[0].at  # a share of the run
        assert faster(scenario, 1.0) == scenario

    def test_a_run_is_never_slower_than_written(self) -> None:
        assert tempo(load("steady"), 1, FAST, 3_600 * SECOND).factor == 1

    def test_a_time_that_is_too_short_is_refused_with_the_least(self) -> None:
        with pytest.raises(FencepostError, match=r"--duration 20s: swarm needs at least (\d+)s") as refused:
            tempo(load("swarm"), 1, FAST, 20 * SECOND)
        least = int(str(refused.value).partition("at least ")[2].partition("s")[0])
        assert tempo(load("swarm"), 1, FAST, least * SECOND).factor > 0
        with pytest.raises(FencepostError):
            tempo(load("swarm"), 1, FAST, (least - 1) * SECOND)


EVENTS: list[m.Event] = [
    m.Up(1, "id"),
    m.MemberMoved(2, "subscribed", "UNSUBSCRIBED", "JOINING", 0, tuple(ORDERS)),
    m.RequestSent(3, 1, ConsumerGroupHeartbeatRequest(group_id="g", member_id="id", member_epoch=0), None),
    m.RequestSent(
        4, 2, None, OffsetCommitRequest(group_id="g", offsets={ORDERS[0]: OffsetAndMetadata(offset=5)})
    ),
    m.RequestSent(5, 1, None, None),
    m.HeartbeatAnswered(6, 1, None, "Disconnected"),
    m.CalledBack(7, "assigned", "begin", tuple(ORDERS)),
    m.Committed(8, 2, None, OffsetCommitResponse(errors={ORDERS[0]: ErrorCode.STALE_MEMBER_EPOCH}), ""),
    m.Delivered(9, ORDERS[1], 0, 3),
    m.Processed(10, ORDERS[1], 0, 3, (11, 12, 13)),
    m.Stopping(11),
    m.Stopped(12, ""),
    m.Failed(13, "Traceback"),
]


class TestMessages:
    @given(st.lists(st.sampled_from(EVENTS), max_size=8), st.integers(1, 40))
    def test_a_stream_is_cut_into_the_same_messages_wherever_it_breaks(
        self, events: list[m.Event], size: int
    ) -> None:
        stream = b"".join(map(m.frame, events))
        frames = m.Frames(m.Event)
        heard = [
            event
            for begin in range(0, len(stream), size)
            for event in frames.feed(stream[begin : begin + size])
        ]
        assert heard == events

    def test_offsets_keep_their_types(self) -> None:
        (event,) = m.Frames(m.Event).feed(m.frame(EVENTS[3]))
        assert isinstance(next(iter(event.commit.offsets)), TopicPartition)

    def test_what_is_no_event_is_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            list(m.Frames(m.Event).feed(m.frame(["Invented", 1])))


class TestLedger:
    def test_what_nobody_processed_is_missing(self) -> None:
        ledger = RecordCount()
        for number in (1, 2, 3):
            ledger.acknowledge(number, ORDERS[0], number)
        ledger.process((1, 3))
        assert ledger.missing(lambda _: True) == [2]
        assert ledger.missing(lambda topic: topic != "orders") == []
        ledger.process((2,))
        assert ledger.missing(lambda _: True) == []

    def test_what_was_never_acknowledged_is_not_missing(self) -> None:
        ledger = RecordCount()
        ledger.process((9,))
        assert ledger.missing(lambda _: True) == []
        assert ledger.duplicated == 0

    def test_each_further_time_counts(self) -> None:
        ledger = RecordCount()
        ledger.process((1, 1, 2))
        ledger.process((1,))
        assert ledger.duplicated == 2
        assert ledger.processed == 4

    def test_records_go_with_their_topic(self) -> None:
        ledger = RecordCount()
        ledger.acknowledge(1, ORDERS[0], 0)
        ledger.acknowledge(2, TopicPartition("payments", 0), 0)
        ledger.forget("orders")
        assert ledger.missing(lambda _: True) == [2]


class Record(NamedTuple):
    offset: int


class TestApplication:
    @pytest.mark.parametrize(
        ("offsets", "expected"),
        [([], []), ([4], [[4]]), ([4, 5, 6], [[4, 5, 6]]), ([4, 5, 9, 11, 12], [[4, 5], [9], [11, 12]])],
    )
    def test_records_are_cut_where_offsets_are_missing(
        self, offsets: list[int], expected: list[list[int]]
    ) -> None:
        assert [[each.offset for each in run] for run in runs([Record(o) for o in offsets])] == expected

    def test_topics_and_a_pattern_are_one_expression(self) -> None:
        expression = one_expression(("pay.ments",), "orders-.*|refunds")
        import re2

        matched = [
            name
            for name in ("orders-eu", "refunds", "pay.ments", "payXments", "orders", "xrefunds")
            if re2.fullmatch(expression, name)
        ]
        assert matched == ["orders-eu", "refunds", "pay.ments"]

    def test_flaws(self) -> None:
        handed = [(ORDERS[0], [Record(1), Record(2)]), (ORDERS[1], [Record(7)])]
        assert FLAWS[""](handed) == handed
        assert FLAWS["skip"](handed) == [(ORDERS[0], [Record(2)])]
        assert FLAWS["twice"](handed) == handed * 2
