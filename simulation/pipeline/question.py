"""The question of an operator: how long are partitions without an owner in a deploy, after a crash, in
scaling?

A question has one group and one event, and several values for keys whose options are to be compared. It comes
from flags or from a TOML file with the same keys. It becomes one scenario, and a choice of settings for each
option.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.outages import Traffic
from fencepost.simulation.pipeline.tasks import Option
from fencepost.simulation.scenarios.documents import check_document
from fencepost.simulation.scenarios.load import flat_config
from fencepost.simulation.scenarios.scenario import GroupProtocol
from fencepost.simulation.scenarios.typed import Misplaced, Places, parse_toml, read_text, shown, typed
from fencepost.simulation.scenarios.values import Duration, decode_value

Event: TypeAlias = Literal["deploy", "crash", "scale"]
Assignor: TypeAlias = Literal["uniform", "range", "roundrobin", "sticky", "cooperative-sticky"]

BEGIN: Final = Duration(90_000_000)
"""Time of the event in a run: the group has settled by then, and what happened before is not counted."""
CRASHES: Final = 3
SCALED: Final = 1.5
_RECORDS: Final = 10
"""The limit on records that a member gets from a poll on average. More would not change how long it works."""
_PAUSE_US: Final = 10_000_000
"""Time between the end of one restart and the next one, in microseconds: a deploy waits until members are
ready. With surge, both members run for that time."""
_SETTLING_US: Final = 60_000_000
_SPREAD: Final = 0.1
"""The share by which a start-up may take less or more than its mean."""

_OF_CONSUMER: Final = ("uniform", "range")
_OF_CLASSIC: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
_LISTS: Final = ("protocol", "assignor", "session_timeout", "heartbeat_interval", "static")
"""Keys that may have several values."""
_OF_OPTIONS: Final = {"session.timeout": "session_timeout", "heartbeat.interval": "heartbeat_interval"}
"""Settings of brokers that follow from keys of an option, and so do their limits."""


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group, one event, and the values to choose among."""

    event: Event = "deploy"
    members: Annotated[int, Meta(ge=1, le=10_000)] = 20
    partitions: Annotated[int, Meta(ge=1, le=100_000)] = 60
    start_up: Duration = Duration(10_000_000)
    """Time from the end of a process until the next one has its consumer."""
    zone_latency: Duration = Duration(1_000)
    """Median latency from a member to its brokers, one way."""
    batch: Duration = Duration(500_000)
    """Time that an application takes for the records of one poll. It joins and releases partitions between
    two batches."""
    poll: Duration = Duration(5_000_000)
    """Time that records gather before a poll returns them; an application can join and release partitions at
    once in that time."""
    surge: bool = False
    """True if a deploy starts the new member first, and then stops the old one."""
    kill: bool = False
    """True if a deploy kills members, so that they do not leave the group."""
    config: dict[str, bool | int | str] = {}
    """Settings of the brokers under Kafka's names, the same for all options."""
    at_once: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Number of members that a deploy restarts at the same time."""
    rate: Annotated[float, Meta(gt=0)] = 1_000.0
    """Records per second that are written to all partitions; the lag is computed from this."""
    headroom: Annotated[float, Meta(gt=1)] = 2.0
    """Factor by which consumers can read faster than that rate."""
    protocol: tuple[GroupProtocol, ...] = ()
    assignor: tuple[Assignor, ...] = ()
    session_timeout: tuple[Duration, ...] = ()
    heartbeat_interval: tuple[Duration, ...] = ()
    static: tuple[bool, ...] = ()

    @property
    def traffic(self) -> Traffic:
        """The rate at which records are written, and how fast consumers can read."""
        return Traffic(self.rate, self.headroom)

    @property
    def restarts(self) -> int:
        """Number of processes that end or begin in the event."""
        match self.event:
            case "deploy":
                return self.members * (2 if self.surge else 1)
            case "crash":
                return CRASHES
            case "scale":
                return 2 * (_larger(self.members) - self.members)

    def seconds(self, choice: Choice) -> float:
        """Return the virtual time of a run, in seconds."""
        lasts_us = _event(self, choice.session_timeout.us, "")[1]
        return (BEGIN.us + lasts_us + _quiet_us(self, choice.session_timeout.us)) / 1e6


def ask(raw: Mapping[str, Any], places: Mapping[str, str]) -> Question:
    """Return the question with these raw values; `places` has the place where each was given, for error
    messages.

    :raises FencepostError: if a value is wrong; the text has its place.
    """
    if isinstance(raw.get("config"), dict):
        raw = {**raw, "config": flat_config(raw["config"])}
    listed = {
        key: value if isinstance(value, list) or key not in _LISTS else [value] for key, value in raw.items()
    }
    try:
        question = typed(listed, Question, decode_value)
    except Misplaced as mistake:
        key = str(mistake.path[0]) if mistake.path else ""
        raise FencepostError(f"{places.get(key, key)}: {mistake.message}") from None
    for key in ("start_up", "zone_latency", "batch", "poll", "session_timeout", "heartbeat_interval"):
        given = getattr(question, key)
        for each in given if isinstance(given, tuple) else (given,):
            if each.ms < 1:
                raise FencepostError(f"{places[key]}: expected at least 1ms, got {each}")
    for key in _LISTS:
        if len(set(getattr(question, key))) < len(getattr(question, key)):
            raise FencepostError(f"{places[key]}: a value is there twice")
    _check_deploy(question, places)
    _check_config(question, places)
    _check_assignors(question, places)
    return question


def _check_deploy(question: Question, places: Mapping[str, str]) -> None:
    if question.event == "deploy":
        if question.at_once > question.members:
            raise FencepostError(
                f"{places['at_once']}: expected at most the {question.members} members of the group,"
                f" got {question.at_once}"
            )
        return
    for key in ("at_once", "surge", "kill"):
        if places.get(key, "").startswith("--"):
            raise FencepostError(f"{places[key]}: has an effect only in a deploy, not in a {question.event}")


def _check_config(question: Question, places: Mapping[str, str]) -> None:
    for key, option in _OF_OPTIONS.items():
        for name in question.config:
            if name.startswith("group.consumer.") and name.endswith(f"{key}.ms"):
                raise FencepostError(f"{places['config']}: {name} follows from {option}: give that instead")
    try:
        GroupCoordinatorConfig.from_properties(question.config)
    except FencepostError as error:
        raise FencepostError(f"{places['config']}: {error}") from None


def _check_assignors(question: Question, places: Mapping[str, str]) -> None:
    protocols = question.protocol or ("consumer", "classic")
    for name in question.assignor:
        if not any(name in _assignors_of(protocol) for protocol in protocols):
            allowed = ", ".join(dict.fromkeys(a for p in protocols for a in _assignors_of(p)))
            raise FencepostError(f"{places['assignor']}: expected one of {allowed}, got {shown(name)}")
    for protocol in protocols:
        if question.assignor and not set(question.assignor) & set(_assignors_of(protocol)):
            place = places.get("protocol", "protocol")
            raise FencepostError(
                f"{place}: {protocol} has none of these assignors,"
                f" expected one of {', '.join(_assignors_of(protocol))}"
            )


def _assignors_of(protocol: str) -> tuple[str, ...]:
    return _OF_CONSUMER if protocol == "consumer" else _OF_CLASSIC


def read_question(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the raw values of a TOML file, and the place of each.

    :raises FencepostError: if it can't be read, or is not TOML.
    """
    text = read_text(path)
    raw = parse_toml(text, str(path))
    check_document(raw, "plan", str(path))
    places = Places(str(path), text)
    return raw, {key: f"{places.at((key,))}: {key}" for key in raw}


