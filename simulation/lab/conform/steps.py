"""Scripts as text: steps on lines, as people read them, and the schedules that they stand for.

A step is written `[MEMBER[@INSTANCE],…] VERB [OWNED] [EPOCH] [FIELD=VALUE …]`, and ends with `;` or its line.
The verb is the step's name in JSON; or `joins` with topics, or `starts` with a topology, for heartbeats that
join. Lists are written `a,b`, topics `x:0+1/y:2`, a blank `blank`, None `null`. `*NAME` stands for the steps
of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from fencepost.simulation.lab.conform import schedule

TIMEOUT_MS: Final = 60_000
_KINDS: Final[Mapping[str, Any]] = {str(kind.__struct_config__.tag): kind for kind in get_args(schedule.Step)}
_FULL: Final[Mapping[str, Any]] = {"epoch": 0, "owned": "empty", "rebalance_timeout_ms": TIMEOUT_MS}
_BARE: Final[Mapping[str, str]] = {"joins": "names", "starts": "topology", "wait": "ms", "await": "ms"}
"""The field that a word without a name is, by verb."""
_FLAGS: Final = ("lost", "incomplete", "shutdown", "malformed", "user_data", "stable")
_LISTS: Final = ("names", "protocols", "states", "types")


def scripts_of(text: str) -> dict[str, list[schedule.Step]]:
    """Return the scripts of a text by name: a line `# NAME` begins one."""
    found: dict[str, list[schedule.Step]] = {}
    for script in text.split("# ")[1:]:
        name, _, lines = script.partition("\n")
        found[name] = steps(lines, found)
    return found


def steps(text: str, named: Mapping[str, list[schedule.Step]] | None = None) -> list[schedule.Step]:
    """Return the steps of one script; `*NAME` in it stands for the script of `named` with that name."""
    found: list[schedule.Step] = []
    for part in text.replace("\n", ";").split(";"):
        words = part.split()
        if words and words[0].startswith("*"):
            found += (named or {})[words[0]]
        elif words and words[0] in _KINDS:
            found.append(_step("", *words))
        elif words:
            found += (_step(sender, *words[1:]) for sender in words[0].split(","))
    return found


def _step(sender: str, verb: str, *words: str) -> schedule.Step:
    fields = dict(_sender(sender))
    kind, given = verb, dict(_field(word, verb) for word in words)
    match verb:
        case "joins":
            names = {} if "regex" in given else {"names": ()}
            kind, given = "beat", {**_FULL, "assignor": "range", **names, **given}
        case "starts":
            start = {"topology": "simple", "process": f"process of {fields['member']}"}
            kind, given = "streams_beat", {**_FULL, **start, **given}
    step: schedule.Step = msgspec.convert({**fields, **given}, _KINDS[kind], strict=False)
    return step


def _field(word: str, verb: str) -> tuple[str, Any]:
    """Return a word as a field of that kind of step, and its value."""
    name, equals, value = word.partition("=")
    if value == "null":
        return name, None
    if not equals:
        if word in _FLAGS:
            return word, True
        if verb in _BARE:
            return _BARE[verb], _value(_BARE[verb], word, verb)
        if word in tuple(schedule.Owned):
            return "owned", word
        return "generation" if verb in ("classic_sync", "classic_beat") else "epoch", word
    return name, _value(name, {"blank": " "}.get(value, value), verb)


def _value(name: str, value: str, verb: str) -> Any:
    if name == "members":
        return [dict(_sender(one)) for one in value.split(",")]
    if name in _LISTS or (name == "topics" and verb == "classic_join"):
        return list(filter(None, value.split(",")))
    if name in ("values", "tags"):
        return dict(one.split(":") for one in value.split(","))
    if name == "gives":
        pairs = (one.split(":", 1) for one in value.split("|"))
        return {member: _topics(held) for member, held in pairs}
    return _topics(value) if name == "topics" else value


def _sender(text: str) -> Iterator[tuple[str, str]]:
    member, at, instance = text.partition("@")
    if member:
        yield "member", member
    if at:
        yield "instance", instance


def _topics(text: str) -> dict[str, list[int]]:
    pairs = (one.split(":") for one in text.split("/") if one)
    return {topic: [int(number) for number in numbers.split("+")] for topic, numbers in pairs}
