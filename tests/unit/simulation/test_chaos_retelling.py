"""A real run told again: what observers hear, in which order, and that the judges are awake there."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import consumer, records
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge import real_judges
from fencepost.simulation.judge.claims import OneClaimant
from fencepost.simulation.kernel.observers import Observer, RecordsObserved
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.events import (
    Happening,
    HostNoted,
    MemberEvent,
    RunEvents,
    TopicImageChanged,
)
from fencepost.simulation.lab.chaos.replayed import ReplayedRun
from fencepost.simulation.lab.chaos.trace_writer import RealTraceWriter
from fencepost.simulation.scenarios.load import loads
from fencepost.simulation.trace.rows import TraceRows

SCENARIO = 'duration = "1m"\n[group]\nmembers = 2\n[[topics]]\nname = "orders"\npartitions = 2\n'
ORDERS = (TopicPartition("orders", 0), TopicPartition("orders", 1))
IMAGE = TopicsImage().with_topic(Topic(topic_id="T", name="orders", partitions=2))
END_US = 1_000_000


def retell(
    told: Iterable[tuple[int, str, Happening]], observers: Iterable[Observer] | None = None
) -> ReplayedRun:
    replayed = ReplayedRun(
        loads(SCENARIO),
        GroupCoordinatorConfig(),
        None,
        client="fencepost",
        members=[("member-1", None), ("member-2", None)],
        brokers=["broker-1"],
        observers=real_judges() if observers is None else observers,
        sequence=lambda: 0,
    )
    happenings = RunEvents()
    happenings.add(0, "", TopicImageChanged(IMAGE, "orders", "created", 2))
    for t_us, host, happening in told:
        happenings.add(t_us, host, happening)
    replayed.tell_all(happenings, END_US)
    return replayed


def owning(host: str = "member-1", partitions: tuple[TopicPartition, ...] = ORDERS) -> list:
    """A member that has come to own these."""
    events = [
        m.Up(1, f"id-{host}"),
        m.CalledBack(2, "assigned", "begin", partitions),
        m.CalledBack(3, "assigned", "end", partitions),
    ]
    return [(event.t_us, host, event) for event in events]


def on(host: str, *events: m.Event) -> list:
    return [(event.t_us, host, event) for event in events]


def broken(replayed: ReplayedRun) -> set[str]:
    return {violation.invariant for violation in replayed.violations}


def test_an_honest_member_breaks_nothing():
    honest = [
        *owning(),
        *on(
            "member-1",
            m.Delivered(4, ORDERS[0], 0, 5),
            m.Processed(5, ORDERS[0], 0, 5, (1, 2, 3, 4, 5)),
            m.Delivered(6, ORDERS[0], 5, 6),
            m.Processed(7, ORDERS[0], 5, 6, (6,)),
        ),
    ]
    assert broken(retell(honest)) == set()


@pytest.mark.parametrize(
    ("wrong", "invariant"),
    [
        ([m.Delivered(4, ORDERS[0], 0, 5), m.Processed(5, ORDERS[0], 2, 5, (3, 4, 5))], "at-least-once"),
        ([m.Delivered(4, ORDERS[0], 0, 5), m.Delivered(5, ORDERS[0], 7, 9)], "at-least-once"),
        (
            [m.CalledBack(4, "revoked", "begin", ORDERS), m.Delivered(5, ORDERS[0], 0, 1)],
            "records-while-owned",
        ),
        ([m.CalledBack(4, "assigned", "begin", ORDERS[:1])], "callbacks-balanced"),
        (
            [m.MemberMoved(4, "subscribed", "UNSUBSCRIBED", "STABLE", 3, ORDERS)],
            "transitions",
        ),
        (
            [
                m.RequestSent(
                    4,
                    1,
                    None,
                    OffsetCommitRequest(
                        group_id="g", member_epoch=0, offsets={ORDERS[0]: OffsetAndMetadata(offset=9)}
                    ),
                )
            ],
            "commit-within-processed",
        ),
    ],
)
def test_a_false_one_is_caught(wrong: list[m.Event], invariant: str):
    assert invariant in broken(retell([*owning(), *on("member-1", *wrong)]))


def test_who_comes_back_owns_nothing():
    told = [
        *owning(),
        (4, "member-1", HostNoted("crash")),
        *on("member-1", m.Up(5, "id-2"), m.Delivered(6, ORDERS[0], 0, 1)),
    ]
    replayed = retell(told)
    assert broken(replayed) == {"records-while-owned"}
    assert replayed.hosts_by_member == {"id-member-1": "member-1", "id-2": "member-1"}


def test_views_follow_what_members_say():
    told = [
        *on(
            "member-1",
            m.Up(1, "id"),
            m.MemberMoved(2, "subscribed", "UNSUBSCRIBED", "JOINING", 0, ()),
            m.CalledBack(3, "assigned", "begin", ORDERS),
            m.CalledBack(4, "revoked", "end", ORDERS[:1]),
        ),
        (5, "member-1", HostNoted("freeze")),
        (6, "", MemberEvent("on_faults_end", ())),
    ]
    replayed = retell(told, [])
    host = replayed.members["member-1"]
    assert (host.status, host.driver.state, host.driver.assignment) == ("frozen", "JOINING", ORDERS[1:])
    assert replayed.faults_over
    assert not replayed.settled


def test_a_group_is_settled_at_one_epoch_with_nothing_shared():
    def stable(host: str, epoch: int, owned: tuple[TopicPartition, ...]) -> list:
        return on(
            host, m.Up(1, host), m.MemberMoved(2, "acknowledged", "ACKNOWLEDGING", "STABLE", epoch, owned)
        )

    assert retell([*stable("member-1", 3, ORDERS[:1]), *stable("member-2", 3, ORDERS[1:])], []).settled
    assert not retell([*stable("member-1", 3, ORDERS[:1]), *stable("member-2", 4, ORDERS[1:])], []).settled
    assert not retell([*stable("member-1", 3, ORDERS), *stable("member-2", 3, ORDERS[1:])], []).settled


def test_heartbeats_are_rows_where_members_are_answered():
    join = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="id",
        member_epoch=0,
        rebalance_timeout_ms=1,
        subscribed_topic_names=("orders",),
        topic_partitions=NO_PARTITIONS,
    )
    answer = consumer.ConsumerGroupHeartbeatResponse(
        member_id="id", member_epoch=2, heartbeat_interval_ms=100, assignment={"T": (0, 1)}
    )
    rows = []

    class Sink:
        def write(self, batch, /):
            rows.extend(batch)

    recorder = TraceRows(world="real", group="g", sink=Sink())
    trace_writer = RealTraceWriter(recorder)
    told = on(
        "member-1", m.Up(1, "id"), m.RequestSent(2, 1, join, None), m.HeartbeatAnswered(3, 1, answer, "")
    )
    retell(
        [
            *told,
            *on("member-1", m.RequestSent(4, 1, None, None), m.HeartbeatAnswered(5, 1, None, "Disconnected")),
        ],
        [trace_writer],
    )
    recorder.flush()
    beats = [row for row in rows if row[5] == "heartbeat"]
    assert [(row[1], row[4], row[8], row[10], row[12].split()[0]) for row in beats] == [
        (3, "member-1", 2, ORDERS, "join")
    ]
    assert trace_writer.heartbeats == 1


def test_nothing_is_told_of_what_comes_after_the_end():
    late = on("member-1", m.Up(END_US + 1, "id"))
    assert retell(late).members["member-1"].status == "stopped"


@pytest.mark.parametrize(("comes_back", "expected"), [(True, set()), (False, {"one-claimant"})])
def test_a_topic_of_the_same_name_is_another_topic_to_claim(comes_back: bool, expected: set[str]):
    def stored(member_id: str) -> tuple[int, str, Happening]:
        value = records.ConsumerGroupCurrentMemberAssignmentValue(1, 0, 0)
        record = records.Record(
            records.ConsumerGroupCurrentMemberAssignmentKey("orders-service", member_id), value
        )
        step = RecordsObserved(group_id="orders-service", cause="")
        return (1, "", MemberEvent("on_coordinator_step", ("broker-1", step, Outcome(records=(record,)))))

    again = TopicsImage().with_topic(Topic(topic_id="U", name="orders", partitions=2))
    told = [
        stored("id-member-1"),
        stored("id-member-2"),
        *on("member-1", m.Up(2, "id-member-1"), m.CalledBack(3, "assigned", "begin", ORDERS)),
        *([(4, "", TopicImageChanged(TopicsImage(), "orders", "deleted", 0))] if comes_back else []),
        *on("member-1", m.CalledBack(5, "assigned", "end", ORDERS)),  # of the topic that is gone
        *([(6, "", TopicImageChanged(again, "orders", "created", 2))] if comes_back else []),
        *on("member-2", m.Up(7, "id-member-2"), m.CalledBack(8, "assigned", "begin", ORDERS)),
        *on("member-2", m.CalledBack(9, "assigned", "end", ORDERS)),
    ]
    assert broken(retell(told, [OneClaimant()])) == expected
