"""Requests of publishers: declare a publisher, publish, and query the last publishing id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import Frame
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_codec.entries import entries_of, is_acceptable
from fencepost.coordinator.rabbit_server.session import Handler, RabbitSession, response_to
from fencepost.coordinator.rabbit_server.stream import RabbitRequestRefused, Stream

MAX_REFERENCE_BYTES: Final = 255


class Publisher(NamedTuple):
    """A publisher of a connection; without a reference, its duplicates are not detected."""

    stream: Stream
    reference: str


def checked_reference(reference: str) -> str:
    """Return the name of a publisher or a consumer.

    :raises Refused: if it is too long.
    """
    if len(reference.encode()) > MAX_REFERENCE_BYTES:
        raise RabbitRequestRefused(f"a reference of more than {MAX_REFERENCE_BYTES} bytes")
    return reference


def _declare_publisher(session: RabbitSession, frame: frames.DeclarePublisher) -> Frame | None:
    reference = checked_reference(frame.reference)
    if frame.publisher_id in session.publishers:
        raise RabbitRequestRefused(f"publisher {frame.publisher_id} exists")
    taken = {(each.stream.name, each.reference) for each in session.publishers.values() if each.reference}
    if (frame.stream, reference) in taken:
        raise RabbitRequestRefused(f"the reference {reference!r} is taken")
    stream = session.catalogue.stream(frame.stream)
    session.publishers[frame.publisher_id] = Publisher(stream, reference)
    return response_to(frame)


def _publish(session: RabbitSession, frame: frames.Publish) -> Frame | None:
    entries = entries_of(frame)
    publisher = session.publishers.get(frame.publisher_id)
    if publisher is None:
        code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
        return frames.PublishError(frame.publisher_id, {each.publishing_id: code for each in entries})
    good = next((at for at, entry in enumerate(entries) if not is_acceptable(entry)), len(entries))
    if good < len(entries):
        # Batches after a refused one are refused too, so that publishing ids have no gap.
        code = ResponseCode.PRECONDITION_FAILED
        refused = {each.publishing_id: code for each in entries[good:]}
        session.send(frames.PublishError(frame.publisher_id, refused))
    if not good:
        return None
    publisher.stream.append(entries[:good], publisher.reference, session.cluster.now_ms())
    return frames.PublishConfirm(frame.publisher_id, [each.publishing_id for each in entries[:good]])


def _query_publisher_sequence(session: RabbitSession, frame: frames.QueryPublisherSequence) -> Frame | None:
    sequences = session.catalogue.stream(frame.stream).sequences
    return response_to(frame, sequence=max(sequences.get(frame.reference, 0), 0))


def _delete_publisher(session: RabbitSession, frame: frames.DeletePublisher) -> Frame | None:
    publisher = session.publishers.pop(frame.publisher_id, None)
    if publisher is None:
        code = ResponseCode.PUBLISHER_DOES_NOT_EXIST
        raise RabbitRequestRefused(f"there is no publisher {frame.publisher_id}", code)
    session.leaders_asked.discard(publisher.stream.name)
    return response_to(frame)


HANDLERS: Final[Mapping[type, Handler]] = {
    frames.DeclarePublisher: _declare_publisher,
    frames.Publish: _publish,
    frames.FilteredPublish: _publish,
    frames.QueryPublisherSequence: _query_publisher_sequence,
    frames.DeletePublisher: _delete_publisher,
}
