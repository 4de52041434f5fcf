"""Replays recorded responses of real systems, and reports by rule where ours differ.

A file holds one JSON object per line, compressed with gzip or not. One kind is in `sac_vectors`; the other is
a sequence of group changes with the targets that Kafka's server-side assignors computed: `{"seed",
"assignor", "steps": [{"topics": {name: partitions}, "members": {id: {"topics", "instance"}}, "current",
"target"}]}`, where `current` and `target` are `{member: {topic: [partition]}}` without members that have
nothing.

Kafka's `range` is a function of its input, so its targets must be equal. Which of several equal choices
`uniform` takes depends on the order of a hash map. So its targets must have the same sizes, move no more
partitions, and give each subscribed partition to exactly one of its subscribers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from fencepost.coordinator.assign.registry import BUILT_IN
from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.codec.compression import TooLong, gunzipped
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import MemberId, Partitions
from fencepost.coordinator.reading import read_file
from fencepost.simulation.lab.conform import sac_vectors
from fencepost.simulation.lab.conform.sac_vectors import SacSequence
from fencepost.simulation.lab.conform.targets import moves, placement, sizes, valid

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Target: TypeAlias = dict[MemberId, dict[str, tuple[_Count, ...]]]


class VectorDifference(msgspec.Struct, frozen=True):
    """One response of ours that breaks a rule; the schedule says where in the file."""

    rule: str
    schedule: str


class VectorVerdict(msgspec.Struct, frozen=True):
    """A rule that was checked at least once: "equal" or "different"."""

    rule: str
    verdict: str


class VectorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of replaying a file."""

    requests: int
    """Number of responses that were compared."""
    differences: list[VectorDifference]
    rules: list[VectorVerdict]


class _Member(msgspec.Struct, forbid_unknown_fields=True):
    topics: tuple[str, ...]
    instance: str | None = None


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    topics: dict[str, _Count]
    members: dict[MemberId, _Member]
    current: _Target
    target: _Target


class _AssignorSequence(msgspec.Struct, forbid_unknown_fields=True):
    seed: int
    assignor: str
    steps: list[_Step]


class _Head(msgspec.Struct):
    """The fields that tell the kinds of lines apart."""

    assignor: object = None


MAX_VECTOR_BYTES: Final = 64 << 20
"""Maximum size of a file of vectors, before and after decompression (64 MiB)."""
_FORMAT = "an assignor sequence {seed, assignor, steps}"


def replay_vectors(path: Path) -> VectorReport:
    """Compare our responses with a file of recorded ones.

    :raises FencepostError: if the file cannot be read, or is of a kind that is not known; the text names
        the line.
    """
    requests = 0
    checked: dict[str, bool] = {}
    differences = []
    for number, line in enumerate(_lines(path), 1):
        sequence = _sequence(line, f"{path}, line {number}")
        last = None
        for index, rule, holds in _checked(sequence):
            requests += index != last
            last = index
            checked[rule] = checked.get(rule, True) and holds
            if not holds:
                differences.append(VectorDifference(rule, f"seed {sequence.seed} step {index}"))
    if not requests:
        raise FencepostError(
            f"{path} holds no vectors; each line should be {_FORMAT} or {sac_vectors.FORMAT}"
        )
    verdicts = [
        VectorVerdict(rule, "equal" if holds else "different") for rule, holds in sorted(checked.items())
    ]
    return VectorReport(requests=requests, differences=differences, rules=verdicts)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        data = read_file(path, MAX_VECTOR_BYTES)
        if data.startswith(b"\x1f\x8b"):
            data = gunzipped(data, MAX_VECTOR_BYTES)
    except TooLong:
        raise FencepostError(
            f"{path}: is longer than {MAX_VECTOR_BYTES} bytes when it is decompressed, which is the limit"
        ) from None
    except (ValueError, zlib.error) as error:
        raise FencepostError(f"{path} is a damaged gzip file: {error}") from error
    return (line for line in data.splitlines() if line.strip())


def _checked(sequence: _AssignorSequence | SacSequence) -> Iterator[tuple[int, str, bool]]:
    if isinstance(sequence, SacSequence):
        return sac_vectors.check(sequence)
    return (
        (index, rule, holds)
        for index, step in enumerate(sequence.steps)
        for rule, holds in _check(sequence.assignor, step)
    )


def _sequence(line: bytes, where: str) -> _AssignorSequence | SacSequence:
    try:
        if msgspec.json.decode(line, type=_Head).assignor is None:
            return msgspec.json.decode(line, type=SacSequence)
        sequence = msgspec.json.decode(line, type=_AssignorSequence)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FencepostError(f"{where} is not {_FORMAT} or {sac_vectors.FORMAT}: {error}") from error
    if sequence.assignor not in BUILT_IN:
        raise FencepostError(f"{where}: assignor {sequence.assignor!r} is not one of {', '.join(BUILT_IN)}")
    for index, step in enumerate(sequence.steps):
        if mistake := _mistake(step):
            raise FencepostError(f"{where}, step {index}: {mistake}")
    return sequence


def _mistake(step: _Step) -> str | None:
    for member, said in step.members.items():
        if missing := [topic for topic in said.topics if topic not in step.topics]:
            return f"{member} subscribes to {missing[0]}, which is no topic there"
    for target in (step.current, step.target):
        for member, held in target.items():
            if member not in step.members:
                return f"{member} has partitions and is no member"
            for topic, numbers in held.items():
                if max(numbers, default=-1) >= step.topics.get(topic, 0):
                    return f"{member} has partition {max(numbers)} of {topic}, which does not exist"
    return None


def _check(assignor: str, step: _Step) -> Iterator[tuple[str, bool]]:
    """Yield each rule of that assignor, and true if our response to the step keeps it."""
    spec = _spec(step)
    ours = BUILT_IN[assignor](spec)
    theirs = _canonical(step.target)
    if assignor == "range":
        yield "range.target", {member: held for member, held in ours.items() if held} == theirs
        return
    before = placement(spec.targets)
    yield "uniform.sizes", sizes(ours) == sizes(theirs)
    yield "uniform.moves", moves(before, placement(ours)) <= moves(before, placement(theirs))
    yield "uniform.valid", valid(ours, spec)


def _spec(step: _Step) -> GroupSpec:
    equal: dict[tuple[str, ...], tuple[str, ...]] = {}
    subscriptions = {}
    for member, said in step.members.items():
        topics = tuple(sorted(said.topics))
        subscriptions[member] = equal.setdefault(topics, topics)
    subscribed = {topic for topics in equal for topic in topics}
    return GroupSpec(
        subscriptions=subscriptions,
        partitions={topic: count for topic, count in step.topics.items() if topic in subscribed},
        targets=_canonical(step.current),
        instance_ids={m: said.instance for m, said in step.members.items() if said.instance is not None},
        homogeneous=len(equal) <= 1,
    )


def _canonical(target: Mapping[MemberId, Mapping[str, Iterable[int]]]) -> dict[MemberId, Partitions]:
    return {
        member: {topic: tuple(sorted(numbers)) for topic, numbers in sorted(held.items())}
        for member, held in target.items()
    }
