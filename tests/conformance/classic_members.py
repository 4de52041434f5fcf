"""Members of classic groups, spoken for request by request, against our broker or Kafka's."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.groups import LeaveGroupCall
from fencepost.coordinator.codec.offsets import CommittedPartition, OffsetCommitCall
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.classic import (
    DescribedClassicGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata

SECONDS = 60


class Member:
    """One connection; an answer may be taken later than it is asked for."""

    def __init__(self, servers: str, group: str) -> None:
        host, port = servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), SECONDS)
        self._group = group
        self._asked: list[tuple[int, int]] = []
        self.member_id = ""
        self.generation = -1

    def close(self) -> None:
        self._socket.close()

    def find_coordinator(self) -> None:
        """Until there is one: Kafka makes the coordinators when the first client looks for one."""
        deadline = time.monotonic() + SECONDS
        lookup = FindCoordinatorRequest(keys=(self._group,))
        while self.beat() != "UNKNOWN_MEMBER_ID":
            self.ask(ApiKey.FIND_COORDINATOR, 4, lookup)
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def send(self, api_key: int, version: int, message: Any) -> None:
        self._socket.sendall(request_frame(api_key, version, len(self._asked), "me", message))
        self._asked.append((api_key, version))

    def receive(self) -> Any:
        api_key, version = self._asked[-1]
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        return read_response(api_key, version, frame)[1]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker hung up"
            data += more
        return data

    def ask(self, api_key: int, version: int, message: Any) -> Any:
        self.send(api_key, version, message)
        return self.receive()

    def send_join(self, version: int = 9, **fields: Any) -> None:
        names = fields.pop("protocols", ("range",))
        topics, owned = fields.pop("topics", ("x",)), fields.pop("owned", {})
        data = write_subscription(ConsumerProtocolSubscription(topics=topics, owned=owned))
        defaults = {
            "group_id": self._group,
            "member_id": self.member_id,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
        }
        protocols = tuple(JoinGroupProtocol(name, data) for name in names)
        request = JoinGroupRequest(**{**defaults, **fields}, protocols=protocols, api_version=version)
        self.send(ApiKey.JOIN_GROUP, version, request)

    def joined(self) -> JoinGroupResponse:
        answer: JoinGroupResponse = self.receive()
        if answer.error_code.name in {"NONE", "MEMBER_ID_REQUIRED"}:
            self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    def join(self, version: int = 9, **fields: Any) -> JoinGroupResponse:
        self.send_join(version, **fields)
        return self.joined()

    def join_error(self, **fields: Any) -> str:
        self.send_join(**fields)
        return str(self.receive().error_code.name)

    def enter(self, **fields: Any) -> None:
        """Get an id, and ask to join with it."""
        assert self.join(**fields).error_code.name == "MEMBER_ID_REQUIRED"
        self.send_join(**fields)

    def sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> SyncGroupResponse:
        defaults = {
            "group_id": self._group,
            "generation": self.generation,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        request = SyncGroupRequest(**{**defaults, **fields}, assignments=assignments or {})
        answer: SyncGroupResponse = self.ask(ApiKey.SYNC_GROUP, 5, request)
        return answer

    def beat(self, **fields: Any) -> str:
        defaults = {"group_id": self._group, "generation": self.generation, "member_id": self.member_id}
        reply = self.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(**{**defaults, **fields}))
        return str(reply.error_code.name)

    def beat_until(self, code: str) -> None:
        deadline = time.monotonic() + SECONDS
        while self.beat() != code:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def commit(self, topic: str, partition: int = 0, **fields: Any) -> str:
        defaults = {
            "member_id": self.member_id,
            "member_epoch": self.generation,
            "instance_id": None,
            "retention_time_ms": -1,
            "api_version": 9,
        }
        partitions = (CommittedPartition(partition, OffsetAndMetadata(offset=1)),)
        call = OffsetCommitCall(
            group_id=self._group,
            topics=(OfTopic(name=topic, partitions=partitions),),
            **{**defaults, **fields},
        )
        ((result,),) = (each.partitions for each in self.ask(ApiKey.OFFSET_COMMIT, 9, call).topics)
        return str(result.error_code.name)

    def leave(self, *members: tuple[str, str | None]) -> list[str]:
        requests = tuple(
            LeaveGroupRequest(group_id=self._group, member_id=member_id, instance_id=instance_id)
            for member_id, instance_id in members
        )
        answer = self.ask(ApiKey.LEAVE_GROUP, 5, LeaveGroupCall(group_id=self._group, members=requests))
        return [member.error_code.name for member in answer.members]

    def description(self) -> DescribedClassicGroup:
        request = DescribeGroupsRequest(group_ids=(self._group,))
        described: DescribeGroupsResponse = self.ask(ApiKey.DESCRIBE_GROUPS, 5, request)
        (group,) = described.groups
        return group

    def described(self) -> tuple[str, str, str, int]:
        """State, type, protocol, and how many members the classic description has."""
        group = self.description()
        return group.group_state, group.protocol_type, group.protocol_data, len(group.members)

    def modern(self, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat of the newer protocol."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group, member_id="modern", member_epoch=epoch, **fields
        )
        answer: ConsumerGroupHeartbeatResponse = self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        return answer


def pair(members: Callable[[], Member], **fields: Any) -> tuple[Member, Member]:
    """A Stable group of two dynamic members, of which the first one leads."""
    one, two = members(), members()
    one.enter(**fields)
    assert one.joined().leader == one.member_id
    one.sync({one.member_id: b""})
    two.enter(**fields)
    one.beat_until("REBALANCE_IN_PROGRESS")
    one.send_join(**fields)
    assert two.joined().generation == one.joined().generation
    return one, two


def share(one: Member, two: Member, topic: str) -> None:
    """The leader gives the first two partitions to itself, and two to the other."""
    held = {one.member_id: (0, 1), two.member_id: (2, 3)}
    assignments = {
        m: write_assignment(ConsumerProtocolAssignment(partitions={topic: p})) for m, p in held.items()
    }
    assert one.sync(assignments).assignment == assignments[one.member_id]
    assert two.sync().assignment == assignments[two.member_id]
