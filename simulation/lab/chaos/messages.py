"""Messages between members' processes and their director: msgpack, each message preceded by its length.

Times are microseconds since the start of the run, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from fencepost.coordinator.codec.framing import FrameBuffer
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.member.streams.actions import Level

ClientName: TypeAlias = Literal["fencepost", "confluent"]
ProgramName: TypeAlias = ClientName | Literal["streams"]
SpanFields: TypeAlias = tuple[str, int, int]
"""The kind and the two ends of a `Span`."""


class CommonTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that any process needs when it starts. Times are in milliseconds unless stated otherwise."""

    name: str
    """The host's name, which is the client id, too."""
    process: int
    """Number of the process on its host."""
    seed: int
    began_us: int
    """The start of the run by CLOCK_MONOTONIC."""
    bootstrap_servers: str
    group_id: str
    topics: tuple[str, ...]
    max_poll_interval_ms: int
    request_timeout_ms: int
    gather_ms: int
    """Time that records gather before a fetch returns them, in ms."""
    max_poll_records: int
    callback: SpanFields
    processing: SpanFields
    flaw: str = ""
    """A flaw of the application, for tests of the judges; see `application.FLAWS`."""

    @property
    def client_settings(self) -> dict[str, Any]:
        """The settings of the process's Kafka client, whatever kind it is."""
        return dict(
            bootstrap_servers=self.bootstrap_servers,
            group_id=self.group_id,
            client_id=self.name,
            max_poll_interval_ms=self.max_poll_interval_ms,
            max_poll_records=self.max_poll_records,
            request_timeout_ms=self.request_timeout_ms,
            fetch_min_bytes=1 << 20,
            fetch_max_wait_ms=self.gather_ms,
        )


class Terms(CommonTerms, frozen=True, kw_only=True, tag="member"):
    """All that a member's process needs to know."""

    client: ClientName
    protocol: Literal["consumer", "classic"] = "consumer"
    strategy: str = "range"
    """Assignor of classic members; the three times that follow are theirs, too."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    metadata_max_age_ms: int = 300_000
    instance_id: str | None
    assignor: str | None
    pattern: str | None
    commit: Literal["auto", "sync", "async"]
    auto_commit_interval_ms: int


class ClientTerms(CommonTerms, frozen=True, kw_only=True, tag="streams"):
    """All that the process of a client of a Streams application needs to know."""

    threads: int
    group_protocol: Literal["streams", "classic"]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    """Only for classic members, which choose both timeouts themselves."""
    commit_interval_ms: int
    poll_ms: int
    state_dir: str
    global_topic: str | None = None
    """The topic that the global thread reads, if there is one."""
    stores: bool = False
    """True if threads keep stores, with changelogs."""


AnyTerms: TypeAlias = Terms | ClientTerms


# -- orders to a member's process -------------------------------------------------------------------------


class _Order(msgspec.Struct, frozen=True, tag=True):
    """An order to a member's process."""


class Stop(_Order, frozen=True):
    """End gracefully; `forever` also gives up a static member's place."""

    forever: bool


class SubscribeOrder(_Order, frozen=True):
    """Subscribe to these, in place of the previous subscription."""

    topics: tuple[str, ...]
    pattern: str | None


class Stall(_Order, frozen=True):
    """Be busy until then."""

    until_us: int


class SlowCallbackOrder(_Order, frozen=True):
    """Take that much longer in the next rebalance callback."""

    lasts_us: int


class FailCallback(_Order, frozen=True):
    """Raise in the next rebalance callback."""


class FailThread(_Order, frozen=True):
    """Let a thread of a Streams client fail, and its handler return that response; see `streams.failures`."""

    answer: str
    where: str
    error: str


class ChangeThreads(_Order, frozen=True):
    """Add a thread to a Streams client, or remove one."""

    adds: bool


class Forgive(_Order, frozen=True):
    """Forget the failures that no thread has met yet."""


Order: TypeAlias = (
    Stop | SubscribeOrder | Stall | SlowCallbackOrder | FailCallback | FailThread | ChangeThreads | Forgive
)


# -- events of a member's process -------------------------------------------------------------------------


