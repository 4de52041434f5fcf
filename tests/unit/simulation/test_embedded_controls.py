"""Every verb of an embedded Kafka, on members that are sockets: each request is the test's own."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest

from fencepost import EmbeddedKafka, GroupMember
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.consumer import validation
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.embedded import observer
from fencepost.simulation.trace.schema import RowKind
from tests.unit.simulation.wire_member import WireMember, kinds
from tests.waiting import until

ORDERS = [TopicPartition("orders", number) for number in range(4)]


def test_a_group_is_seen_as_its_coordinator_sees_it(kafka: EmbeddedKafka, member: WireMember) -> None:
    group = kafka.group("g")
    (seen,) = group.members()
    assert seen == GroupMember(
        member_id="m",
        instance_id=None,
        client_id="m",
        client_host="/127.0.0.1",
        epoch=member.epoch,
        protocol="consumer",
        topics=("orders",),
        assignment=tuple(ORDERS),
        owned=tuple(ORDERS),
    )
    assert group.state == "Stable"
    assert kafka.group("other").state == "Dead"
    assert kafka.group("other").members() == []
    assert kafka.check() == []


def test_it_shows_its_address_topics_and_groups(kafka: EmbeddedKafka, member: WireMember) -> None:
    text = f"<EmbeddedKafka {kafka.bootstrap_servers}, topics: orders (4), groups: g Stable>"
    assert repr(kafka) == text
    assert repr(kafka.awaited) == text.replace("Embedded", "AsyncEmbedded")
    for number in range(12):
        kafka.create_topic(f"t{number:02}")
    assert "t08 (1) and 3 more, groups:" in repr(kafka)
    other = EmbeddedKafka()
    assert repr(other) == "<EmbeddedKafka, not running>"


def test_stable_is_who_has_confirmed(kafka: EmbeddedKafka) -> None:
    group = kafka.group("g")
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    one.join("orders")
    assert group.state == "Stable"
    with pytest.raises(TimeoutError) as late:
        group.wait_stable(timeout=0.01)
    missing = "m has not confirmed 4 of 4 partitions: is it polled?"
    assert str(late.value) == f"group 'g' is not stable after 0.01 s: {missing}"
    one.confirm()
    assert [each.member_id for each in group.wait_stable(members=1, timeout=0)] == ["m"]
    with pytest.raises(TimeoutError, match=r"0.01 s: members: 2 expected, there are 1 \(m\)$"):
        group.wait_stable(members=2, timeout=0.01)
    one.heartbeat(-1)
    assert group.wait_stable(members=0, timeout=0) == []
    assert group.state == "Empty"


def test_waiting_ends_as_soon_as_it_is_so(kafka: EmbeddedKafka, member: WireMember) -> None:
    group = kafka.group("g")
    second = WireMember(kafka.bootstrap_servers, "g", "second")
    found: list[list[GroupMember]] = []
    waiter = threading.Thread(target=lambda: found.append(group.wait_stable(members=2)))
    waiter.start()
    second.join("orders")
    member.heartbeat()
    assert not found
    member.confirm()
    second.heartbeat()
    second.confirm()
    waiter.join(10)
    assert [len(each.owned) for each in found[0]] == [2, 2]


def test_waiting_in_vain_tells_of_static_members_that_are_away(kafka: EmbeddedKafka) -> None:
    one = WireMember(kafka.bootstrap_servers, "g", "one")
    one.join("orders", instance_id="desk-1")
    one.confirm()
    one.heartbeat(-2, instance_id="desk-1")
    with pytest.raises(TimeoutError, match="desk-1 is static and has left: its place is kept"):
        kafka.group("g").wait_stable(timeout=0)


@pytest.mark.real
async def test_waiting_may_be_given_up(kafka: EmbeddedKafka) -> None:
    group = kafka.awaited.group("g")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await group.wait_stable()
    await until(lambda: not kafka.endpoint.observer.waiting)


def test_a_fenced_member_is_refused_by_its_epoch_and_may_join_anew(
    kafka: EmbeddedKafka, member: WireMember
) -> None:
    group = kafka.group("g")
    group.fence("m")
    assert group.members() == []
    assert member.heartbeat().error_code is ErrorCode.FENCED_MEMBER_EPOCH
    assert member.join("orders").error_code is ErrorCode.NONE
    member.confirm()
    assert group.wait_stable(timeout=0)
    assert [row.detail for row in kinds(kafka, RowKind.MEMBER_REMOVED)] == ["fenced"]
    called = [(row.actor, row.state_to) for row in kinds(kafka, RowKind.FAULT)]
    assert called == [("fence", "begin"), ("fence", "met")]
    assert kafka.check() == []


def test_an_expired_member_is_unknown(kafka: EmbeddedKafka, member: WireMember) -> None:
    kafka.group("g").expire(kafka.group("g").members()[0])
    assert member.heartbeat().error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert [row.detail for row in kinds(kafka, RowKind.MEMBER_REMOVED)] == ["session"]
    assert kafka.check() == []


def test_a_static_member_is_found_by_its_instance_id(kafka: EmbeddedKafka) -> None:
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    one.join("orders", instance_id="desk-1")
    kafka.group("g").expire("desk-1")
    assert one.heartbeat(instance_id="desk-1").error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert one.join("orders", instance_id="desk-1").error_code is ErrorCode.NONE


def test_a_fenced_static_member_stays_until_it_frees_its_instance_id(kafka: EmbeddedKafka) -> None:
    group = kafka.group("g")
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    one.join("orders", instance_id="desk-1")
    group.fence("desk-1")
    assert one.heartbeat(instance_id="desk-1").error_code is ErrorCode.FENCED_MEMBER_EPOCH
    assert [each.assignment for each in group.members()] == [tuple(ORDERS)]
    assert one.join("orders", instance_id="desk-1").error_code is ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.heartbeat(-2, instance_id="desk-1").error_code is ErrorCode.NONE
    assert one.join("orders", instance_id="desk-1").error_code is ErrorCode.NONE
    assert kafka.check() == []


def test_a_rebalance_on_demand_raises_the_epoch(kafka: EmbeddedKafka, member: WireMember) -> None:
    before = member.epoch
    kafka.group("g").rebalance()
    assert kafka.group("g").state == "Assigning"
    assert member.heartbeat().member_epoch == before + 1
    assert kafka.group("g").wait_stable(timeout=0)


def test_time_passes_for_those_who_are_gone(kafka: EmbeddedKafka, member: WireMember) -> None:
    gone = WireMember(kafka.bootstrap_servers, "g", "gone")
    gone.join("orders")
    kafka.disconnect("gone")
    kafka.clock.advance(44)
    assert len(kafka.group("g").members()) == 2
    kafka.clock.advance(2)
    assert [each.member_id for each in kafka.group("g").members()] == ["m"]
    assert kafka.events()[-1].t_us >= 45_000_000
    assert member.heartbeat().error_code is ErrorCode.NONE
    member.confirm()
    assert kafka.check() == []


def test_a_revocation_that_takes_too_long_ends_even_for_the_living(
    kafka: EmbeddedKafka, member: WireMember
) -> None:
    second = WireMember(kafka.bootstrap_servers, "g", "second")
    second.join("orders")
    member.heartbeat()  # told to let two go, and does not
    kafka.clock.advance(61)
    assert [each.member_id for each in kafka.group("g").members()] == ["second"]
    assert [row.detail for row in kinds(kafka, RowKind.MEMBER_REMOVED)] == ["rebalance"]
    assert kafka.check() == []


def test_a_revocation_goes_on_where_the_coordinator_is_loaded(
    kafka: EmbeddedKafka, member: WireMember
) -> None:
    second = WireMember(kafka.bootstrap_servers, "g", "second")
    second.join("orders")
    member.heartbeat()  # told to let two go
    kafka.restart()
    member.connect()
    second.connect()
    member.heartbeat()
    second.heartbeat()
    member.confirm()
    second.heartbeat()
    second.confirm()
    assert kafka.group("g").wait_stable(timeout=0)
    assert kafka.check() == []


@pytest.mark.real
async def test_a_timer_that_fires_a_little_late_is_no_violation(kafka: EmbeddedKafka) -> None:
    first, second = (WireMember(kafka.bootstrap_servers, "g", each) for each in ("first", "second"))
    first.heartbeat(0, rebalance_timeout_ms=100, subscribed_topic_names=("orders",), topic_partitions={})
    first.confirm()
    second.join("orders")
    first.heartbeat()  # told to let two go, and does not
    await until(lambda: [each.member_id for each in kafka.group("g").members()] == ["second"])
    assert kafka.check() == []


def test_a_coordinator_that_moves_refuses_then_loads_then_knows() -> None:
    with EmbeddedKafka(brokers=3, topics={"orders": 4}) as kafka:
        servers = kafka.bootstrap_servers.split(",")
        group_id = "g"
        asker = WireMember(servers[0], group_id, "m")

        def coordinator() -> int:
            reply = asker.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(keys=(group_id,)))
            node: int = reply.coordinators[0].node.node_id
            return node

        old = coordinator()
        one = WireMember(servers[old - 1], group_id, "m")
        one.join("orders")
        one.confirm()
        kafka.move_coordinator(group_id, to=old % 3 + 1, load_seconds=60)
        new = coordinator()
        assert new == old % 3 + 1
        assert one.heartbeat().error_code is ErrorCode.NOT_COORDINATOR
        there = WireMember(servers[new - 1], group_id, "m")
        there.epoch = one.epoch
        assert there.heartbeat().error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert kafka.group(group_id).state == "Dead"
        with pytest.raises(FencepostError, match="the coordinator of group 'g' is loading"):
            kafka.group(group_id)._process(None)  # type: ignore[arg-type]
        kafka.move_coordinator(group_id, to=new, load_seconds=0)
        with pytest.raises(TimeoutError):
            kafka.group(group_id).wait_stable(timeout=0)  # nobody was heard since
        assert there.heartbeat().error_code is ErrorCode.NONE
        assert kafka.group(group_id).wait_stable(timeout=0)
        what = [(row.actor, row.detail) for row in kinds(kafka, RowKind.COORDINATOR)]
        assert (f"broker-{old}", "resign") in what
        assert (f"broker-{new}", "load") in what
        assert kafka.check() == []


def test_a_restart_forgets_nothing_that_was_acknowledged(kafka: EmbeddedKafka, member: WireMember) -> None:
    epoch = member.epoch
    kafka.produce("orders", "kept", partition=0)
    kafka.restart()
    with pytest.raises((EOFError, OSError)):
        member.heartbeat()
    member.connect()
    reply = member.heartbeat()
    assert (reply.error_code, reply.member_epoch) == (ErrorCode.NONE, epoch)
    assert [record.value for record in kafka.records("orders")] == [b"kept"]
    assert kafka.check() == []


def test_a_journal_outlives_the_kafka_that_wrote_it() -> None:
    journal = MemoryJournal()
    with EmbeddedKafka(topics={"orders": 4}, journal=journal) as kafka:
        one = WireMember(kafka.bootstrap_servers, "g", "m")
        one.join("orders")
    with EmbeddedKafka(topics={"orders": 4}, journal=journal) as kafka:
        assert [each.member_id for each in kafka.group("g").members()] == ["m"]


def test_a_journal_file_keeps_topics_groups_and_records(tmp_path: Path) -> None:
    path = tmp_path / "kafka.journal"
    with EmbeddedKafka(brokers=2, topics={"orders": 4}, journal=path) as kafka:
        kafka.produce("orders", "a", "b")
        kafka.create_topic("later", 2)
        server = kafka.bootstrap_servers.split(",")[kafka.endpoint.brokers.groups.leader_id("g") - 1]
        one = WireMember(server, "g", "m")
        one.join("orders")
        one.confirm()
        kafka.restart()
        assert kafka.check() == []
    with EmbeddedKafka(brokers=2, topics={"orders": 4}, journal=str(path)) as kafka:
        (member,) = kafka.group("g").members()
        assert (member.epoch, member.assignment) == (one.epoch, tuple(ORDERS))
        assert sorted(record.value or b"" for record in kafka.records("orders")) == [b"a", b"b"]
        assert kafka.records("later") == []
        assert kafka.check() == []
    path.write_bytes(b"no journal at all, but long enough to be looked at" * 40)
    with pytest.raises(FencepostError, match=re.escape(str(path))):
        EmbeddedKafka(journal=path).start()


def test_records_go_in_and_come_out(kafka: EmbeddedKafka) -> None:
    first = kafka.produce("orders", "a", b"b", None, "d", "e")
    assert [(record.partition, record.offset) for record in first] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]
    (keyed,) = kafka.produce("orders", "x", key="k", headers=[("h", b"1")])
    (again,) = kafka.produce("orders", "y", key="k")
    assert keyed.partition == again.partition
    assert again.offset == keyed.offset + 1
    everything = kafka.records("orders")
    assert sorted(record.value or b"" for record in everything) == [b"", b"a", b"b", b"d", b"e", b"x", b"y"]
    assert keyed in everything
    (told,) = kafka.produce("orders", "z", headers={"text": "é", "bytes": b"1", "none": None})
    assert told.headers == (("text", "é".encode()), ("bytes", b"1"), ("none", None))
    assert told in kafka.records("orders")
    assert kafka.records("orders", partition=2)[0].value is None
    assert kafka.produce("orders") == []


def test_a_topic_is_created_for_what_is_produced_where_it_would_be_for_a_client() -> None:
    with EmbeddedKafka(topics=["t"], auto_create_topics=True, default_partitions=3) as kafka:
        assert [record.partition for record in kafka.produce("orders", "a", "b", "c")] == [0, 1, 2]
        with pytest.raises(FencepostError, match=r"there is no topic 'or/ders'; there are orders, t"):
            kafka.produce("or/ders", "a")
        with pytest.raises(FencepostError, match="there is no topic 'other'"):
            kafka.records("other")


def test_many_records_go_in_as_many_batches(kafka: EmbeddedKafka) -> None:
    values = [b"%06d" % number + b"x" * 10_000 for number in range(300)]
    sent = kafka.produce("orders", *values, partition=1)
    assert [record.offset for record in sent] == list(range(300))
    assert [record.value for record in kafka.records("orders", 1)] == values
    with pytest.raises(FencepostError, match="orders-1: MESSAGE_TOO_LARGE"):
        kafka.produce("orders", b"x" * 2_000_000, partition=1)


def test_a_commit_after_the_fence_is_of_an_unknown_member_or_by_the_test_stale(
    kafka: EmbeddedKafka, member: WireMember
) -> None:
    kafka.group("g").fence("m")
    assert member.commit(ORDERS[0], 1) is ErrorCode.UNKNOWN_MEMBER_ID
    kafka.fail_next("OffsetCommit", "STALE_MEMBER_EPOCH", "m")
    assert member.commit(ORDERS[0], 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert member.heartbeat().error_code is ErrorCode.FENCED_MEMBER_EPOCH


def test_offsets_are_what_was_committed(
    kafka: EmbeddedKafka, member: WireMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "_LAG_S", 3600.0)
    kafka.produce("orders", "a", "b", partition=0)
    member.commit(ORDERS[0], 2)
    assert kafka.group("g").offsets() == {TopicPartition("orders", 0): 2}
    assert kafka.check() == []
    member.commit(ORDERS[0], 3)
    kafka.produce("orders", "c", partition=0)
    assert [violation.invariant for violation in kafka.check()] == ["commit-within-processed"]


def test_a_journal_in_a_file_is_not_judged_by_halves_of_outcomes(tmp_path: Path) -> None:
    with EmbeddedKafka(topics=["orders"], journal=tmp_path / "kafka.journal") as kafka:
        for number in range(8):
            one = WireMember(kafka.bootstrap_servers, "g", f"m{number}")
            one.join("orders")
            one.confirm()
            assert kafka.check() == []
            one.heartbeat(-1)
            assert kafka.check() == []


def test_a_client_that_claims_too_much_is_seen(kafka: EmbeddedKafka, member: WireMember) -> None:
    second = WireMember(kafka.bootstrap_servers, "g", "second")
    second.join("orders")
    second.heartbeat(topic_partitions=member.assignment)
    found = {violation.invariant for violation in kafka.check()}
    assert "owned-honest" in found
    assert "one-claimant" in found
    assert [row.error for row in kinds(kafka, RowKind.VIOLATION)]


def test_a_coordinator_that_errs_is_seen(kafka: EmbeddedKafka, member: WireMember, monkeypatch) -> None:
    monkeypatch.setattr(validation, "check_epoch", lambda *_: None)
    monkeypatch.setattr("fencepost.coordinator.consumer.heartbeat.validation.check_epoch", lambda *_: None)
    member.heartbeat(member.epoch + 5)
    assert "heartbeat-answers" in {violation.invariant for violation in kafka.check()}


def test_a_judge_that_fails_fails_the_check_and_not_the_server(
    kafka: EmbeddedKafka, member: WireMember, monkeypatch
) -> None:
    monkeypatch.setattr("fencepost.simulation.judge.coordination.check_answer", lambda *_: 1 / 0)
    kafka.group("g").rebalance()
    assert member.heartbeat().error_code is ErrorCode.NONE
    with pytest.raises(ZeroDivisionError):
        kafka.check()


def test_topics_are_in_the_trace(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("more", 2)
    assert [(row.actor, row.detail) for row in kinds(kafka, RowKind.TOPIC)] == [
        ("orders", "created 4"),
        ("more", "created 2"),
    ]


def test_it_runs_again_after_it_was_closed() -> None:
    kafka = EmbeddedKafka(topics=["orders", "more"])
    for _ in range(2):
        with kafka:
            assert len(kafka.records("orders")) == 0
            kafka.produce("orders", "a")
    kafka.close()


def test_it_leaves_no_thread_and_no_port_behind() -> None:
    before = threading.active_count()
    with EmbeddedKafka(brokers=3) as kafka:
        assert threading.active_count() == before + 1
        ports = [int(server.rpartition(":")[2]) for server in kafka.bootstrap_servers.split(",")]
        WireMember(kafka.bootstrap_servers, "g", "m")
    assert threading.active_count() == before
    WireMember.close_all()
    with EmbeddedKafka(brokers=3, ports=ports) as again:
        assert again.bootstrap_servers == ",".join(f"127.0.0.1:{port}" for port in ports)
