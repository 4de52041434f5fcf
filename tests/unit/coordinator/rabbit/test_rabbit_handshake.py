"""From connecting to Open, and how connections end."""

from __future__ import annotations

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import CommandVersion
from fencepost.coordinator.rabbit_codec.codes import Key, ResponseCode


def authenticate(client, data: bytes, mechanism: str = "PLAIN") -> ResponseCode:
    client.ask(frames.PeerProperties)
    client.ask(frames.SaslHandshake)
    return client.code(frames.SaslAuthenticate, mechanism, data)


def test_a_connection_opens(rig):
    client = rig.connect().open(name="judge")
    assert client.session.client_name == "judge"
    assert client.session.user == "guest"
    assert client.hung_up is None


def test_open_tells_the_address_that_the_client_came_by(rig):
    client = rig.connect()
    authenticate(client, b"\0guest\0guest")
    client.take(frames.Tune)
    client.send(frames.Tune(0, 0))
    answer = client.ask(frames.Open, "/")
    assert answer.properties == {"advertised_host": "127.0.0.1", "advertised_port": "5552"}


@pytest.mark.parametrize(("proposed", "agreed"), [(100_000, 100_000), (0, 1_048_576), (9_999_999, 1_048_576)])
def test_the_smaller_limit_of_frames_holds_and_0_is_none(rig, proposed, agreed):
    client = rig.connect()
    authenticate(client, b"\0guest\0guest")
    assert client.take(frames.Tune) == frames.Tune(1_048_576, 60)
    client.send(frames.Tune(proposed, 7))
    assert (client.session.frame_max, client.session.heartbeat_s) == (agreed, 7)


def test_tune_may_be_answered_with_a_response(rig):
    client = rig.connect()
    authenticate(client, b"\0guest\0guest")
    client.send(frames.TuneResponse(0, 0))
    assert client.code(frames.Open, "/") is ResponseCode.OK


@pytest.mark.parametrize(
    ("data", "mechanism", "code"),
    [
        (b"\0guest\0wrong", "PLAIN", ResponseCode.AUTHENTICATION_FAILURE),
        (b"\0nobody\0", "PLAIN", ResponseCode.AUTHENTICATION_FAILURE),
        (b"guest", "PLAIN", ResponseCode.SASL_ERROR),
        (b"\0guest\0\xff", "PLAIN", ResponseCode.SASL_ERROR),
        (b"other\0guest\0guest", "PLAIN", ResponseCode.SASL_ERROR),
        (b"\0guest\0guest", "AMQPLAIN", ResponseCode.SASL_MECHANISM_NOT_SUPPORTED),
    ],
)
def test_who_can_not_authenticate_is_told_why_and_sent_away(rig, data, mechanism, code):
    client = rig.connect()
    assert authenticate(client, data, mechanism) is code
    assert code.name in client.hung_up
    assert client.got == []


def test_guest_comes_from_this_machine_only(rig):
    for host, code in (
        ("127.0.0.9", ResponseCode.OK),
        ("::1", ResponseCode.OK),
        ("::ffff:127.0.0.1", ResponseCode.OK),
        ("192.0.2.1", ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK),
        ("unknown", ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK),
    ):
        assert authenticate(rig.connect(host), b"\0guest\0guest") is code


def test_a_password_may_be_renewed_but_not_the_user(rig):
    client = rig.client()
    assert client.code(frames.SaslAuthenticate, "PLAIN", b"\0guest\0guest") is ResponseCode.OK
    assert client.code(frames.StreamStats, "none") is ResponseCode.STREAM_DOES_NOT_EXIST
    code = client.code(frames.SaslAuthenticate, "AMQPLAIN", b"")
    assert code is ResponseCode.SASL_CANNOT_CHANGE_MECHANISM
    assert client.hung_up is not None


def test_an_unknown_virtual_host_is_refused(rig):
    client = rig.connect()
    authenticate(client, b"\0guest\0guest")
    client.take(frames.Tune)
    client.send(frames.Tune(0, 0))
    assert client.code(frames.Open, "/other") is ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE
    assert "'/other'" in client.hung_up


@pytest.mark.parametrize(
    "frame",
    [
        frames.Open(1, "/"),
        frames.SaslHandshake(1),
        frames.Tune(0, 0),
        frames.SaslAuthenticate(1, "PLAIN", b"\0guest\0guest"),
        frames.Create(1, "stream"),
        frames.Close(1, 1, "OK"),
        frames.Deliver(1, b""),
    ],
)
def test_what_comes_too_early_ends_the_connection_without_a_word(rig, frame):
    client = rig.connect()
    client.send(frame)
    assert client.got == []
    assert client.hung_up is not None


def test_a_client_introduces_itself_once(rig):
    client = rig.connect()
    client.ask(frames.PeerProperties)
    client.send(frames.PeerProperties(1))
    assert client.got == []
    assert client.hung_up is not None


@pytest.mark.parametrize(
    "frame", [frames.PeerProperties(1), frames.PublishConfirm(0, ()), frames.Open(1, "/")]
)
def test_what_makes_no_sense_later_is_answered_with_close(rig, frame):
    client = rig.client()
    client.send(frame)
    close = client.take(frames.Close)
    assert close.code == ResponseCode.UNKNOWN_FRAME
    assert client.hung_up is not None
    client.send(frames.Create(1, "stream"))
    assert client.got == []


def test_close_is_answered(rig):
    client = rig.client()
    assert client.code(frames.Close, 1, "OK") is ResponseCode.OK
    assert client.hung_up == ""


def test_heartbeats_are_taken_at_any_time(rig):
    client = rig.connect()
    client.send(frames.Heartbeat())
    client.open()
    client.send(frames.Heartbeat())
    assert client.got == []


def test_versions_are_exchanged_in_rabbitmqs_order(rig):
    client = rig.client()
    answer = client.ask(frames.ExchangeCommandVersions, (CommandVersion(Key.PUBLISH, 1, 2),))
    assert answer.versions[Key.PUBLISH - 1] == (Key.PUBLISH, 1, 2)
    assert client.session.deliver_version == 1


def test_a_client_may_owe_an_answer_for_so_long(rig):
    rig.streams("s")
    client = rig.client()
    client.join("s")
    assert client.session.patience_ms(rig.now_ms) == 60_000
    rig.now_ms += 59_999
    assert client.session.patience_ms(rig.now_ms) == 1
