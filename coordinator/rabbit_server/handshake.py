"""The phases from connecting to Open, and the end: the client's identity, and the limits of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import CommandVersion, Frame
from fencepost.coordinator.rabbit_codec.codes import Key, ResponseCode
from fencepost.coordinator.rabbit_server.cluster import LOOPBACK_USERS
from fencepost.coordinator.rabbit_server.session import Handler, HandshakeStep, RabbitSession, response_to
from fencepost.coordinator.server.listener_config import is_loopback

PLAIN: Final = "PLAIN"
RABBITMQ_VERSION: Final = "4.3.2"
"""The RabbitMQ whose protocol is spoken: clients go by it."""

COMMANDS: Final = tuple(
    CommandVersion(key, 1, 2 if key is Key.PUBLISH else 1)
    for key in (
        Key.DECLARE_PUBLISHER,
        Key.PUBLISH,
        Key.QUERY_PUBLISHER_SEQUENCE,
        Key.DELETE_PUBLISHER,
        Key.SUBSCRIBE,
        Key.CREDIT,
        Key.STORE_OFFSET,
        Key.QUERY_OFFSET,
        Key.UNSUBSCRIBE,
        Key.CREATE,
        Key.DELETE,
        Key.METADATA,
        Key.CLOSE,
        Key.HEARTBEAT,
        Key.ROUTE,
        Key.PARTITIONS,
        Key.STREAM_STATS,
        Key.CREATE_SUPER_STREAM,
        Key.DELETE_SUPER_STREAM,
        Key.RESOLVE_OFFSET_SPEC,
    )
)
"""The commands that a client may send, in RabbitMQ's order. Some clients go by the place in the list."""


def _peer_properties(session: RabbitSession, frame: frames.PeerProperties) -> Frame:
    _expect(session, HandshakeStep.CONNECTED)
    session.properties = frame.properties
    session.step = HandshakeStep.INTRODUCED
    mine = {"product": "fencepost", "version": RABBITMQ_VERSION, "platform": "Python"}
    return frames.PeerPropertiesResponse(frame.correlation_id, properties=mine)


def _sasl_handshake(session: RabbitSession, frame: frames.SaslHandshake) -> Frame:
    _expect(session, HandshakeStep.INTRODUCED)
    session.step = HandshakeStep.AUTHENTICATING
    return frames.SaslHandshakeResponse(frame.correlation_id, mechanisms=(PLAIN,))


def _sasl_authenticate(session: RabbitSession, frame: frames.SaslAuthenticate) -> Frame | None:
    again = session.step is HandshakeStep.OPEN
    if not again:
        _expect(session, HandshakeStep.AUTHENTICATING)
    code, user = _authenticated(session, frame)
    if again and code is ResponseCode.SASL_MECHANISM_NOT_SUPPORTED:
        code = ResponseCode.SASL_CANNOT_CHANGE_MECHANISM
    elif again and code is ResponseCode.OK and user != session.user:
        code = ResponseCode.SASL_CANNOT_CHANGE_USERNAME
    answer = frames.SaslAuthenticateResponse(frame.correlation_id, code)
    if again and code is ResponseCode.OK:
        return answer
    session.send(answer)
    if code is ResponseCode.OK:
        session.user = user
        session.step = HandshakeStep.TUNING
        limits = session.cluster.limits
        return frames.Tune(limits.frame_max, limits.heartbeat_s)
    session.end(f"authentication failed: {code.name}", was_told=True)
    return None


def _authenticated(session: RabbitSession, frame: frames.SaslAuthenticate) -> tuple[ResponseCode, str]:
    if frame.mechanism != PLAIN:
        return ResponseCode.SASL_MECHANISM_NOT_SUPPORTED, ""
    try:
        identity, user, password = frame.data.decode().split("\0")
    except ValueError:
        return ResponseCode.SASL_ERROR, ""
    if identity:
        return ResponseCode.SASL_ERROR, ""
    if not session.cluster.is_user(user, password):
        return ResponseCode.AUTHENTICATION_FAILURE, user
    if user in LOOPBACK_USERS and not is_loopback(session.socket.peer_host):
        return ResponseCode.AUTHENTICATION_FAILURE_LOOPBACK, user
    return ResponseCode.OK, user


def _tune(session: RabbitSession, frame: frames.Tune) -> None:
    _expect(session, HandshakeStep.TUNING)
    ours = session.cluster.limits.frame_max
    session.frame_max = min(frame.frame_max, ours) if frame.frame_max and ours else frame.frame_max or ours
    session.heartbeat_s = frame.heartbeat
    session.step = HandshakeStep.TUNED


def _open(session: RabbitSession, frame: frames.Open) -> Frame | None:
    _expect(session, HandshakeStep.TUNED)
    if frame.virtual_host not in session.cluster.virtual_hosts:
        code = ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE
        session.send(frames.OpenResponse(frame.correlation_id, code))
        session.end(f"there is no virtual host {frame.virtual_host!r}", was_told=True)
        return None
    session.virtual_host = frame.virtual_host
    session.step = HandshakeStep.OPEN
    here = session.socket
    properties = {"advertised_host": here.local_host, "advertised_port": str(here.local_port)}
    return frames.OpenResponse(frame.correlation_id, properties=properties)


def _close(session: RabbitSession, frame: frames.Close) -> None:
    session.send(frames.CloseResponse(frame.correlation_id))
    session.end()


def _heartbeat(session: RabbitSession, frame: frames.Heartbeat) -> None:
    """Do nothing: it is enough that a frame was received."""


def _exchange_command_versions(session: RabbitSession, frame: frames.ExchangeCommandVersions) -> Frame | None:
    for each in frame.versions:
        if each.key == Key.DELIVER:
            session.deliver_version = max(1, min(each.max_version, 2))
    return response_to(frame, versions=COMMANDS)


def _expect(session: RabbitSession, step: HandshakeStep) -> None:
    if session.step is not step:
        raise MalformedFrame(f"the connection is at {session.step.name}, expected {step.name}")


HANDLERS: Final[Mapping[type, Handler]] = {
    frames.PeerProperties: _peer_properties,
    frames.SaslHandshake: _sasl_handshake,
    frames.SaslAuthenticate: _sasl_authenticate,
    frames.Tune: _tune,
    frames.TuneResponse: _tune,
    frames.Open: _open,
    frames.Close: _close,
    frames.Heartbeat: _heartbeat,
    frames.ExchangeCommandVersions: _exchange_command_versions,
}
