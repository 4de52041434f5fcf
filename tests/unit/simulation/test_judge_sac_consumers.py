"""What single active consumers do with what they hear: histories made by hand, right and with one slip."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.offsets import NEXT, NONE, OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.sac.consumers import SacConsumers
from fencepost.simulation.scenarios.load import load_any
from tests.unit.simulation.member_worlds import Scripted, rows

S, E = SacMemberState, SacMemberEvent
OWNER = "client-1/s/0.1"


class Subscriber:
    """What the judge asks of a subscriber."""

    def __init__(self) -> None:
        self.name = "client-1/s"
        self.client = SimpleNamespace(name="client-1")
        self.connection = SimpleNamespace(owner=OWNER, may_be_sent=10)
        self.subscription = SimpleNamespace(stream="s", name="app", offset=NEXT)


class Scene(Scripted):
    """One consumer that is watched. Time is in seconds; a message is written each second."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.now_s = 0.0
        self.offsets: dict[tuple[str, str], int] = {}
        self.subscriber: Any = Subscriber()
        cluster = SimpleNamespace(
            offsets=self.offsets,
            written_us=lambda _, offset: offset * 1_000_000,
            log_end=lambda _: int(self.now_s),
        )
        self.clients: dict[str, Any] = {}
        world: Any = SimpleNamespace(cluster=cluster, clients=self.clients, scenario=load_any("sac-churn"))
        self.judge = SacConsumers()
        self.judge.attach(world, lambda invariant, message, rule="": self.found.append(invariant))
        self.state = S.UNSUBSCRIBED

    @property
    def now_us(self) -> int:
        return int(self.now_s * 1_000_000)

    def move(self, event: str, target: str, after_s: str = "0.1") -> None:
        self.now_s += float(after_s)
        source, self.state = self.state, S[target]
        self.judge.on_client_state(self.subscriber, E[event], source, self.state, self.now_us)

    def begin(self, kind: str) -> None:
        self.judge.on_client_callback(self.subscriber, SacCallback[kind], "begin", self.now_us)

    def call(self, kind: str, lasts_s: str = "1") -> None:
        self.subscriber.heard = SacCallback[kind]
        self.unheard(kind, lasts_s)

    def unheard(self, kind: str, lasts_s: str = "1") -> None:
        """A callback of which the application hears nothing."""
        self.begin(kind)
        self.now_s += float(lasts_s)
        self.judge.on_client_callback(self.subscriber, SacCallback[kind], "end", self.now_us)

    def hear(self, correlation: str, state: str) -> None:
        self.judge.on_client_update(self.subscriber, int(correlation), state == "active", self.now_us)

    def answer(self, correlation: str, offset: str = "") -> None:
        """With an offset, `next`, or none."""
        place = {"": NONE, "next": NEXT}.get(offset) or OffsetSpecification.at(int(offset))
        self.judge.on_client_answer(self.subscriber, int(correlation), place, self.now_us)

    def process(self, offset: str, after_s: str = "1") -> None:
        self.now_s += float(after_s)
        self.judge.on_processed(self.subscriber, int(offset), self.now_us)

    def grant(self, chunks: str = "1") -> None:
        self.judge.on_client_credit(self.subscriber, int(chunks), self.now_us)

    def may_be_sent(self, chunks: str) -> None:
        self.subscriber.connection.may_be_sent = int(chunks)

    def store(self, offset: str) -> None:
        self.offsets["s", "app"] = int(offset)

    def cut(self) -> None:
        self.judge.on_connection("k1@a", OWNER, False, self.now_us)

    def opens(self, offset: str, what: str = "") -> None:
        """A node opens the log, perhaps for a stale response."""
        self.judge.on_log_opened(OWNER, int(offset), what == "stale", self.now_us)

    def subscribe(self) -> None:
        self.move("STARTED", "CONNECTING")
        self.judge.on_connection("k1@a", OWNER, True, self.now_us)
        self.play("move CONNECTED SUBSCRIBING; move SUBSCRIBED WAITING")

    def activate(self, offset: str = "next") -> None:
        self.play("hear 1 active; move TOLD_ACTIVE ACTIVATING; call ACTIVATED; move OFFSET_CHOSEN ACTIVE")
        self.answer("1", "" if offset == "nowhere" else offset)

    def active(self) -> None:
        """It has begun at offset 5, behind the stored one."""
        self.play("store 4; subscribe; activate 5")

    def step_down(self) -> None:
        self.move("TOLD_WAITING", "STEPPING_DOWN")

    def back_off(self) -> None:
        self.play("cut; move DISCONNECTED BACKING_OFF")

    def host(self, what: str) -> None:
        self.judge.on_host("client-1", what, self.now_us)

    def exists(self) -> None:
        self.clients["client-1"] = SimpleNamespace(
            name="client-1", running=True, frozen=False, subscribers=[self.subscriber]
        )

    def end(self, after_s: str = "0") -> None:
        self.now_s += float(after_s)
        self.judge.on_end(self.now_us)


