"""Rows of a trace as JSON documents, one a row: how a trace lies in a Kafka topic.

A document names the columns of `schema.COLUMNS`, and in `v` the version of this form. Columns that hold their
blank value (an empty text or list, -1 for epochs) are left out. Readers skip keys that they do not know, so a
column can be added without a new version; whatever changes what a key means raises it.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.trace.schema import Row

VERSION: Final = 1

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Held(NamedTuple):
    """A partition, as an array of its topic's name and its number."""

    topic: str
    partition: Int32


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One row, with the run that it belongs to."""

    v: int
    run_id: str
    seq: Int64
    t_us: Int64
    world: str
    kind: str
    group: str = ""
    actor: str = ""
    state_from: str = ""
    state_to: str = ""
    member_epoch: Int32 = -1
    group_epoch: Int32 = -1
    partitions: tuple[Held, ...] = ()
    error: str = ""
    detail: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    v: int


class TracedRow(NamedTuple):
    """A row, and the run that it belongs to."""

    run_id: str
    row: Row


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Document)
_version_decoder = msgspec.json.Decoder(_Versioned)


def encode(run_id: str, row: Row) -> bytes:
    """The document of a row."""
    return _encoder.encode(Document(v=VERSION, run_id=run_id, **row._asdict()))


def decode(document: bytes | None) -> TracedRow | str:
    """The row of a document; or, as a few words, why this is none."""
    try:
        found = _decoder.decode(document or b"")
        version = found.v
    except msgspec.DecodeError:
        try:
            version = _version_decoder.decode(document or b"").v
        except msgspec.DecodeError:
            return NO_DOCUMENT
        if version == VERSION:
            return NO_DOCUMENT
    if version != VERSION:
        return f"schema version {version}, known is {VERSION}"
    held = tuple(TopicPartition(*each) for each in found.partitions)
    row = Row(
        seq=found.seq,
        t_us=found.t_us,
        world=found.world,
        group=found.group,
        actor=found.actor,
        kind=found.kind,
        state_from=found.state_from,
        state_to=found.state_to,
        member_epoch=found.member_epoch,
        group_epoch=found.group_epoch,
        partitions=held,
        error=found.error,
        detail=found.detail,
    )
    return TracedRow(found.run_id, row)


NO_DOCUMENT: Final = "no document of a trace"
