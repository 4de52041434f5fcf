"""Single active consumers, frame by frame: who is told what, and what follows from answers."""

from __future__ import annotations

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from tests.unit.coordinator.rabbit.rabbit_frames import at

OK = ResponseCode.OK
STEP_DOWN, ACTIVATE = 0, 1


def states(rig, stream: str = "s", name: str = "app") -> dict[int, str]:
    """The status of each consumer of a group, by the number of its connection."""
    groups = rig.cluster.groups.coordinator.state.groups
    for key, group in groups.items():
        if (key.stream, key.consumer_name) == (stream, name):
            return {int(one.connection.partition("@")[0]): str(one.status) for one in group.consumers}
    return {}


@pytest.fixture
def filled(rig):
    """A stream of three chunks."""
    rig.streams("s")
    client = rig.client()
    for number in range(3):
        client.publish("s", b"%d" % number)
    return rig


def test_the_first_is_told_after_its_subscription_is_answered(filled):
    client = filled.client()
    client.send(frames.Subscribe(1, 0, "s", at(0), 10, {"single-active-consumer": "true", "name": "app"}))
    assert [type(frame) for frame in client.got] == [frames.SubscribeResponse, frames.ConsumerUpdate]


def test_nothing_is_sent_before_the_answer_which_says_from_where(filled):
    client = filled.client()
    assert client.join("s") is OK
    assert client.updates() == [ACTIVATE]
    assert client.chunks() == []
    client.answer(at(1))
    assert client.messages() == [b"1", b"2"]


def test_an_answer_without_an_offset_means_that_of_the_subscription(filled):
    client = filled.client()
    client.subscribe("s", offset=at(2), single_active_consumer="true", name="app")
    client.updates()
    client.answer()
    assert client.messages() == [b"2"]


def test_the_second_waits_until_the_first_is_gone(filled):
    one, two = filled.client(), filled.client()
    one.join("s")
    two.join("s")
    assert (one.updates(), two.updates()) == ([ACTIVATE], [])
    one.answer()
    assert one.code(frames.Unsubscribe, 0) is OK
    assert two.updates() == [ACTIVATE]
    two.answer(at(2))
    assert two.messages() == [b"2"]
    two.lose()
    assert states(filled) == {}


def test_a_broken_connection_makes_room(filled):
    one, two = filled.client(), filled.client()
    one.join("s")
    two.join("s")
    one.lose()
    assert two.updates() == [ACTIVATE]


def test_a_closing_connection_makes_room_at_once(filled):
    one, two = filled.client(), filled.client()
    one.join("s")
    two.join("s")
    one.code(frames.Close, 1, "OK")
    assert two.updates() == [ACTIVATE]
    one.send(frames.Heartbeat())
    assert one.updates() == [ACTIVATE]


def test_in_a_super_stream_the_wrong_one_steps_down_before_the_right_one_is_told(rig):
    rig.super_stream("x", 2)
    one, two = rig.client(), rig.client()
    one.join("x-1", super_stream="x")
    assert one.updates() == [ACTIVATE]
    one.answer()
    two.join("x-1", super_stream="x")
    assert (one.updates(), two.updates()) == ([STEP_DOWN], [])
    assert "CONNECTED_DEACTIVATING" in states(rig, "x-1").values()
    two.publish("x-1", b"late")
    assert one.chunks() == []
    one.answer()
    assert two.updates() == [ACTIVATE]
    two.answer()
    assert two.messages() == [b"late"]


def test_who_steps_down_and_dies_makes_room(rig):
    rig.super_stream("x", 2)
    one, two = rig.client(), rig.client()
    one.join("x-1", super_stream="x")
    two.join("x-1", super_stream="x")
    one.lose()
    assert two.updates() == [ACTIVATE]


def test_who_steps_down_and_unsubscribes_makes_room(rig):
    rig.super_stream("x", 2)
    one, two = rig.client(), rig.client()
    one.join("x-1", super_stream="x")
    two.join("x-1", super_stream="x")
    assert one.updates() == [ACTIVATE, STEP_DOWN]
    assert one.code(frames.Unsubscribe, 0) is OK
    assert two.updates() == [ACTIVATE]
    one.answer(place=1)
    assert (one.updates(), two.updates()) == ([], [])


