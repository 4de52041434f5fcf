"""Requests about streams and super streams: create them, delete them, and locate them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import BrokerAddress, Frame, StreamPlace
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_server.session import Handler, RabbitSession, response_to

_NO_LEADER: Final = 0xFFFF


def _create(session: RabbitSession, frame: frames.Create) -> Frame | None:
    session.catalogue.create(frame.stream, frame.arguments)
    return response_to(frame)


def _delete(session: RabbitSession, frame: frames.Delete) -> None:
    stream = session.catalogue.delete(frame.stream)
    session.send(frames.DeleteResponse(frame.correlation_id))
    session.cluster.forget(session.virtual_host, stream)


def _create_super_stream(session: RabbitSession, frame: frames.CreateSuperStream) -> Frame | None:
    session.catalogue.create_super(frame.name, frame.partitions, frame.binding_keys, frame.arguments)
    return response_to(frame)


def _delete_super_stream(session: RabbitSession, frame: frames.DeleteSuperStream) -> None:
    streams = session.catalogue.delete_super(frame.name)
    session.send(frames.DeleteSuperStreamResponse(frame.correlation_id))
    for stream in streams:
        session.cluster.forget(session.virtual_host, stream)


def _metadata(session: RabbitSession, frame: frames.Metadata) -> Frame:
    """Return the nodes and the places of streams. All nodes have all streams; a stream's name decides its
    leader."""
    host, ports = session.socket.local_host, session.cluster.ports
    known = [
        BrokerAddress(number, host, port)
        for number, (node, port) in enumerate(ports.items())
        if not session.cluster.groups.is_cut(node)
    ]
    there = [each.reference for each in known]
    places = []
    for name in dict.fromkeys(frame.streams):
        if name not in session.catalogue.streams:
            places.append(StreamPlace(name, ResponseCode.STREAM_DOES_NOT_EXIST, _NO_LEADER))
            continue
        leader = zlib.crc32(name.encode()) % len(ports)
        replicas = tuple(each for each in there if each != leader)
        places.append(StreamPlace(name, ResponseCode.OK, leader if leader in there else _NO_LEADER, replicas))
    is_any_there = any(place.code is ResponseCode.OK for place in places)
    return frames.MetadataResponse(frame.correlation_id, known if is_any_there else (), places)


HANDLERS: Final[Mapping[type, Handler]] = {
    frames.Create: _create,
    frames.Delete: _delete,
    frames.CreateSuperStream: _create_super_stream,
    frames.DeleteSuperStream: _delete_super_stream,
    frames.Metadata: _metadata,
    frames.Route: lambda session, frame: response_to(
        frame, streams=session.catalogue.route(frame.routing_key, frame.super_stream)
    ),
    frames.Partitions: lambda session, frame: response_to(
        frame, streams=session.catalogue.partitions(frame.super_stream)
    ),
    frames.StreamStats: lambda session, frame: response_to(
        frame, stats=session.catalogue.stream(frame.stream).stats
    ),
}