class _Event(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An event in a member's process."""

    t_us: int


class Up(_Event, frozen=True):
    """The process has its consumer, or its Streams client, which has no member id."""

    member_id: MemberId
    """Empty for a classic member: the coordinator gives it an id."""
    protocol: str = "consumer"


class MemberMoved(_Event, frozen=True):
    """The member machine made a transition."""

    event: str
    source: str
    target: str
    epoch: int
    owned: tuple[TopicPartition, ...]


class RequestSent(_Event, frozen=True):
    """A request went out; without a body, it is the one that this number had before."""

    number: int
    heartbeat: consumer.ConsumerGroupHeartbeatRequest | None
    commit: OffsetCommitRequest | None


class HeartbeatAnswered(_Event, frozen=True):
    """A heartbeat was answered, or failed with `error`, the name of an exception."""

    number: int
    response: consumer.ConsumerGroupHeartbeatResponse | None
    error: str


class ClassicSent(_Event, frozen=True):
    """A request of the classic protocol went out: the name of its type, and itself as msgpack."""

    number: int
    kind: str
    body: bytes


class ClassicAnswered(_Event, frozen=True):
    """Such a request was answered."""

    number: int
    kind: str
    body: bytes


class CalledBack(_Event, frozen=True):
    """A rebalance callback reached a phase."""

    kind: str
    phase: str
    partitions: tuple[TopicPartition, ...]


class Committed(_Event, frozen=True):
    """A commit was answered, or failed. A commit that no `RequestSent` reported comes with its request."""

    number: int
    request: OffsetCommitRequest | None
    response: OffsetCommitResponse | None
    error: str


class Delivered(_Event, frozen=True):
    """The application was handed these records."""

    partition: TopicPartition
    first: int
    last_exclusive: int


class Processed(_Event, frozen=True):
    """The application finished with these records; `numbers` is what their producer numbered them."""

    partition: TopicPartition
    first: int
    last_exclusive: int
    numbers: tuple[int, ...]


class Stopping(_Event, frozen=True):
    """The application received the request to end, and is about to end."""

    for_good: bool = False
    """True if it leaves its group for good, as a static member that does not come back."""


class Stopped(_Event, frozen=True):
    """The consumer is closed; `error` if the member met a fatal one. For a Streams client, its state."""

    error: str


class Stepped(_Event, frozen=True):
    """A machine of a Streams client moved, or refused to; see `member.streams.actions`."""

    level: Level
    name: str
    event: str
    source: str
    target: str
    refused: bool


class HandlerAsked(_Event, frozen=True):
    """An exception left a thread, and the handler responds; empty if the exception was not injected."""

    thread: str
    answer: str
    where: str


class ShutdownTold(_Event, frozen=True):
    """The group told a thread's member that the application is to be shut down."""


class OffsetsCommitted(_Event, frozen=True):
    """A thread has committed these offsets."""

    offsets: tuple[tuple[TopicPartition, int], ...]


class RoundTrip(_Event, frozen=True):
    """A thread's member got a response after that time; `written` if the coordinator wrote before."""

    thread: str
    took_us: int
    written: bool


class CheckFound(_Event, frozen=True):
    """A check in the process reported this finding."""

    invariant: str
    message: str


class Failed(_Event, frozen=True):
    """The program itself failed, with this traceback: a defect of ours, or of a library."""

    trace: str


Event: TypeAlias = (
    Up
    | MemberMoved
    | RequestSent
    | HeartbeatAnswered
    | ClassicSent
    | ClassicAnswered
    | CalledBack
    | Committed
    | Delivered
    | Processed
    | Stopping
    | Stopped
    | Stepped
    | HandlerAsked
    | ShutdownTold
    | OffsetsCommitted
    | RoundTrip
    | CheckFound
    | Failed
)

# -- frames -----------------------------------------------------------------------------------------------

_SIZE = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode


def frame(message: Any) -> bytes:
    """Return a message with its length before it."""
    body = _encode(message)
    return _SIZE.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages of one type."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = FrameBuffer()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages that are complete with these bytes."""
        self._buffer.feed(data)
        while (body := self._buffer.next_frame()) is not None:
            yield self._decoder.decode(body)