HISTORIES = """
a life: active; process 5; grant; process 6; store 6; hear 2 waiting; step_down; call STEPPING_DOWN 90;
    move LET_GO WAITING; answer 2; back_off; move BACKOFF_OVER CONNECTING 0.5; move CLOSED CLOSED;
    host stopped; end ->
a loss: active; cut; move DISCONNECTED LOST; call LOST; move TOLD_LOST BACKING_OFF ->
a process that stands still is not late: active; process 5; host freeze; end 100; host thaw; process 6 ->
the message in hand may end when it steps down: active; step_down; process 5 ->
a node that took an earlier response for the last one: subscribe; store 4; opens 6 stale; activate 5;
    process 6; process 7 ->
credit: subscribe; activate; grant ->

lost and not told: active | cut; move DISCONNECTED LOST; move TOLD_LOST BACKING_OFF -> sac-callbacks
lets go and is not told: active | step_down; move LET_GO WAITING -> sac-callbacks
steps down and hears nothing: active | step_down; unheard STEPPING_DOWN -> sac-callbacks
two callbacks at once: active | step_down; begin STEPPING_DOWN; begin STEPPING_DOWN -> sac-callbacks
a callback at a wrong time: subscribe | call ACTIVATED -> sac-callbacks

an answer too soon: active | hear 2 waiting; answer 2 -> sac-answers
an answer to another update: active | hear 2 active; answer 3 5 -> sac-answers
an answer to nothing: active | answer 1 5 -> sac-answers
an answer without a place: subscribe | activate nowhere -> sac-answers
no answer: subscribe | hear 1 active; end -> sac-answers

begins at the stored offset: subscribe | store 4; activate 4 -> sac-records
begins too far: subscribe | store 4; activate 6 -> sac-records
begins at the next message: subscribe | store 4; activate next -> sac-records
a gap: active | process 6 -> sac-records
a gap before a stale place: subscribe | store 4; opens 7 stale; activate 5; process 6; process 7
    -> sac-records
a gap of no stale place: subscribe | store 4; opens 6; activate 5; process 6; process 7 -> sac-records
a late message: active | process 5; process 6 60 -> sac-records
no message: active | end 60 -> sac-records
a message after the step-down: active | step_down; call STEPPING_DOWN; process 5 -> sac-records
two messages when it steps down: active | step_down; process 5; process 6 -> sac-records
credit while it waits: subscribe | grant -> sac-records
credit when it steps down: active | step_down; grant -> sac-records
no credit: active | grant 0 -> sac-records
too much credit: active | may_be_sent 11; process 5 -> sac-records

gives up a connection: active | move DISCONNECTED LOST -> sac-prompt
waits too little: subscribe | back_off; move BACKOFF_OVER CONNECTING 0.01 -> sac-prompt
waits too long: subscribe | back_off; move BACKOFF_OVER CONNECTING 9 -> sac-prompt
does not connect: subscribe | back_off; move BACKOFF_OVER CONNECTING 0.5; end 40 -> sac-prompt
does not close: subscribe | host stopped -> sac-prompt
does not start: exists; host start; end 10 -> sac-prompt
"""


@pytest.mark.parametrize(("script", "broken"), rows(HISTORIES))
def test_a_consumer(script: str, broken: list[str]) -> None:
    assert Scene().play(script) == broken
