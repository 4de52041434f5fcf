"""Plain consumers, frame by frame: where they start, what credit is worth, stored offsets, and filters."""

from __future__ import annotations

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import ChunkEntry, CommandVersion
from fencepost.coordinator.rabbit_codec.codes import Key, ResponseCode
from fencepost.coordinator.rabbit_codec.entries import message, publish
from fencepost.coordinator.rabbit_codec.fields import FIRST, NEXT
from tests.unit.coordinator.rabbit.rabbit_frames import LAST, at, since

OK = ResponseCode.OK


@pytest.fixture
def filled(rig):
    """A stream of three chunks of two messages each, a second apart."""
    rig.streams("s")
    client = rig.client()
    for first in (0, 2, 4):
        client.publish("s", b"%d" % first, b"%d" % (first + 1))
        rig.now_ms += 1000
    return rig


@pytest.mark.parametrize(
    ("where", "firsts"),
    [
        (FIRST, [0, 2, 4]),
        (LAST, [4]),
        (NEXT, []),
        (at(0), [0, 2, 4]),
        (at(3), [2, 4]),
        (at(5), [4]),
        (at(6), []),
        (at(2**63), []),
        (since(0), [0, 2, 4]),
        (since(1_001_000), [2, 4]),
        (since(1_001_001), [4]),
        (since(2**60), []),
    ],
)
def test_a_subscription_starts_with_the_chunk_that_is_asked_for(filled, where, firsts):
    client = filled.client()
    assert client.subscribe("s", offset=where) is OK
    assert [chunk.first_offset for chunk in client.chunks()] == firsts
    client.publish("s", b"new")
    assert client.messages() == [b"new"]
    assert client.ask(frames.ResolveOffsetSpec, "s", where).offset >= 0


def test_a_specification_is_resolved_to_the_begin_of_its_chunk(filled):
    client = filled.client()
    asked = (FIRST, LAST, NEXT, at(3), at(4), at(6), at(9))
    found = [client.ask(frames.ResolveOffsetSpec, "s", each).offset for each in asked]
    assert found == [0, 4, 6, 2, 4, 6, 6]


def test_an_empty_stream_starts_anywhere(rig):
    rig.streams("s")
    for where in (FIRST, LAST, NEXT, at(5), since(0)):
        client = rig.client()
        assert client.subscribe("s", offset=where) is OK
        assert client.chunks() == []


def test_a_credit_is_a_chunk(filled):
    client = filled.client()
    client.subscribe("s", credit=1)
    assert client.messages() == [b"0", b"1"]
    client.send(frames.Credit(0, 2))
    assert client.messages() == [b"2", b"3", b"4", b"5"]
    client.publish("s", b"6")
    assert client.messages() == []
    client.send(frames.Credit(0, 1))
    assert client.messages() == [b"6"]


def test_sending_starts_with_more_than_half_of_the_first_credit_and_goes_on_to_the_last(filled):
    """RabbitMQ's send_limit: who gives back too few credits is sent nothing."""
    client = filled.client()
    client.subscribe("s", credit=2)
    assert client.messages() == [b"0", b"1", b"2", b"3"]
    client.send(frames.Credit(0, 1))
    assert client.messages() == []
    client.send(frames.Credit(0, 1))
    assert client.messages() == [b"4", b"5"]
    client.publish("s", b"6")
    assert client.messages() == []
    client.send(frames.Credit(0, 1))
    assert client.messages() == [b"6"]


def test_sending_that_a_full_socket_held_up_goes_on_with_what_credit_is_left(filled, monkeypatch):
    client = filled.client()
    write = client.write

    def fill(data: bytes) -> None:
        write(data)
        client.is_writable = not isinstance(client.got[-1], frames.Deliver)

    monkeypatch.setattr(client, "write", fill)
    client.subscribe("s", credit=2)
    assert client.messages() == [b"0", b"1"]
    client.is_writable = True
    client.session.pump()
    assert client.messages() == [b"2", b"3"]
    client.is_writable = True
    client.session.pump()
    assert client.messages() == []


def test_credit_for_nobody_is_answered(filled):
    client = filled.client()
    client.send(frames.Credit(9, 1))
    assert client.take(frames.CreditResponse) == frames.CreditResponse(
        ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST, 9
    )


def test_a_client_that_does_not_read_is_sent_no_chunks(filled):
    client = filled.client()
    client.is_writable = False
    client.subscribe("s")
    assert client.chunks() == []
    client.is_writable = True
    client.session.pump()
    assert len(client.chunks()) == 3


def test_subscriptions_have_numbers_of_their_own(filled):
    client = filled.client()
    assert client.subscribe("s", 0) is OK
    assert client.subscribe("s", 0) is ResponseCode.SUBSCRIPTION_ID_ALREADY_EXISTS
    assert client.subscribe("none", 1) is ResponseCode.STREAM_DOES_NOT_EXIST
    assert client.code(frames.Unsubscribe, 0) is OK
    assert client.code(frames.Unsubscribe, 0) is ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
    client.chunks()
    client.publish("s", b"x")
    assert client.chunks() == []


