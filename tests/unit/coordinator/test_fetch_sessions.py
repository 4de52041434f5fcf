"""Fetch sessions: what clients hear of, and what they have to say (KIP-227)."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.logs import FetchedPartition, FetchPartition, FetchRequest, OfTopic
from fencepost.coordinator.server.fetch_sessions import Fetched, FetchSession, FetchSessions, by_topic


def request(session: int = 0, epoch: int = 0, forget: tuple[int, ...] = (), **offsets: int) -> FetchRequest:
    """Partitions of one topic by their offset: p0=5."""
    partitions = tuple(
        FetchPartition(partition=int(name[1:]), fetch_offset=offset, partition_max_bytes=100)
        for name, offset in offsets.items()
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=100,
        session_id=session,
        session_epoch=epoch,
        topics=(OfTopic(name="t", partitions=partitions),) if partitions else (),
        forgotten=(OfTopic(name="t", partitions=forget),) if forget else (),
    )


def begun(sessions: FetchSessions, **offsets: int) -> FetchSession:
    session = sessions.session_of(request(**offsets))
    assert session is not None
    return session


def numbers(session: FetchSession | None) -> list[tuple[int, int]]:
    assert session is not None
    return [(one.partition.partition, one.partition.fetch_offset) for one in session.wanted]


def read(session: FetchSession, **found: dict[str, object]) -> list[Fetched]:
    """An answer for each partition; high watermark 0 and nothing else, unless said otherwise."""
    return [
        Fetched(
            one,
            FetchedPartition(
                partition=one.partition.partition,
                **{
                    "high_watermark": 0,
                    "log_start_offset": 0,
                    **found.get(f"p{one.partition.partition}", {}),
                },
            ),
        )
        for one in session.wanted
    ]


def news(session: FetchSession, **found: dict[str, object]) -> list[int]:
    return [one.found.partition for one in session.news(read(session, **found))]


def refused(code: ErrorCode):
    return pytest.raises(ProtocolError, check=lambda error: error.code is code)


def test_a_session_remembers_and_forgets_partitions():
    sessions = FetchSessions()
    session = begun(sessions, p0=0, p1=0)
    assert session.session_id > 0
    assert numbers(sessions.session_of(request(session.session_id, 1, p1=7))) == [(0, 0), (1, 7)]
    assert numbers(sessions.session_of(request(session.session_id, 2, forget=(0,), p2=1))) == [(1, 7), (2, 1)]
    assert sessions.session_of(request(session.session_id, 3, forget=(1, 2))) is None
    assert len(sessions) == 0


def test_only_news_are_told_and_partitions_with_records_go_last():
    session = begun(FetchSessions(), p0=0, p1=0, p2=0)
    assert news(session) == [0, 1, 2]
    assert news(session) == []
    assert news(session, p0={"batches": (b"x",), "high_watermark": 1}) == [0]
    assert [number for number, _ in numbers(session)] == [1, 2, 0]
    assert news(session, p0={"high_watermark": 1}) == []
    assert news(session, p0={"high_watermark": 1}, p2={"log_start_offset": 1}) == [2]
    wrong = {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "high_watermark": 0}
    assert news(session, p0={"high_watermark": 1}, p1=wrong, p2={"log_start_offset": 1}) == [1]


def test_requests_outside_of_a_session():
    sessions = FetchSessions()
    assert sessions.session_of(request(epoch=-1, p0=0)) is None
    assert sessions.session_of(request(epoch=0)) is None
    session = begun(sessions, p0=0)
    assert sessions.session_of(request(session.session_id, -1, p0=0)) is None
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        sessions.session_of(request(session.session_id, 1))


def test_requests_out_of_order_are_refused_and_the_session_goes_on():
    sessions = FetchSessions()
    session = begun(sessions, p0=0)
    for epoch in (2, 5):
        with refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            sessions.session_of(request(session.session_id, epoch))
    assert sessions.session_of(request(session.session_id, 1)) is session
    session.epoch = 2**31 - 1
    assert sessions.session_of(request(session.session_id, 2**31 - 1)) is session
    assert session.epoch == 1


def test_names_and_ids_of_topics_do_not_mix():
    sessions = FetchSessions()
    session = begun(sessions, p0=0)
    later = request(session.session_id, 1, p0=5)
    with refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR):
        sessions.session_of(msgspec.structs.replace(later, by_id=True))
    assert numbers(sessions.session_of(later)) == [(0, 5)]


def test_the_session_used_longest_ago_makes_room():
    sessions = FetchSessions(limit=2)
    first, second = begun(sessions, p0=0), begun(sessions, p0=0)
    sessions.session_of(request(first.session_id, 1))
    begun(sessions, p0=0)
    assert sessions.session_of(request(first.session_id, 2)) is first
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        sessions.session_of(request(second.session_id, 1))


def test_results_of_a_topic_go_together():
    session = begun(FetchSessions(), p0=0, p1=0)
    (topic,) = by_topic(read(session))
    assert topic.name == "t"
    assert [one.partition for one in topic.partitions] == [0, 1]


def test_sessions_are_bounded_by_their_partitions():
    sessions = FetchSessions(max_partitions=5)
    first, second = begun(sessions, p0=0, p1=0), begun(sessions, p0=0, p1=0, p2=0)
    assert len(sessions) == 2
    third = begun(sessions, p0=0)
    with pytest.raises(ProtocolError) as caught:
        sessions.session_of(request(first.session_id, 1))
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.session_of(request(second.session_id, 1)) is second
    assert sessions.session_of(request(third.session_id, 1)) is third


def test_a_session_that_is_too_large_is_not_kept():
    sessions = FetchSessions(max_partitions=2)
    assert sessions.session_of(request(p0=0, p1=0, p2=0)) is None
    grows = begun(sessions, p0=0)
    with pytest.raises(ProtocolError, match="MAX_SESSION_PARTITIONS") as caught:
        sessions.session_of(request(grows.session_id, 1, p1=0, p2=0))
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0
    assert len(begun(sessions, p0=0, p1=0)) == 2, "there is room again"


def test_forgotten_partitions_make_room():
    sessions = FetchSessions(max_partitions=2)
    session = begun(sessions, p0=0, p1=0)
    assert sessions.session_of(request(session.session_id, 1, forget=(0,), p2=0)) is session
    assert len(session) == 2


def test_long_names_of_topics_count():
    sessions = FetchSessions(max_partitions=5)
    one = request(p0=0)
    long = msgspec.structs.replace(one, topics=(msgspec.structs.replace(one.topics[0], name="t" * 2_000),))
    assert sessions.session_of(long) is None