def test_a_late_answer_to_a_step_down_opens_no_log(rig):
    """The consumer was activated again meanwhile: what it says to that is what counts."""
    rig.super_stream("x", 2)
    one, two = rig.client(), rig.client()
    one.join("x-1", super_stream="x")
    one.updates()
    one.answer()
    one.publish("x-1", b"a")
    one.chunks()
    two.join("x-1", super_stream="x")
    two.lose()
    assert one.updates() == [STEP_DOWN]
    consumer = one.session.consumers[0]
    rig.cluster.groups.activate(one.session, consumer.stream.name, consumer.name)
    rig.settle()
    assert one.updates() == [ACTIVATE]
    one.answer()
    assert one.chunks() == []
    one.answer(at(0))
    assert one.messages() == [b"a"]


def test_credit_while_nothing_may_be_sent_is_kept_and_complained_about(filled):
    client = filled.client()
    client.subscribe("s", credit=0, single_active_consumer="true", name="app")
    client.updates()
    client.send(frames.Credit(0, 2))
    assert client.take(frames.CreditResponse).code == ResponseCode.PRECONDITION_FAILED
    client.answer()
    assert len(client.chunks()) == 2


def test_an_answer_that_nobody_asked_for_means_nothing(filled):
    client = filled.client()
    client.subscribe("s", 0)
    client.join("s", 1)
    client.chunks()
    client.send(frames.ConsumerUpdateResponse(77, 1, at(0)))
    assert client.chunks() == []


def test_a_name_is_needed_and_only_true_is_true(filled):
    client = filled.client()
    no_name = client.subscribe("s", single_active_consumer="true")
    assert no_name is ResponseCode.PRECONDITION_FAILED
    assert client.subscribe("s", single_active_consumer="True", name="app") is OK
    assert client.updates() == []
    assert len(client.chunks()) == 3
    assert states(filled) == {}


def test_an_activation_is_to_be_answered_though_its_consumer_has_gone(filled):
    """RabbitMQ forgets step-downs only (maybe_unregister_consumer), and hangs up after request_timeout."""
    silent, polite = filled.client(), filled.client()
    for client in (silent, polite):
        client.join("s")
        assert client.updates() == [ACTIVATE]
        assert client.code(frames.Unsubscribe, 0) is OK
    polite.answer()
    filled.now_ms += 60_000
    assert silent.session.patience_ms(filled.now_ms) == 0
    assert polite.session.patience_ms(filled.now_ms) == 60_000


def test_an_empty_name_is_a_name(filled):
    """As in rabbit_stream_reader, which asks only whether there is one."""
    assert filled.client().join("s", name="") is OK
    assert list(states(filled, name="").values()) == ["CONNECTED_ACTIVE"]


def test_another_partition_index_is_refused(rig):
    rig.super_stream("x", 2)
    one, two = rig.client(), rig.client()
    assert one.join("x-1", super_stream="x") is OK
    assert two.join("x-1") is ResponseCode.PRECONDITION_FAILED
    assert two.session.consumers == {}
    two.lose()
    assert len(states(rig, "x-1")) == 1


def test_a_deleted_stream_ends_its_groups(filled):
    one, two = filled.client(), filled.client()
    one.join("s")
    two.join("s")
    assert two.code(frames.Delete, "s") is OK
    assert states(filled) == {}
    assert one.updates() + two.updates() in ([ACTIVATE], [ACTIVATE, ACTIVATE])
    one.take(frames.MetadataUpdate)


def test_a_number_that_is_used_again_has_no_old_answers(filled):
    one = filled.client()
    one.join("s")
    one.updates()
    one.code(frames.Unsubscribe, 0)
    one.join("s")
    assert one.updates() == [ACTIVATE]
    one.answer(at(0), place=0)
    assert one.chunks() == []
    one.answer(at(0))
    assert len(one.chunks()) == 3
