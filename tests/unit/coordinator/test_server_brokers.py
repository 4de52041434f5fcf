"""Several brokers in one process: who leads what, who coordinates whom, and what the others answer."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.coordinator.codec.offsets import CommittedPartition
from fencepost.coordinator.codec.transactions import TxnOffsetCommitCall
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import consumer, offsets, transactions
from fencepost.coordinator.protocol.errors import (
    EnvironmentLacks,
    ErrorCode,
    FencepostError,
    ProtocolError,
)
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.refusals import refusal
from fencepost.coordinator.server.brokers import Broker, Brokers
from fencepost.coordinator.server.transaction_apis import offset_commit
from fencepost.coordinator.transactions.states import TransactionState
from tests.waiting import until

pytestmark = pytest.mark.real

GROUPS = [f"group-{number}" for number in range(12)]


def join(group_id: str) -> consumer.ConsumerGroupHeartbeatRequest:
    return consumer.ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=f"member-of-{group_id}",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=("orders",),
        topic_partitions={},
    )


@pytest.fixture
async def brokers():
    async with Brokers({"orders": 6}, ports=(0, 0, 0)) as three:
        yield three


async def test_each_broker_leads_a_third_of_the_groups(brokers):
    leaders = [brokers.groups.leader_id(group_id) for group_id in GROUPS]
    assert {*leaders} == {1, 2, 3}


async def test_only_the_coordinator_answers(brokers):
    for group_id in GROUPS:
        leader = brokers.groups.leader_id(group_id)
        answers = {node: brokers.groups.ask(join(group_id), node).error_code for node in (1, 2, 3)}
        assert answers == {
            node: ErrorCode.NONE if node == leader else ErrorCode.NOT_COORDINATOR for node in (1, 2, 3)
        }


async def test_only_the_coordinator_of_a_group_adds_it_to_a_transaction(brokers):
    leader = brokers.groups.leader_id("g")
    producer = brokers.transactions.ask(
        transactions.InitProducerIdRequest(transactional_id="id", timeout_ms=60_000),
        brokers.transactions.leader_id("id"),
    )
    one = OfTopic(name="orders", partitions=(CommittedPartition(0, offsets.OffsetAndMetadata(offset=1)),))

    def commit(node: int) -> tuple[ErrorCode, tuple[str, ...]]:
        call = TxnOffsetCommitCall(
            transactional_id="id",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id="g",
            topics=(one,),
            api_version=5,
        )
        ((answer,),) = (
            topic.partitions for topic in offset_commit(brokers.services[node - 1], call, None).topics
        )
        return answer.error_code, brokers.transactions.coordinator.transactions["id"].groups

    for node in {1, 2, 3} - {leader}:
        assert commit(node) == (ErrorCode.NOT_COORDINATOR, ())
    assert commit(leader) == (ErrorCode.NONE, ("g",))


async def test_each_broker_lists_and_describes_what_it_leads(brokers):
    for group_id in GROUPS:
        brokers.groups.ask(join(group_id), brokers.groups.leader_id(group_id))
    listed = []
    for node in (1, 2, 3):
        mine = [group.group_id for group in brokers.groups.ask(consumer.ListGroupsRequest(), node).groups]
        assert mine == sorted(group_id for group_id in GROUPS if brokers.groups.leader_id(group_id) == node)
        listed += mine
        described = brokers.groups.ask(
            consumer.ConsumerGroupDescribeRequest(group_ids=tuple(GROUPS)), node
        ).groups
        assert [group.group_id for group in described] == GROUPS
        found = [group.group_id for group in described if group.error_code is ErrorCode.NONE]
        assert sorted(found) == mine
        assert {group.error_code for group in described} == {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR}
    assert sorted(listed) == sorted(GROUPS)


async def test_a_shard_that_moves_loads_its_journal(brokers):
    groups = brokers.groups
    told = groups.ask(join("group-0"), groups.leader_id("group-0"))
    shard = groups.shard_of("group-0")
    old, new = shard.node_id, shard.node_id % 3 + 1
    groups.move(shard, new, load_s=60)
    assert groups.leader_id("group-0") == new
    assert groups.ask(join("group-0"), old).error_code is ErrorCode.NOT_COORDINATOR
    assert groups.ask(join("group-0"), new).error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert groups.ask(consumer.ListGroupsRequest(), new).error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    groups.move(shard, old)
    steady = consumer.ConsumerGroupHeartbeatRequest(
        group_id="group-0", member_id="member-of-group-0", member_epoch=told.member_epoch
    )
    assert groups.ask(steady, old).member_epoch == told.member_epoch


async def test_groups_survive_a_restart_and_soft_state_does_not(brokers):
    groups = brokers.groups
    told = {group_id: groups.ask(join(group_id), groups.leader_id(group_id)) for group_id in GROUPS}
    brokers.restart()
    for group_id, reply in told.items():
        steady = consumer.ConsumerGroupHeartbeatRequest(
            group_id=group_id, member_id=reply.member_id, member_epoch=reply.member_epoch
        )
        assert groups.ask(steady, groups.leader_id(group_id)).error_code is ErrorCode.NONE


async def test_shards_may_share_a_journal():
    journal = MemoryJournal()
    async with Brokers({"orders": 6}, ports=(0, 0), journal=journal) as brokers:
        for group_id in GROUPS:
            brokers.groups.ask(join(group_id), brokers.groups.leader_id(group_id))
        brokers.restart()
        held = [sorted(shard.coordinator.groups) for shard in brokers.groups.shards]
    assert all(held)
    assert sorted(held[0] + held[1]) == sorted(GROUPS)


async def test_a_partition_is_served_by_its_leader_alone(brokers):
    topic = brokers.cluster.image.by_name["orders"]
    leaders = [brokers.cluster.leader_id(topic, number) for number in range(6)]
    assert {*leaders} == {1, 2, 3}
    for node in (1, 2, 3):
        services = brokers.services[node - 1]
        for number, leader in enumerate(leaders):
            if leader == node:
                assert services.log(topic, number).high_watermark == 0
            else:
                with pytest.raises(ProtocolError) as refused:
                    services.log(topic, number)
                assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(ProtocolError) as unknown:
            services.log(topic, 6)
        assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "request_",
    [
        join("g"),
        offsets.OffsetFetchRequest(group_id="g"),
        offsets.OffsetDeleteRequest(group_id="g", partitions=()),
        consumer.DeleteGroupsRequest(group_id="g"),
        consumer.LeaveGroupRequest(group_id="g"),
        consumer.LeaveGroupBatchRequest(group_id="g", members=()),
        consumer.ListGroupsRequest(),
    ],
)
def test_every_request_can_be_refused(request_):
    assert refusal(request_, ErrorCode.NOT_COORDINATOR).error_code is ErrorCode.NOT_COORDINATOR


async def test_a_port_that_is_taken_leaves_nothing_open():
    async with Brokers() as first:
        with pytest.raises(FencepostError, match="is taken"):
            await Brokers(ports=(0, first.ports[0])).start()


async def test_time_that_passes_at_once_fires_each_timer_at_its_time(brokers):
    groups = brokers.groups
    for group_id in GROUPS:
        groups.ask(join(group_id), groups.leader_id(group_id))
    moved = []
    started = brokers.clock.now_ms()
    brokers.advance(44_000, lambda end_ms: moved.append(brokers.clock.now_ms()))
    assert all(groups.shard_of(each).coordinator.groups[each].members for each in GROUPS)
    brokers.advance(1_500, lambda end_ms: moved.append(brokers.clock.now_ms()))
    assert not any(groups.shard_of(each).coordinator.groups[each].members for each in GROUPS)
    assert moved == sorted(moved)
    assert 45_500 <= brokers.clock.now_ms() - started < 60_000


def begin(brokers: Brokers, name: str, partition: int, timeout_ms: int) -> None:
    """A transaction that is open in a partition of `orders`."""
    node = brokers.transactions.leader_id(name)
    producer = brokers.transactions.ask(
        transactions.InitProducerIdRequest(transactional_id=name, timeout_ms=timeout_ms), node
    )
    brokers.transactions.ask(
        transactions.AddPartitionsToTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            partitions=(TopicPartition("orders", partition),),
        ),
        node,
    )


async def test_time_that_passes_at_once_ends_transactions_at_their_time(brokers):
    groups, known = brokers.groups, lambda: brokers.transactions.coordinator.transactions
    started = brokers.clock.now_ms()
    begin(brokers, "late", 0, 300_000)
    begin(brokers, "soon", 1, 60_000)
    for group_id in GROUPS:
        groups.ask(join(group_id), groups.leader_id(group_id))
    brokers.advance(59_000)
    assert {value.status for value in known().values()} == {TransactionState.ONGOING.code}
    moved = []
    brokers.advance(7 * 86_400_000 + 60_000, lambda end_ms: moved.append(brokers.clock.now_ms()))
    assert moved == sorted(moved)
    topic = brokers.cluster.image.by_name["orders"]
    for partition, after_s in ((1, 60), (0, 300)):
        (_, timestamp_ms) = at_once(brokers.cluster.log(topic, partition).offset_of_max_timestamp())
        assert after_s <= (timestamp_ms - started) / 1_000 < after_s + 10, "that of the marker"
    assert known().keys() == {"late"}, "the other one was not used for a week"
    brokers.advance(300_000)
    assert not known()
    assert brokers.transactions.next_deadline() is None


@pytest.mark.parametrize("length_ms", [1_000, 59_999])
async def test_a_timer_that_is_not_due_yet_goes_off_at_its_time_by_the_moved_clock(brokers, length_ms):
    begin(brokers, "t", 0, length_ms + 300)
    brokers.advance(length_ms)
    log = brokers.cluster.log(brokers.cluster.image.by_name["orders"], 0)
    async with asyncio.timeout(20):
        await until(lambda: log.high_watermark == 1)


@pytest.mark.parametrize("library", ["cramjam", "crc32c", "kio"])
async def test_a_library_that_is_missing_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fencepost.coordinator.server.brokers.find_spec", lambda name: None if name == library else name
    )
    with pytest.raises(EnvironmentLacks, match=rf"a broker needs {library}: pip install 'fencepost\[emb"):
        await Broker({"orders": 1}).start()