def test_a_lost_connection_is_sent_nothing(filled):
    client, other = filled.client(), filled.client()
    client.subscribe("s")
    client.chunks()
    client.lose()
    other.publish("s", b"x")
    assert client.got == []
    assert not filled.cluster.virtual_hosts["/"].stream("s").readers


def test_version_2_of_deliver_tells_the_newest_chunk(filled):
    client = filled.client()
    client.ask(frames.ExchangeCommandVersions, (CommandVersion(Key.DELIVER, 1, 2),))
    client.subscribe("s", credit=1)
    assert client.take(frames.DeliverCommitted).committed_chunk_id == 4


def test_offsets_are_stored_by_name(rig):
    rig.streams("s")
    client = rig.client()
    assert client.code(frames.QueryOffset, "app", "s") is ResponseCode.NO_OFFSET
    client.send(frames.StoreOffset("app", "s", 7))
    client.send(frames.StoreOffset("x" * 256, "s", 7))
    client.send(frames.StoreOffset("app", "none", 7))
    assert client.ask(frames.QueryOffset, "app", "s").offset == 7
    assert client.code(frames.QueryOffset, "app", "none") is ResponseCode.STREAM_DOES_NOT_EXIST
    assert rig.cluster.virtual_hosts["/"].stream("s").offsets == {"app": 7}


def test_what_is_stored_takes_an_offset_in_the_log(rig):
    rig.streams("s")
    client = rig.client()
    client.send(frames.StoreOffset("app", "s", 0))
    assert client.ask(frames.StreamStats, "s").stats == {
        "first_chunk_id": 0,
        "last_chunk_id": 0,
        "committed_chunk_id": 0,
        "committed_offset": 0,
    }
    client.publish("s", b"a", b"b")
    for _ in range(2):
        client.send(frames.StoreOffset("app", "s", 1))
    stats = client.ask(frames.StreamStats, "s").stats
    assert (stats["first_chunk_id"], stats["last_chunk_id"], stats["committed_offset"]) == (0, 4, 4)
    client.publish("s", b"c")
    client.send(frames.StoreOffset("app", "s", 5))
    firsts = {
        FIRST: [1, 5],
        LAST: [5],
        NEXT: [],
        at(0): [1, 5],
        at(2): [1, 5],
        at(3): [5],
        at(6): [],
        at(9): [],
    }
    for number, (where, expected) in enumerate(firsts.items()):
        client.subscribe("s", number, where)
        assert [chunk.first_offset for chunk in client.chunks()] == expected, where
    client.publish("s", b"d")
    assert [chunk.first_offset for chunk in client.chunks()] == [7] * len(firsts)


def test_what_is_stored_has_an_offset_to_resolve_to(rig):
    rig.streams("s")
    client = rig.client()
    for what in ("store", "publish", "store", "store"):
        if what == "store":
            client.send(frames.StoreOffset("x", "s", 3))
        else:
            client.publish("s", b"1", b"2")
    asked = (FIRST, LAST, NEXT, at(0), at(1), at(2), at(3), at(4), at(5), at(6))
    found = [client.ask(frames.ResolveOffsetSpec, "s", each).offset for each in asked]
    assert found == [0, 1, 5, 0, 1, 1, 3, 4, 5, 5]


def test_filters_take_the_chunks_that_hold_a_value(rig):
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 0, "", "s")
    for number, colour in enumerate(("red", "blue", None)):
        client.send(publish(0, [ChunkEntry(number, message(b"%d" % number), 1, colour)]))
    client.got.clear()
    for subscription_id, (properties, expected) in enumerate(
        [
            ({"filter.0": "red"}, [b"0"]),
            ({"filter.0": "red", "filter.1": "blue"}, [b"0", b"1"]),
            ({"filter.0": "red", "match-unfiltered": "true"}, [b"0", b"2"]),
            ({"match-unfiltered": "true"}, [b"0", b"1", b"2"]),
        ]
    ):
        client.subscribe("s", subscription_id, **properties)
        assert client.messages() == expected


def test_an_empty_filter_value_is_none(rig):
    """As in osiris_bloom: both are the bit that stands for messages without a value."""
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 0, "", "s")
    for number, colour in enumerate(("red", "", None)):
        client.send(publish(0, [ChunkEntry(number, message(b"%d" % number), 1, colour)]))
    client.got.clear()
    client.subscribe("s", 0, **{"filter.0": "red", "match-unfiltered": "true"})
    assert client.messages() == [b"0", b"1", b"2"]
    client.subscribe("s", 1, **{"filter.0": ""})
    assert client.messages() == [b"1", b"2"]
