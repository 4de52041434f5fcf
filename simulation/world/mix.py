"""The faults that may disturb users' programs, under the names that scenarios use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, get_args

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.scenarios import scenario as s
from fencepost.simulation.scenarios.values import Duration, Moment, Span, decode_value

WorldFault: TypeAlias = (
    s.MemberCrash
    | s.MemberFreeze
    | s.SlowCallback
    | s.CallbackError
    | s.PollTimeout
    | s.ProducerTakeover
    | s.CoordinatorCrash
    | s.CoordinatorMove
    | s.CoordinatorUnavailable
    | s.AppendFailure
    | s.BrokerCrash
    | s.BrokerPause
    | s.Partition
    | s.SlowLink
    | s.Loss
    | s.ConnectionLoss
    | s.LostRequest
    | s.LostResponse
    | s.RequestError
    | s.HttpFault
)
"""Faults that affect programs, brokers and the network between them."""

Faults: TypeAlias = Mapping[str, Mapping[str, Any] | None] | Iterable[WorldFault] | None

_TYPES: Final = {str(kind.__struct_config__.tag): kind for kind in get_args(WorldFault)}
_SECOND: Final = 1_000_000
MOST_DEPLOYED: Final = 16
"""Maximum number of programs that a deploy restarts."""


def _seconds(low: float, high: float) -> Span:
    return Span("uniform", round(low * _SECOND), round(high * _SECOND))


def _every(seconds: float) -> Duration:
    return Duration(round(seconds * _SECOND))


DEFAULT_MIX: Final[tuple[WorldFault, ...]] = (
    s.MemberCrash(every=_every(30), lasts=_seconds(1, 20)),
    s.MemberFreeze(every=_every(40), lasts=_seconds(1, 60)),
    s.SlowCallback(every=_every(60), lasts=_seconds(1, 15)),
    s.ConnectionLoss(every=_every(25)),
    s.LostRequest(every=_every(30)),
    s.LostResponse(every=_every(25)),
    s.RequestError(every=_every(20)),
    s.Partition(every=_every(60), lasts=_seconds(1, 30), share=0.4),
    s.SlowLink(every=_every(60), lasts=_seconds(5, 30)),
    s.Loss(every=_every(90), lasts=_seconds(2, 20)),
    s.CoordinatorMove(every=_every(60)),
    s.CoordinatorCrash(every=_every(90), lasts=_seconds(0.5, 20)),
    s.BrokerCrash(every=_every(90), lasts=_seconds(0.5, 20)),
    s.BrokerPause(every=_every(90), lasts=_seconds(0.5, 20)),
    s.PollTimeout(every=_every(60), lasts=_seconds(5, 60)),
    s.AppendFailure(every=_every(90), lasts=_seconds(0.1, 10)),
    s.CoordinatorUnavailable(every=_every(120), lasts=_seconds(0.5, 15)),
    s.HttpFault(every=_every(15)),
)
"""The faults that a run draws from by default. Each run leaves out about half of them.

`callback-error` and `producer-takeover` are not among them: programs must handle them, and not all do.
"""


def faults_of(faults: Faults) -> tuple[WorldFault, ...]:
    """Return the faults that a test wants.

    A mapping changes the default mix: `{"member-crash": {"every": "10s"}, "loss": None}` lets programs crash
    more often, and loses no messages. An iterable of faults replaces it; an empty one means no faults.

    :raises FencepostError: for an unknown word, or a value that is not possible.
    """
    if faults is None:
        return DEFAULT_MIX
    given: object = faults
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise FencepostError(f'faults={faults!r}: expected a mapping, such as {{"loss": {{"every": "20s"}}}}')
    if isinstance(faults, Mapping):
        chosen: dict[str, WorldFault] = {str(each.__struct_config__.tag): each for each in DEFAULT_MIX}
        for word, settings in faults.items():
            if word not in _TYPES:
                near = difflib.get_close_matches(str(word), _TYPES, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise FencepostError(
                    f"faults: {word!r} is no fault, expected one of {', '.join(_TYPES)}{hint}"
                )
            if settings is None:
                chosen.pop(word, None)
            else:
                chosen[word] = _changed(word, chosen.get(word), settings)
        return tuple(chosen.values())
    found = tuple(faults)
    for each in found:
        if type(each) not in _TYPES.values():
            raise FencepostError(
                f"faults: {each!r} is no fault of a world, expected objects such as Loss(every=...). "
                f'To change the default mix, give a mapping, such as {{"loss": {{"every": "20s"}}}}'
            )
    return found


def _changed(word: str, before: WorldFault | None, settings: Mapping[str, Any]) -> WorldFault:
    kind = _TYPES[word]
    if not isinstance(settings, Mapping):
        raise FencepostError(
            f'faults: {word}: {settings!r}: expected settings, such as {{"every": "20s"}}, or None'
        )
    try:
        given = msgspec.convert(dict(settings), kind, dec_hook=decode_value)
    except (msgspec.ValidationError, ValueError) as error:
        raise FencepostError(f"faults: {word}: {error}") from None
    names = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
    values = {names[key]: getattr(given, names[key]) for key in settings}
    if before is not None and "at" in values:
        values["every"] = None
    changed = msgspec.structs.replace(kind() if before is None else before, **values)
    if changed.every is not None and changed.every.ms < 1:
        raise FencepostError(f"faults: {word}: every: expected at least 1ms, got {changed.every}")
    if changed.at is None and changed.every is None:
        raise FencepostError(f'faults: {word}: expected `every` or `at`, such as {{"every": "20s"}}')
    return changed


def scenario_of(
    name: str,
    topics: Mapping[str, int],
    brokers: int,
    faults: tuple[WorldFault, ...],
    duration_us: int,
    *,
    deploys: bool,
) -> s.Scenario:
    """Return the scenario from which a seed draws the faults of a run."""
    deploy = s.RollingRestart(at=Moment(share=0.3), over=Moment(share=0.4))
    return s.Scenario(
        name=name,
        duration=Duration(duration_us),
        swarm=True,
        group=s.ScenarioGroup(members=MOST_DEPLOYED),
        topics=tuple(s.ScenarioTopic(name=each, partitions=count) for each, count in topics.items())
        or (s.ScenarioTopic(name="none"),),
        cluster=s.ScenarioCluster(brokers=brokers),
        steps=(deploy,) if deploys else (),
        faults=faults,  # type: ignore[arg-type]  # with one more than scenarios have
    )
