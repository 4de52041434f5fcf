"""Fetch sessions: what clients hear of, and what they have to say (KIP-227)."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.logs import FetchedPartition, FetchPartition, FetchRequest, OfTopic
from fencepost.coordinator.server import fetch_sessions


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


def asked(
    sessions: fetch_sessions.FetchSessions, request: FetchRequest
) -> fetch_sessions.FetchSession | None:
    """The session of a request by names."""
    return sessions.begun(sessions.session_of(request, fetch_sessions.wanted_by(request, {}.get)))


def begun(sessions: fetch_sessions.FetchSessions, **offsets: int) -> fetch_sessions.FetchSession:
    session = asked(sessions, request(**offsets))
    assert session is not None
    return session


def numbers(session: fetch_sessions.FetchSession | None) -> list[tuple[int, int]]:
    assert session is not None
    return [(one.partition.partition, one.partition.fetch_offset) for one in session.wanted]


def read(session: fetch_sessions.FetchSession, **found: dict[str, object]) -> list[fetch_sessions.Fetched]:
    """An answer for each partition; high watermark 0 and nothing else, unless said otherwise."""
    return [
        fetch_sessions.Fetched(
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


def news(session: fetch_sessions.FetchSession, **found: dict[str, object]) -> list[int]:
    return [one.found.partition for one in session.news(read(session, **found))]


def refused(code: ErrorCode):
    return pytest.raises(ProtocolError, check=lambda error: error.code is code)


def test_a_session_remembers_and_forgets_partitions():
    sessions = fetch_sessions.FetchSessions()
    session = begun(sessions, p0=0, p1=0)
    assert session.session_id > 0
    assert numbers(asked(sessions, request(session.session_id, 1, p1=7))) == [(0, 0), (1, 7)]
    assert numbers(asked(sessions, request(session.session_id, 2, forget=(0,), p2=1))) == [(1, 7), (2, 1)]
    assert asked(sessions, request(session.session_id, 3, forget=(1, 2))) is None
    assert len(sessions) == 0


def test_only_news_are_told_and_partitions_with_records_go_last():
    session = begun(fetch_sessions.FetchSessions(), p0=0, p1=0, p2=0)
    assert news(session) == [0, 1, 2]
    assert news(session) == []
    assert news(session, p0={"batches": (b"x",), "high_watermark": 1}) == [0]
    assert [number for number, _ in numbers(session)] == [1, 2, 0]
    assert news(session, p0={"high_watermark": 1}) == []
    assert news(session, p0={"high_watermark": 1}, p2={"log_start_offset": 1}) == [2]
    wrong = {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "high_watermark": 0}
    assert news(session, p0={"high_watermark": 1}, p1=wrong, p2={"log_start_offset": 1}) == [1]


def test_requests_outside_of_a_session():
    sessions = fetch_sessions.FetchSessions()
    assert asked(sessions, request(epoch=-1, p0=0)) is None
    assert asked(sessions, request(epoch=0)) is None
    session = begun(sessions, p0=0)
    assert asked(sessions, request(session.session_id, -1, p0=0)) is None
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        asked(sessions, request(session.session_id, 1))


def test_requests_out_of_order_are_refused_and_the_session_goes_on():
    sessions = fetch_sessions.FetchSessions()
    session = begun(sessions, p0=0)
    for epoch in (2, 5):
        with refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            asked(sessions, request(session.session_id, epoch))
    assert asked(sessions, request(session.session_id, 1)) is session
    session.epoch = 2**31 - 1
    assert asked(sessions, request(session.session_id, 2**31 - 1)) is session
    assert session.epoch == 1


def test_names_and_ids_of_topics_do_not_mix():
    sessions = fetch_sessions.FetchSessions()
    session = begun(sessions, p0=0)
    later = request(session.session_id, 1, p0=5)
    with refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR):
        asked(sessions, msgspec.structs.replace(later, by_id=True))
    assert numbers(asked(sessions, later)) == [(0, 5)]


def test_the_session_used_longest_ago_makes_room():
    sessions = fetch_sessions.FetchSessions(limit=2)
    first, second = begun(sessions, p0=0), begun(sessions, p0=0)
    asked(sessions, request(first.session_id, 1))
    begun(sessions, p0=0)
    assert asked(sessions, request(first.session_id, 2)) is first
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        asked(sessions, request(second.session_id, 1))


def test_results_of_a_topic_go_together():
    session = begun(fetch_sessions.FetchSessions(), p0=0, p1=0)
    (topic,) = fetch_sessions.by_topic(read(session))
    assert topic.name == "t"
    assert [one.partition for one in topic.partitions] == [0, 1]


def test_a_session_takes_the_place_of_another_once_it_begins():
    sessions = fetch_sessions.FetchSessions(limit=1)
    first = begun(sessions, p0=0)
    waits = sessions.session_of(named := request(p1=0), fetch_sessions.wanted_by(named, {}.get))
    assert asked(sessions, request(first.session_id, 1)) is first
    assert sessions.begun(waits) is waits
    assert waits.session_id > 0
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        asked(sessions, request(first.session_id, 2))


def test_a_session_that_alone_is_too_large_takes_no_place():
    sessions = fetch_sessions.FetchSessions(max_partitions=2)
    small = begun(sessions, p0=0)
    assert asked(sessions, request(p0=0, p1=0, p2=0)) is None
    assert asked(sessions, request(small.session_id, 1)) is small


def test_sessions_are_bounded_by_their_partitions():
    sessions = fetch_sessions.FetchSessions(max_partitions=5)
    first, second = begun(sessions, p0=0, p1=0), begun(sessions, p0=0, p1=0, p2=0)
    assert len(sessions) == 2
    third = begun(sessions, p0=0)
    with pytest.raises(ProtocolError) as caught:
        asked(sessions, request(first.session_id, 1))
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert asked(sessions, request(second.session_id, 1)) is second
    assert asked(sessions, request(third.session_id, 1)) is third


def test_a_session_that_is_too_large_is_not_kept():
    sessions = fetch_sessions.FetchSessions(max_partitions=2)
    assert asked(sessions, request(p0=0, p1=0, p2=0)) is None
    grows = begun(sessions, p0=0)
    with pytest.raises(ProtocolError, match="MAX_SESSION_PARTITIONS") as caught:
        asked(sessions, request(grows.session_id, 1, p1=0, p2=0))
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0
    assert len(begun(sessions, p0=0, p1=0)) == 2, "there is room again"


def test_forgotten_partitions_make_room():
    sessions = fetch_sessions.FetchSessions(max_partitions=2)
    session = begun(sessions, p0=0, p1=0)
    assert asked(sessions, request(session.session_id, 1, forget=(0,), p2=0)) is session
    assert len(session) == 2


def test_long_names_of_topics_count():
    sessions = fetch_sessions.FetchSessions(max_partitions=5)
    one = request(p0=0)
    long = msgspec.structs.replace(one, topics=(msgspec.structs.replace(one.topics[0], name="t" * 2_000),))
    assert asked(sessions, long) is None


def test_a_session_keeps_the_name_that_an_id_had():
    """Also if the topic is deleted, or another one has that name. An unknown id is looked for again."""
    sessions, names = fetch_sessions.FetchSessions(), {"id-t": "t"}
    partitions = (FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100),)

    def by_id(epoch: int, *ids: str, session: int = 0) -> list[tuple[str | None, str | None]]:
        topics = tuple(OfTopic(topic_id=topic_id, partitions=partitions) for topic_id in ids)
        named = msgspec.structs.replace(request(session, epoch), topics=topics, by_id=True)
        found = sessions.begun(sessions.session_of(named, fetch_sessions.wanted_by(named, names.get)))
        assert found is not None
        found.find_names(names.get)
        by_id.session = found.session_id  # type: ignore[attr-defined]
        return [(one.topic_id, one.name) for one in found.wanted]

    assert by_id(0, "id-t", "id-u") == [("id-t", "t"), ("id-u", None)]
    names.clear()
    names.update({"id-u": "u", "id-new": "t"})
    assert by_id(1, session=by_id.session) == [("id-t", "t"), ("id-u", "u")]  # type: ignore[attr-defined]
    both = [("id-t", "t"), ("id-u", "u"), ("id-new", "t")]
    assert by_id(2, "id-t", "id-new", session=by_id.session) == both  # type: ignore[attr-defined]
    assert by_id(0, "id-t") == [("id-t", None)], "a new session does not know it"


def test_a_preferred_read_replica_is_always_told():
    session = begun(fetch_sessions.FetchSessions(), p0=0, p1=0)
    assert news(session) == [0, 1]
    for _ in range(2):
        assert news(session, p1={"preferred_read_replica": 3}) == [1]
