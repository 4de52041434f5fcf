"""Finds and replaces brokers' addresses in responses, for a program between clients and brokers.

Only the host and the port of each endpoint are changed, and the lengths around them; every other byte is
unchanged, including unknown tagged fields. Responses to clients with endpoints are Metadata, FindCoordinator,
DescribeCluster, and, with a new leader (KIP-951), Produce, Fetch, ShareFetch and ShareAcknowledge.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from fencepost.coordinator.codec.fields import WireField, wire_fields
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.reader import (
    Reader,
    field_reader,
    read_unsigned_varint,
    skip_tagged_fields,
)
from fencepost.coordinator.codec.registry import ApiKey, api_name
from fencepost.coordinator.codec.schema import newest_version, response_schema
from fencepost.coordinator.codec.writer import compact_string, unsigned_varint
from fencepost.coordinator.protocol.errors import ErrorCode

AddressOf: TypeAlias = Callable[[int], tuple[str, int]]
"""The host and the port to tell for a node."""

SHARE_FETCH, SHARE_ACKNOWLEDGE = 78, 79

CARRIERS: dict[int, int] = {
    ApiKey.PRODUCE: 10,
    ApiKey.FETCH: 16,
    ApiKey.METADATA: 0,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    SHARE_FETCH: 0,
    SHARE_ACKNOWLEDGE: 0,
}
"""The APIs whose responses carry endpoints, and the first version that does."""

_NODE_IDS = frozenset({"node_id", "broker_id"})
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class _Change(NamedTuple):
    start: int
    end: int
    data: bytes


_Walker: TypeAlias = Callable[[bytes, int, AddressOf, list[_Change]], int]
"""From a buffer and an offset to the offset behind the value; changes are noted in their order."""


def carries_endpoints(api_key: int, version: int) -> bool:
    """Return true if responses of this version carry endpoints."""
    first = CARRIERS.get(api_key)
    return first is not None and version >= first


def is_readable(api_key: int, version: int) -> bool:
    """Return true if the endpoints in responses of this version can be found."""
    return version <= newest_version(api_key) and response_schema(api_key, version) is not None


def replace_endpoints(api_key: int, version: int, frame: bytes, address_of: AddressOf) -> bytes:
    """Return the response frame, without its length, with each node at the address from `address_of`.

    Endpoints without a node (id -1, as with an error) are unchanged.
    :raises MalformedFrame: if the frame is not of this API and version.
    """
    changes: list[_Change] = []
    try:
        schema, walk = _walker(api_key, version)
        at = _INT32.size
        if schema.__flexible__:
            at = skip_tagged_fields(frame, at)
        walk(frame, at, address_of, changes)
        return _spliced(frame, 0, len(frame), changes) if changes else frame
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise MalformedFrame(
            f"response to {api_name(api_key)} version {version} can't be read: {error}"
        ) from error


def limit_versions(version: int, frame: bytes) -> bytes:
    """Return the ApiVersions response frame without versions whose endpoints could not be found.

    :raises MalformedFrame: if the frame is not such a response.
    """
    try:
        (error,) = _INT16.unpack_from(frame, _INT32.size)
        # An ApiVersions version that the broker does not speak gets a response in version 0 (KIP-511).
        flexible = version >= 3 and error != ErrorCode.UNSUPPORTED_VERSION
        at = _INT32.size + _INT16.size
        if flexible:
            count, at = read_unsigned_varint(frame, at)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(frame, at)
            at += _INT32.size
        limited = bytearray(frame)
        for _ in range(count):
            api_key, _, newest = struct.unpack_from(">hhh", frame, at)
            if api_key in CARRIERS:
                struct.pack_into(">h", limited, at + 4, min(newest, newest_version(api_key)))
            at += 6
            if flexible:
                at = skip_tagged_fields(frame, at)
        return bytes(limited)
    except (struct.error, IndexError) as error:
        raise MalformedFrame(f"response to ApiVersions version {version} can't be read: {error}") from error


def _spliced(frame: bytes, start: int, end: int, changes: list[_Change]) -> bytes:
    pieces = []
    for change in changes:
        pieces += [frame[start : change.start], change.data]
        start = change.end
    pieces.append(frame[start:end])
    return b"".join(pieces)


@functools.cache
def _walker(api_key: int, version: int) -> tuple[Any, _Walker]:
    schema = response_schema(api_key, version)
    if schema is None:
        raise MalformedFrame(f"{api_name(api_key)} version {version} is not known here")
    return schema, _entity_walker(schema, top=True)


def _skipping(reader: Reader) -> _Walker:
    return lambda data, at, address_of, changes: reader(data, at)[1]


def _entity_walker(entity: Any, *, top: bool = False) -> _Walker:
    """Return a walker over one struct. At the top it ends behind the last field with endpoints."""
    flexible: bool = entity.__flexible__
    plain: list[tuple[str, _Walker, bool]] = []
    tagged: dict[int, _Walker] = {}
    fields = wire_fields(entity)
    for field in fields:
        is_wanted = field.is_array and field.struct is not None and _is_endpoint(wire_fields(field.struct))
        if is_wanted:
            walker = _array_walker(_entity_walker(field.struct), flexible)
        else:
            walker = _skipping(field_reader(field, flexible=flexible))
        if field.tag is None:
            plain.append((field.name, walker, is_wanted))
        elif is_wanted:
            tagged[field.tag] = walker
    if _is_endpoint(fields):
        return _endpoint_walker([(name, walker) for name, walker, _ in plain], flexible)
    if top and not tagged:
        last = max((number for number, (_, _, wanted) in enumerate(plain) if wanted), default=-1)
        plain = plain[: last + 1]
    walkers = [walker for _, walker, _ in plain]
    is_partial = top and not tagged

    def walk(data: bytes, at: int, address_of: AddressOf, changes: list[_Change]) -> int:
        for walker in walkers:
            at = walker(data, at, address_of, changes)
        if flexible and not is_partial:
            at = _walk_tagged(data, at, tagged, address_of, changes)
        return at

    return walk


def _is_endpoint(fields: Iterable[WireField]) -> bool:
    names = {field.name for field in fields}
    return {"host", "port"} <= names and not names.isdisjoint(_NODE_IDS)


def _array_walker(element: _Walker, flexible: bool) -> _Walker:
    def walk(data: bytes, at: int, address_of: AddressOf, changes: list[_Change]) -> int:
        if flexible:
            count, at = read_unsigned_varint(data, at)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(data, at)
            at += _INT32.size
        for _ in range(count):
            at = element(data, at, address_of, changes)
        return at

    return walk


def _endpoint_walker(fields: list[tuple[str, _Walker]], flexible: bool) -> _Walker:
    def walk(data: bytes, at: int, address_of: AddressOf, changes: list[_Change]) -> int:
        places: dict[str, tuple[int, int]] = {}
        node_id = -1
        for name, walker in fields:
            behind = walker(data, at, address_of, changes)
            places[name] = (at, behind)
            if name in _NODE_IDS:
                (node_id,) = _INT32.unpack_from(data, at)
            at = behind
        if node_id >= 0:
            host, port = address_of(node_id)
            raw = host.encode()
            text = compact_string(host) if flexible else _INT16.pack(len(raw)) + raw
            changes.append(_Change(*places["host"], text))
            changes.append(_Change(*places["port"], _INT32.pack(port)))
        return skip_tagged_fields(data, at) if flexible else at

    return walk


def _walk_tagged(
    data: bytes, at: int, tagged: dict[int, _Walker], address_of: AddressOf, changes: list[_Change]
) -> int:
    """Walk the tagged fields; a field that changes gets its new length."""
    count, at = read_unsigned_varint(data, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(data, at)
        at_size = at
        size, at = read_unsigned_varint(data, at)
        end = at + size
        if end > len(data):
            raise MalformedFrame(f"tagged field of {size} bytes extends beyond the frame")
        if tag in tagged:
            inner: list[_Change] = []
            if tagged[tag](data, at, address_of, inner) != end:
                raise MalformedFrame(f"tagged field {tag} has another length than the {size} bytes announced")
            if inner:
                content = _spliced(data, at, end, inner)
                changes.append(_Change(at_size, end, unsigned_varint(len(content)) + content))
        at = end
    return at