# -- options ----------------------------------------------------------------------------------------------


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One option: a value for each key that may have several."""

    protocol: GroupProtocol
    assignor: str
    session_timeout: Duration
    heartbeat_interval: Duration
    static: bool

    @property
    def settings(self) -> dict[str, str]:
        """The settings that turn a scenario into this option, as `simulate --set` takes them."""
        found = {"group.protocol": self.protocol, "group.static": str(self.static).lower()}
        if self.protocol == "classic":
            return found | {
                "group.partition_assignment_strategy": self.assignor,
                "group.session_timeout": str(self.session_timeout),
                "group.heartbeat_interval": str(self.heartbeat_interval),
            }
        session, heartbeat = self.session_timeout.ms, self.heartbeat_interval.ms
        prefix = "config.group.consumer"
        return found | {
            "group.assignor": self.assignor,
            f"{prefix}.session.timeout.ms": str(session),
            f"{prefix}.min.session.timeout.ms": str(min(session, 45_000)),
            f"{prefix}.max.session.timeout.ms": str(max(session, 60_000)),
            f"{prefix}.heartbeat.interval.ms": str(heartbeat),
            f"{prefix}.min.heartbeat.interval.ms": str(min(heartbeat, 5_000)),
            f"{prefix}.max.heartbeat.interval.ms": str(max(heartbeat, 15_000)),
        }

    @property
    def parameters(self) -> dict[str, str | bool]:
        """The values for people, by the keys of a question."""
        return {
            "protocol": self.protocol,
            "assignor": self.assignor,
            "session_timeout": str(self.session_timeout),
            "heartbeat_interval": str(self.heartbeat_interval),
            "static": self.static,
        }


def choices(question: Question, *, one: bool = False) -> dict[str, Choice]:
    """Return all options of a question by their names; keys that are not given have their usual values.

    With `one`, keys that are not given have a single value: the newer protocol, and dynamic members.
    """
    usual: tuple[GroupProtocol, ...] = ("consumer",) if one else ("consumer", "classic")
    found = []
    for protocol in question.protocol or usual:
        assignors = [each for each in question.assignor if each in _assignors_of(protocol)]
        if not assignors:
            assignors = ["uniform"] if protocol == "consumer" else ["cooperative-sticky", "range"]
            assignors = assignors[:1] if one else assignors
        interval = Duration(5_000_000 if protocol == "consumer" else 3_000_000)
        found += [
            Choice(
                protocol=protocol,
                assignor=assignor,
                session_timeout=session,
                heartbeat_interval=beat,
                static=static,
            )
            for assignor, session, beat, static in itertools.product(
                assignors,
                question.session_timeout or (Duration(45_000_000),),
                question.heartbeat_interval or (interval,),
                question.static or ((False,) if one else (False, True)),
            )
        ]
    return {_name(choice, question): choice for choice in found}


def _name(choice: Choice, question: Question) -> str:
    words = [f"{choice.protocol}/{choice.assignor}"]
    if len(question.session_timeout) > 1:
        words.append(f"session={choice.session_timeout}")
    if len(question.heartbeat_interval) > 1:
        words.append(f"heartbeat={choice.heartbeat_interval}")
    return " ".join([*words, *(["static"] if choice.static else [])])


def options(chosen: Mapping[str, Choice], places: Mapping[str, str], scenario: str = "") -> list[Option]:
    """Return the options as a campaign takes them."""
    keys = {
        "session_timeout": ("group.session_timeout", "config.group.consumer.session.timeout.ms"),
        "heartbeat_interval": ("group.heartbeat_interval", "config.group.consumer.heartbeat.interval.ms"),
    }
    where = {name: places[key] for key, names in keys.items() if key in places for name in names}
    given = next(iter(where.values()), "")  # both must fit each other
    where = {name: where.get(name, given) for names in keys.values() for name in names} if given else {}
    return [
        Option(name, choice.settings, scenario, {key: where.get(key, name) for key in choice.settings})
        for name, choice in chosen.items()
    ]


# -- the scenario -----------------------------------------------------------------------------------------


def scenario_text(question: Question, chosen: Mapping[str, Choice]) -> str:
    """Return the scenario that all options share, as TOML."""
    session_us = max(choice.session_timeout.us for choice in chosen.values())
    start_us = question.start_up.us
    low, high = (_duration(start_us * (1 + sign * _SPREAD)) for sign in (-1, 1))
    event, lasts_us = _event(question, session_us, f"{low}..{high}")
    quiet_us = _quiet_us(question, session_us)
    latency = question.zone_latency
    # Each partition gets a record in the time of a poll, so that no poll that owns any stays open.
    records = min(question.partitions, _RECORDS * question.members)
    lines = [f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in question.config.items()]
    settings = "".join(["[config]\n", *lines, "\n"]) if lines else ""
    return f"""summary = "{question.event}: {question.members} members, {question.partitions} partitions"
