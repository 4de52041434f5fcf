"""What a judge of members may ask of its world, and histories that are made by hand."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.protocol import consumer, offsets
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.transport import Disconnected, RequestTimedOut
from fencepost.member.classic.states import ClassicMemberState
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.scenarios.scenario import Scenario, ScenarioTopic
from fencepost.simulation.scenarios.values import Duration


def world_of_members(**fields: Any) -> Any:
    """Return a world whose hosts all run, and have no driver."""
    return SimpleNamespace(
        members=defaultdict(
            lambda: SimpleNamespace(driver=None, instance_id=None, status="running", wanted=True)
        ),
        hosts_by_member={"m": "m"},
        log_ends={},
        scenario=Scenario(duration=Duration(60_000_000), topics=(ScenarioTopic(name="x", partitions=3),)),
        **fields,
    )


SECOND = 1_000_000
CODES = {
    **ErrorCode.__members__,
    "LOADING": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    "NO_TOPIC": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "REFUSED": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "STALE": ErrorCode.STALE_MEMBER_EPOCH,
    "UNKNOWN": ErrorCode.UNKNOWN_MEMBER_ID,
}
"""Errors under the names that scripts have for them."""
FAILURES = {"late": RequestTimedOut("late"), "cut": Disconnected("cut")}


def names(findings: Iterable[Finding]) -> list[str]:
    """Return the invariants of these findings."""
    return [name for name, _ in findings]


def rows(table: str) -> list[Any]:
    """Return a parameter for each row of a table, `name: script -> what is reported`.

    Indented lines continue a row.
    """
    found = []
    for row in re.split(r"\n(?=\S)", table.strip()):
        name, rest = row.split(": ", 1)
        script, broken = rest.split("->")
        found.append(pytest.param(" ".join(script.split()), broken.split(), id=name.strip()))
    return found


class Scripted:
    """A script of events: each step is a method and its arguments.

    A semicolon ends a step. So does a bar, and nothing may be reported before it.
    """

    found: list[Any]

    def play(self, script: str) -> Any:
        """Return what is reported."""
        for number, part in enumerate(script.split("|")):
            assert not number or self.found == [], f"before {part}"
            for step in filter(None, map(str.strip, part.split(";"))):
                self.act(*step.split())
        return self.found

    def act(self, verb: str, *words: str) -> None:
        getattr(self, verb)(*words)


class History(Scripted):
    """A script for the member `m` of a judge's world. Each of its steps begins with a time in seconds."""

    unit_us = SECOND
    """Length of a script's unit of time, in µs."""
    hooks = "takes_request", "takes_response"
    """Names of the judge's methods for requests and responses."""

    def __init__(self, judge: Any, *unheard: Any, **fields: Any) -> None:
        """What `unheard` judges report does not count."""
        self.found: list[str] = []
        self.world = world_of_members(**fields)
        self.judge, self.judges = judge, (*unheard, judge)
        self.sent: dict[str, Any] = {}
        for each in unheard:
            each.attach(self.world, lambda invariant, message, rule="": None)
        judge.attach(self.world, lambda invariant, message, rule="": self.found.append(invariant))
        self.play("0 host start")

    def act(self, at: str, *words: str) -> None:
        verb, *arguments = words
        getattr(self, verb)(round(float(at) * self.unit_us), *arguments)

    def tell(self, hook: str, *arguments: Any) -> None:
        for each in self.judges:
            getattr(each, hook)("m", *arguments)

    def host(self, at_us: int, *what: str) -> None:
        for each in what:
            self.tell("on_member_host", each, at_us)

    def move(self, at_us: int, event: str, source: str, target: str) -> None:
        """The member's machine moves. `~` marks a state of the classic protocol, `_` is a space."""
        found = [ClassicMemberState(one[1:]) if one[0] == "~" else one for one in (source, target)]
        self.tell("on_member_state", event.replace("_", " "), *found, at_us)

    def poll(self, at_us: int, *phases: str) -> None:
        for phase in phases:
            self.tell("on_poll", phase, at_us)

    def call(self, at_us: int, kind: str, phases: str, *partitions: str) -> None:
        """A callback for partitions of `x`; its phases are joined by a plus sign."""
        chosen = tuple(TopicPartition("x", int(number)) for number in partitions)
        for phase in phases.split("+"):
            self.tell("on_callback", kind, phase, chosen, at_us)

    def search(self, at_us: int) -> None:
        self.tell("on_member_search", at_us)

    def lookup(self, at_us: int, *what: str) -> None:
        self.tell("on_member_lookup", what, at_us)

    def beat(self, at_us: int, epoch: str, answer: str = "", **fields: Any) -> None:
        """A heartbeat, which is answered if an error, an epoch or a failure is given."""
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=int(epoch), **fields
        )
        self.send(at_us, request, epoch)
        if answer:
            self.answer(at_us, epoch, answer)

    def send(self, at_us: int, request: Any, name: str = "") -> None:
        self.sent[name] = request
        self.tell(self.hooks[0], request, at_us)

    def answer(self, at_us: int, name: str, answer: str) -> None:
        """The request of that name is answered."""
        response: Any = FAILURES.get(answer)
        if response is None and answer.lstrip("-").isdigit():
            response = consumer.ConsumerGroupHeartbeatResponse(member_epoch=int(answer))
        elif response is None:
            response = consumer.ConsumerGroupHeartbeatResponse(error_code=CODES[answer])
        self.tell(self.hooks[1], self.sent[name], response, at_us)

    def commit(self, at_us: int, offset: str, answer: str = "NONE") -> None:
        """A commit of partition 0, and what becomes of it; `sent` if nothing does yet."""
        partition = TopicPartition("x", 0)
        request = offsets.OffsetCommitRequest(
            group_id="g", offsets={partition: offsets.OffsetAndMetadata(offset=int(offset))}
        )
        self.send(at_us, request, "commit")
        if answer != "sent":
            self.ended(at_us, answer)

    def ended(self, at_us: int, answer: str) -> None:
        """The last commit has a result."""
        request = self.sent["commit"]
        response: Any = FAILURES.get(answer)
        if response is None:
            response = offsets.OffsetCommitResponse(errors=dict.fromkeys(request.offsets, CODES[answer]))
        self.tell("on_commit", request, response, at_us)
