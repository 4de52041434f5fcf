"""A group kind of its own: one class and one entry, and every world knows its groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator import kinds
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.kinds import GiveWay, GroupKind, GroupMember, ReportedMember
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.classic import JoinGroupProtocol, JoinGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode as E
from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    DeadlineReached,
    MemberFenced,
    Outcome,
    SessionEnded,
)
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.server import group_apis
from fencepost.coordinator.server.dispatch import handlers
from fencepost.coordinator.timers import Timers
from fencepost.simulation.trace.schema import RowKind

SHARE_HEARTBEAT = 76
"""The number of Kafka's ShareGroupHeartbeat."""
SESSION_MS = 1_000


class ShareReply(msgspec.Struct, frozen=True):
    member_id: str = ""
    member_epoch: int = 0
    error_code: E = E.NONE


class ShareHeartbeat(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    member_epoch: int = 1

    def refused(self, code: E) -> ShareReply:
        return ShareReply(self.member_id, 0, code)


class ShareMemberKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class ShareGroupKey(msgspec.Struct, frozen=True):
    group_id: str


def written(key: Any, value: Any) -> Record:
    return Record(key, value)


class ShareGroup:
    """Every member has all partitions of `orders`."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.members: dict[MemberId, int] = {}

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and topic == "orders"

    def hard_state(self) -> dict[str, Any]:
        return {"epoch": self.group_epoch, "members": dict(self.members)}


class ShareGroups(GroupKind):
    name = "share"
    member_key = ShareMemberKey
    heartbeat_requests = (ShareHeartbeat,)
    leaves_by_request = False
    api_keys = (SHARE_HEARTBEAT,)

    def __init__(self, give_way: GiveWay) -> None:
        self._give_way = give_way
        self.groups: dict[str, ShareGroup] = {}
        self.timers: Timers[tuple[str, str]] = Timers()
        self.now_ms = 0

    @classmethod
    def make(cls, config: GroupCoordinatorConfig, give_way: GiveWay) -> ShareGroups:
        return cls(give_way)

    def handlers(self) -> Mapping[type, Any]:
        return {ShareHeartbeat: self.heartbeat}

    def appliers(self) -> Mapping[type, Any]:
        return {ShareMemberKey: self.apply_member, ShareGroupKey: self.apply_group}

    def begin(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def rebuild(self, now_ms: int) -> None:
        for group_id, group in self.groups.items():
            for member_id in group.members:
                self.timers.set((group_id, member_id), now_ms + SESSION_MS)

    def heartbeat(self, request: ShareHeartbeat, now_ms: int) -> Outcome:
        group = self.groups.get(request.group_id)
        before = self._give_way(request.group_id) if group is None else ()
        if before is None:
            return Outcome(reply=request.refused(E.GROUP_ID_NOT_FOUND))  # type: ignore[arg-type]
        epoch = 1 if group is None else group.members.get(request.member_id, group.group_epoch + 1)
        reply: Any = ShareReply(request.member_id, epoch)
        if group is not None and request.member_id in group.members:
            self.heard(request.group_id, request.member_id, now_ms)
            return Outcome(reply=reply)
        raised = written(ShareGroupKey(request.group_id), epoch)
        joined = written(ShareMemberKey(request.group_id, request.member_id), epoch)
        return Outcome(records=(*before, raised, joined), reply=reply)

    def apply_group(self, key: ShareGroupKey, value: int | None) -> None:
        if value is None:
            self.groups.pop(key.group_id, None)
        else:
            self.groups.setdefault(key.group_id, ShareGroup(key.group_id)).group_epoch = value

    def apply_member(self, key: ShareMemberKey, value: int | None) -> None:
        group = self.groups.get(key.group_id)
        if value is None:
            self.timers.cancel((key.group_id, key.member_id))
            if group is not None:
                group.members.pop(key.member_id, None)
        else:
            group = self.groups.setdefault(key.group_id, ShareGroup(key.group_id))
            group.members[key.member_id] = value
            self.timers.set((key.group_id, key.member_id), self.now_ms + SESSION_MS)

    def deadline_reached(self, now_ms: int) -> Outcome | None:
        key = self.timers.pop_due(now_ms)
        return None if key is None else self.session_ended(*key, now_ms)

    def heard(self, group_id: str, member_id: MemberId, now_ms: int) -> None:
        self.timers.set((group_id, member_id), now_ms + SESSION_MS)

    def session_ended(self, group_id: str, member_id: MemberId, now_ms: int) -> Outcome:
        group = self.groups[group_id]
        if member_id not in group.members:
            return NOTHING
        fenced = MemberFenced(group_id=group_id, member_id=member_id, reason="session")
        gone = written(ShareMemberKey(group_id, member_id), None)
        raised = written(ShareGroupKey(group_id), group.group_epoch + 1)
        return Outcome(records=(gone, raised), effects=(fenced,))

    def end_of_empty(self, group: ShareGroup) -> tuple[Record, ...] | None:
        return None if group.members else (written(ShareGroupKey(group.group_id), None),)

    def check_commit(self, group: Any, image: TopicsImage, now_ms: int, request: Any) -> None:
        raise ProtocolError(E.UNKNOWN_MEMBER_ID, "share groups commit no offsets")

    def members(
        self, group: ShareGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
    ) -> list[GroupMember]:
        topic = image.by_name.get("orders")
        given = tuple(TopicPartition("orders", n) for n in range(0 if topic is None else topic.partitions))
        return [
            GroupMember(
                member_id=member_id,
                instance_id=None,
                client_id="toy",
                client_host="",
                epoch=epoch,
                protocol=self.name,
                topics=("orders",),
                assignment=given,
                owned=given,
            )
            for member_id, epoch in sorted(group.members.items())
        ]

    def reported(self, request: ShareHeartbeat, member_id: MemberId, image: TopicsImage) -> ReportedMember:
        owned = {topic.topic_id: tuple(range(topic.partitions)) for topic in image.by_id.values()}
        return ReportedMember(owned, owned, is_stable=True)


@pytest.fixture(autouse=True)
def _share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one entry."""
    monkeypatch.setattr(kinds, "FURTHER_KINDS", [*kinds.FURTHER_KINDS, ShareGroups])
    monkeypatch.setattr("fencepost.coordinator.coordinator.FURTHER_KINDS", kinds.FURTHER_KINDS)
    monkeypatch.setattr("fencepost.coordinator.server.dispatch.FURTHER_KINDS", kinds.FURTHER_KINDS)


class TestCoordinator:
    @pytest.fixture
    def host(self) -> CoordinatorHost[GroupCoordinator]:
        coordinator = GroupCoordinator(GroupCoordinatorConfig())
        return CoordinatorHost(coordinator, MemoryJournal())

    def test_its_requests_records_and_timers_run(self, host: CoordinatorHost[GroupCoordinator]) -> None:
        assert host.process(ShareHeartbeat("s", "A"), 0).reply == ShareReply("A", 1)
        assert host.process(ShareHeartbeat("s", "B"), 100).reply == ShareReply("B", 2)
        assert host.process(ShareHeartbeat("s", "A"), 900).reply.member_epoch == 1
        assert host.coordinator.next_deadline() == 1_100
        outcome = host.process(DeadlineReached(1_100), 1_100)
        assert [effect.member_id for effect in outcome.effects] == ["B"]
        host.process(SessionEnded(group_id="s", member_id="A"), 1_200)
        found = host.coordinator.kinds.find("s")
        assert found is not None
        assert (found[0].name, found[1].state) == ("share", "Empty")

    def test_a_journal_leads_to_the_same_groups(self, host: CoordinatorHost[GroupCoordinator]) -> None:
        for member_id in "ABC":
            host.process(ShareHeartbeat("s", member_id), 0)
        loaded = GroupCoordinator(GroupCoordinatorConfig())
        assert isinstance(host.journal, MemoryJournal)
        loaded.replay(host.journal, 5_000)
        assert loaded.hard_state() == host.coordinator.hard_state()
        assert loaded.next_deadline() == 6_000

    def test_administrators_see_and_delete_its_groups(self, host: CoordinatorHost[GroupCoordinator]) -> None:
        host.process(ShareHeartbeat("s", "A"), 0)
        (row,) = host.process(consumer.ListGroupsRequest(types_filter=("share",)), 0).reply.groups
        assert (row.group_id, row.group_type, row.group_state) == ("s", "share", "Stable")
        assert (
            host.process(consumer.DeleteGroupsRequest(group_id="s"), 0).reply.error_code is E.NON_EMPTY_GROUP
        )
        leave = consumer.LeaveGroupRequest(group_id="s", member_id="A")
        assert host.process(leave, 0).reply.error_code is E.UNKNOWN_MEMBER_ID
        host.process(SessionEnded(group_id="s", member_id="A"), 0)
        assert host.process(consumer.DeleteGroupsRequest(group_id="s"), 0).reply.error_code is E.NONE
        assert host.coordinator.kinds.of("s") is None

    def test_members_of_other_kinds_are_refused(self, host: CoordinatorHost[GroupCoordinator]) -> None:
        host.process(ShareHeartbeat("s", "A"), 0)
        joins = JoinGroupRequest(
            group_id="s",
            member_id="",
            protocol_type="consumer",
            protocols=(JoinGroupProtocol("range", b""),),
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
        )
        assert host.process(joins, 0).reply.error_code is E.INCONSISTENT_GROUP_PROTOCOL
        beat = consumer.ConsumerGroupHeartbeatRequest(
            group_id="s",
            member_id="c",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=("orders",),
            topic_partitions={},
        )
        assert host.process(beat, 0).reply.error_code is E.GROUP_ID_NOT_FOUND


class TestEmbedded:
    @pytest.fixture
    def kafka(self) -> Iterator[EmbeddedKafka]:
        with EmbeddedKafka(topics={"orders": 3}) as kafka:
            yield kafka

    def ask(self, kafka: EmbeddedKafka, *requests: Any) -> list[Any]:
        async def asked() -> list[Any]:
            return [kafka.endpoint.brokers.groups.ask(request, 1) for request in requests]

        return kafka.thread.submit(asked()).result()

    def test_an_endpoint_hands_its_requests_to_the_coordinator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert SHARE_HEARTBEAT not in handlers()  # no codec can read it
        monkeypatch.setitem(REGISTRY, SHARE_HEARTBEAT, REGISTRY[ApiKey.CONSUMER_GROUP_HEARTBEAT])
        assert handlers()[SHARE_HEARTBEAT] is group_apis.ask

    def test_tests_see_its_members_and_drive_them(self, kafka: EmbeddedKafka) -> None:
        group = kafka.group("s")
        self.ask(kafka, ShareHeartbeat("s", "A"), ShareHeartbeat("s", "B"))
        first, second = group.wait_stable(2)
        assert (first.member_id, first.protocol, second.epoch, len(first.assignment)) == ("A", "share", 2, 3)
        group.expire("A")
        group.fence("B")
        assert (group.state, group.members()) == ("Empty", [])
        assert kafka.check() == []

    def test_a_coordinator_that_loads_refuses_its_requests(self, kafka: EmbeddedKafka) -> None:
        kafka.move_coordinator("s", load_seconds=60)
        (reply,) = self.ask(kafka, ShareHeartbeat("s", "A"))
        assert reply.error_code is E.COORDINATOR_LOAD_IN_PROGRESS

    def test_its_steps_are_in_the_trace(self, kafka: EmbeddedKafka) -> None:
        self.ask(kafka, *(ShareHeartbeat("s", member_id) for member_id in "AAB"))
        kafka.group("s").expire("A")
        kafka.check()
        rows = [row for row in kafka.endpoint.observer.rows if row.group == "s"]
        told: Collection[Any] = [(row.actor, row.detail) for row in rows if row.kind == RowKind.HEARTBEAT]
        assert told == [(member_id, "ShareHeartbeat") for member_id in "AAB"]
        assert [row.group_epoch for row in rows if row.kind == RowKind.GROUP_EPOCH] == [1, 2, 3]
        (removed,) = (row for row in rows if row.kind == RowKind.MEMBER_REMOVED)
        assert (removed.actor, removed.detail) == ("A", "session")
        states = [row.state_to for row in rows if row.kind == RowKind.MEMBER_STATE and row.actor == "B"]
        assert states[-1] == "STABLE"
        assert "assigned" in {row.detail for row in rows if row.kind == RowKind.CALLBACK_END}

    def test_its_offsets_are_fenced(self, kafka: EmbeddedKafka) -> None:
        offsets = {TopicPartition("orders", 0): OffsetAndMetadata(offset=0)}
        commit = OffsetCommitRequest(group_id="s", member_id="A", member_epoch=1, offsets=offsets)
        _, reply = self.ask(kafka, ShareHeartbeat("s", "A"), commit)
        assert set(reply.errors.values()) == {E.UNKNOWN_MEMBER_ID}
        assert kafka.check() == []

    def test_judges_compare_what_its_journal_leads_to(self, kafka: EmbeddedKafka) -> None:
        self.ask(kafka, ShareHeartbeat("s", "A"))
        coordinator = kafka.endpoint.brokers.groups.shard_of("s").coordinator
        assert coordinator is not None
        found = coordinator.kinds.find("s")
        assert found is not None
        found[1].group_epoch = 7
        assert "journal-replay" in {violation.invariant for violation in kafka.check()}
