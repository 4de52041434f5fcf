"""Compressed records: opened up to a bound, whatever they say of themselves."""

from __future__ import annotations

import gzip
import resource

import cramjam
import pytest
from aiokafka import codec

from fencepost.coordinator.codec import compression
from fencepost.coordinator.codec.compression import MAX_UNCOMPRESSED_BYTES, decompressed
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.slices import LARGE, MEDIUM

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
ENCODERS = {
    GZIP: [gzip.compress],
    SNAPPY: [codec.snappy_encode, lambda data: bytes(cramjam.snappy.compress_raw(data))],
    LZ4: [codec.lz4_encode],
    ZSTD: [codec.zstd_encode],
}
ALL = [(kind, encode) for kind, encoders in ENCODERS.items() for encode in encoders]
IDS = ["gzip", "snappy", "snappy-raw", "lz4", "zstd"]


@pytest.mark.parametrize(("kind", "encode"), ALL, ids=IDS)
@pytest.mark.parametrize("size", [0, 1, 1_000, 65_535, 65_536, 65_537, 3_000_000])
def test_what_was_compressed_comes_back(kind, encode, size):
    data = (b"some text, and more of it; " * (size // 27 + 1))[:size]
    assert decompressed(kind, encode(data)) == data


@pytest.mark.parametrize(("kind", "encode"), ALL, ids=IDS)
def test_the_bound_is_exact(kind, encode, monkeypatch):
    monkeypatch.setattr(compression, "MAX_UNCOMPRESSED_BYTES", 200_000)
    assert len(decompressed(kind, encode(bytes(200_000)))) == 200_000
    with pytest.raises(ProtocolError, match="exceed 200000 bytes when they are decompressed") as refused:
        decompressed(kind, encode(bytes(200_001)))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(("kind", "encode"), ALL, ids=IDS)
def test_what_was_cut_or_is_nothing_of_the_kind_is_refused(kind, encode):
    whole = encode(b"some text, and more of it; " * 50)
    for data in (whole[: len(whole) // 2], b"nothing of the kind", b"\xff" * 64):
        with pytest.raises(ProtocolError) as refused:
            decompressed(kind, data)
        assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def lz4(data: bytes, *, linked: bool = False, checksum: bool = False) -> bytes:
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=checksum, block_linked=linked)
    compressor.compress(data)
    return bytes(compressor.finish())


RECORDS = b"some text, and more of it; " * 5_000
SKIPPABLE = b"\x50\x2a\x4d\x18\4\0\0\0abcd"


@pytest.mark.parametrize("checksum", [False, True])
def test_lz4_blocks_that_are_independent_are_read(checksum):
    assert decompressed(LZ4, lz4(RECORDS, checksum=checksum)) == RECORDS


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        (LZ4, lz4(RECORDS, linked=True), ErrorCode.UNKNOWN_SERVER_ERROR),
        (LZ4, SKIPPABLE + lz4(RECORDS), ErrorCode.UNKNOWN_SERVER_ERROR),
        (LZ4, lz4(RECORDS)[:-4], ErrorCode.UNKNOWN_SERVER_ERROR),
        (LZ4, lz4(RECORDS)[:6], ErrorCode.UNKNOWN_SERVER_ERROR),
        (LZ4, lz4(b"") + lz4(RECORDS), ErrorCode.INVALID_RECORD),
        (LZ4, lz4(RECORDS) + lz4(RECORDS), ErrorCode.INVALID_RECORD),
        # Kafka 4.3.1 takes the following, and librdkafka does not get past them.
        (LZ4, lz4(RECORDS) + lz4(b""), ErrorCode.INVALID_RECORD),
        (LZ4, lz4(RECORDS) + SKIPPABLE, ErrorCode.INVALID_RECORD),
        (LZ4, lz4(RECORDS, checksum=True) + b"x", ErrorCode.INVALID_RECORD),
        (GZIP, gzip.compress(RECORDS) + gzip.compress(RECORDS), ErrorCode.INVALID_RECORD),
        (GZIP, gzip.compress(b"") + gzip.compress(RECORDS), ErrorCode.INVALID_RECORD),
        (GZIP, gzip.compress(RECORDS)[:-4], ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_clients_can_not_read_is_refused(kind, data, code):
    with pytest.raises(ProtocolError) as refused:
        decompressed(kind, data)
    assert refused.value.code is code


def test_a_frame_of_many_tiny_blocks_is_read_in_slices():
    header = bytes.fromhex("04224d18604082")  # independent blocks without checksums
    block = (1 | 1 << 31).to_bytes(4, "little") + b"x"
    frame = header + block * 50_000 + bytes(4)
    slices = sum(1 for _ in compression.opening(LZ4, frame))
    assert slices > 5
    assert decompressed(LZ4, frame) == b"x" * 50_000


@pytest.mark.parametrize(("kind", "encode"), ALL, ids=IDS)
@pytest.mark.parametrize(
    ("size", "expected"),
    [(200_000, 0), (300_000, MEDIUM), (4_000_000, MEDIUM), (5_000_000, LARGE), (60_000_000, LARGE)],
)
def test_records_take_the_lane_of_the_size_that_they_become(kind, encode, size, expected):
    data = encode(bytes(size))
    assert max((wanted or 0 for wanted in compression.opening(kind, data)), default=0) == expected


def test_a_bomb_takes_no_more_memory_than_the_bound():
    bomb = codec.zstd_encode(bytes(8 * MAX_UNCOMPRESSED_BYTES))
    assert len(bomb) < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ProtocolError, match="exceed"):
        decompressed(ZSTD, bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * MAX_UNCOMPRESSED_BYTES // 1024