duration = "{_duration(BEGIN.us + lasts_us + quiet_us)}"
quiet = "{_duration(quiet_us)}"

[group]
members = {question.members}
start = "0s..3s"

[network]
latency = {{median = "{latency}", p99 = "{_duration(latency.us * 5)}"}}

[application]
restart = "{low}..{high}"
poll = "{question.poll}"
batch = "{question.batch}"

[[topics]]
name = "orders"
partitions = {question.partitions}
records_per_second = {records * 1_000_000 / question.poll.us!r}

{settings}{event}"""


def _quiet_us(question: Question, session_us: int) -> int:
    return session_us + round(question.start_up.us * (1 + _SPREAD)) + _SETTLING_US


def _larger(members: int) -> int:
    return max(members + 1, round(members * SCALED))


def _duration(us: float) -> str:
    """Return a duration in microseconds as text, so that nothing is rounded twice."""
    return str(Duration(round(us)))


def _event(question: Question, session_us: int, restart: str) -> tuple[str, int]:
    """Return the steps or faults of the event, and the time that they take."""
    one_us = round(question.start_up.us * (1 + _SPREAD)) + _PAUSE_US
    match question.event:
        case "deploy":
            over_us = math.ceil(question.members / question.at_once) * one_us
            more = f'overlap = "{_duration(_PAUSE_US)}"\n' if question.surge else ""
            more += "graceful = false\n" if question.kill else ""
            return (
                f'[[steps]]\nkind = "rolling-restart"\nat = "{BEGIN}"\nover = "{_duration(over_us)}"\n'
                f"batch = {question.at_once / question.members!r}\n{more}"
            ), over_us
        case "crash":
            apart_us = session_us + one_us + _SETTLING_US
            crashes = "\n".join(
                f'[[faults]]\nkind = "member-crash"\nat = "{_duration(BEGIN.us + apart_us * number)}"\n'
                f'lasts = "{restart}"\n'
                for number in range(CRASHES)
            )
            return crashes, apart_us * CRASHES
        case "scale":
            apart_us = session_us + _SETTLING_US
            return "\n".join(
                _scales(question.members, _larger(question.members), apart_us)
            ), apart_us + _PAUSE_US
    raise AssertionError(question.event)


def _scales(members: int, larger: int, apart_us: int) -> Iterator[str]:
    for at_us, count in ((BEGIN.us, larger), (BEGIN.us + apart_us, members)):
        yield f'[[steps]]\nkind = "scale"\nat = "{_duration(at_us)}"\nmembers = {count}\nover = "10s"\n'
