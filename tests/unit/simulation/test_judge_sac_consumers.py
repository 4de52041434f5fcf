"""What single active consumers do with what they hear: histories made by hand, right and with one slip."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.offsets import NEXT, NONE, OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.sac.consumers import SacConsumers
from fencepost.simulation.scenarios.load import load_any

S, E = SacMemberState, SacMemberEvent
OWNER = "client-1/s/0.1"
ACTIVATED, STEPPING_DOWN, LOST = SacCallback
AT = OffsetSpecification.at


class Subscriber:
    """What the judge asks of a subscriber."""

    def __init__(self) -> None:
        self.name = "client-1/s"
        self.client = SimpleNamespace(name="client-1")
        self.connection = SimpleNamespace(owner=OWNER, may_be_sent=10)
        self.subscription = SimpleNamespace(stream="s", name="app", offset=NEXT)


class Scene:
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

    def move(self, event: SacMemberEvent, target: SacMemberState, after_s: float = 0.1) -> Scene:
        self.now_s += after_s
        self.judge.on_client_state(self.subscriber, event, self.state, target, self.now_us)
        self.state = target
        return self

    def call(self, kind: SacCallback, lasts_s: float = 1, *, heard: bool = True) -> Scene:
        self.begin(kind)
        self.subscriber.heard = kind if heard else None
        self.now_s += lasts_s
        self.judge.on_client_callback(self.subscriber, kind, "end", self.now_us)
        return self

    def begin(self, kind: SacCallback) -> Scene:
        self.judge.on_client_callback(self.subscriber, kind, "begin", self.now_us)
        return self

    def hear(self, correlation: int, active: bool) -> Scene:
        self.judge.on_client_update(self.subscriber, correlation, active, self.now_us)
        return self

    def answer(self, correlation: int, offset: OffsetSpecification) -> Scene:
        self.judge.on_client_answer(self.subscriber, correlation, offset, self.now_us)
        return self

    def process(self, *offsets: int, after_s: float = 1) -> Scene:
        for offset in offsets:
            self.now_s += after_s
            self.judge.on_processed(self.subscriber, offset, self.now_us)
        return self

    def grant(self, chunks: int = 1) -> Scene:
        self.judge.on_client_credit(self.subscriber, chunks, self.now_us)
        return self

    def store(self, offset: int) -> Scene:
        self.offsets["s", "app"] = offset
        return self

    def cut(self) -> Scene:
        self.judge.on_connection("k1@a", OWNER, False, self.now_us)
        return self

    def open_log(self, offset: int, *, is_stale: bool) -> Scene:
        self.judge.on_log_opened(OWNER, offset, is_stale, self.now_us)
        return self

    def subscribe(self) -> Scene:
        self.move(E.STARTED, S.CONNECTING)
        self.judge.on_connection("k1@a", OWNER, True, self.now_us)
        return self.move(E.CONNECTED, S.SUBSCRIBING).move(E.SUBSCRIBED, S.WAITING)

    def activate(self, offset: OffsetSpecification = NEXT) -> Scene:
        self.hear(1, True).move(E.TOLD_ACTIVE, S.ACTIVATING).call(ACTIVATED)
        return self.move(E.OFFSET_CHOSEN, S.ACTIVE).answer(1, offset)

    def step_down(self) -> Scene:
        return self.move(E.TOLD_WAITING, S.STEPPING_DOWN)

    def back_off(self) -> Scene:
        return self.cut().move(E.DISCONNECTED, S.BACKING_OFF)

    def host(self, what: str) -> Scene:
        self.judge.on_host("client-1", what, self.now_us)
        return self

    def end(self, after_s: float = 0) -> Scene:
        self.now_s += after_s
        self.judge.on_end(self.now_us)
        return self


def begun(scene: Scene) -> Scene:
    return scene


def waiting(scene: Scene) -> Scene:
    return scene.subscribe()


def active(scene: Scene) -> Scene:
    """It has begun at offset 5, behind the stored one."""
    return scene.store(4).subscribe().activate(AT(5))


def may_be_sent(scene: Scene, chunks: int) -> Scene:
    scene.subscriber.connection.may_be_sent = chunks
    return scene


def never_starts(scene: Scene) -> Scene:
    scene.clients["client-1"] = SimpleNamespace(
        name="client-1", running=True, frozen=False, subscribers=[scene.subscriber]
    )
    return scene.host("start").end(10)


def a_life(scene: Scene) -> Scene:
    scene.process(5).grant().process(6).store(6).hear(2, False)
    scene.step_down().call(STEPPING_DOWN, lasts_s=90).move(E.LET_GO, S.WAITING).answer(2, NONE)
    scene.back_off().move(E.BACKOFF_OVER, S.CONNECTING, after_s=0.5).move(E.CLOSED, S.CLOSED)
    return scene.host("stopped").end()


History = Callable[[Scene], Scene]
RIGHT: list[tuple[History, History]] = [
    (active, a_life),
    (active, lambda it: it.cut().move(E.DISCONNECTED, S.LOST).call(LOST).move(E.TOLD_LOST, S.BACKING_OFF)),
    # A process that stands still is not late.
    (active, lambda it: it.process(5).host("freeze").end(100).host("thaw").process(6)),
    # The message in hand may end when it steps down.
    (active, lambda it: it.step_down().process(5)),
    # A node that takes an earlier response for the last one sends from elsewhere.
    (waiting, lambda it: it.store(4).open_log(6, is_stale=True).activate(AT(5)).process(6, 7)),
    (waiting, lambda it: it.activate().grant()),
]
SLIPS: list[tuple[History, History, str]] = [
    # The application is not notified, or at a wrong time.
    (
        active,
        lambda it: it.cut().move(E.DISCONNECTED, S.LOST).move(E.TOLD_LOST, S.BACKING_OFF),
        "sac-callbacks",
    ),
    (active, lambda it: it.step_down().move(E.LET_GO, S.WAITING), "sac-callbacks"),
    (active, lambda it: it.step_down().call(STEPPING_DOWN, heard=False), "sac-callbacks"),
    (active, lambda it: it.step_down().begin(STEPPING_DOWN).begin(STEPPING_DOWN), "sac-callbacks"),
    (waiting, lambda it: it.call(ACTIVATED), "sac-callbacks"),
    # An answer is too soon, to another update, to nothing, without a place; or there is none.
    (active, lambda it: it.hear(2, False).answer(2, NONE), "sac-answers"),
    (active, lambda it: it.hear(2, True).answer(3, AT(5)), "sac-answers"),
    (active, lambda it: it.answer(1, AT(5)), "sac-answers"),
    (waiting, lambda it: it.activate(NONE), "sac-answers"),
    (waiting, lambda it: it.hear(1, True).end(), "sac-answers"),
    # It begins elsewhere than behind the stored offset.
    (waiting, lambda it: it.store(4).activate(AT(4)), "sac-records"),
    (waiting, lambda it: it.store(4).activate(AT(6)), "sac-records"),
    (waiting, lambda it: it.store(4).activate(NEXT), "sac-records"),
    # Messages have a gap, are late, or are processed after the step-down.
    (active, lambda it: it.process(6), "sac-records"),
    (waiting, lambda it: it.store(4).open_log(7, is_stale=True).activate(AT(5)).process(6, 7), "sac-records"),
    (
        waiting,
        lambda it: it.store(4).open_log(6, is_stale=False).activate(AT(5)).process(6, 7),
        "sac-records",
    ),
    (active, lambda it: it.process(5).process(6, after_s=60), "sac-records"),
    (active, lambda it: it.end(60), "sac-records"),
    (active, lambda it: it.step_down().call(STEPPING_DOWN).process(5), "sac-records"),
    (active, lambda it: it.step_down().process(5, 6), "sac-records"),
    # Credit is granted that the node refuses, or more than was agreed.
    (waiting, lambda it: it.grant(), "sac-records"),
    (active, lambda it: it.step_down().grant(), "sac-records"),
    (active, lambda it: it.grant(0), "sac-records"),
    (active, lambda it: may_be_sent(it, 11).process(5), "sac-records"),
    # It gives up a connection, waits too long or not long enough, or does not start or close.
    (active, lambda it: it.move(E.DISCONNECTED, S.LOST), "sac-prompt"),
    (waiting, lambda it: it.back_off().move(E.BACKOFF_OVER, S.CONNECTING, after_s=0.01), "sac-prompt"),
    (waiting, lambda it: it.back_off().move(E.BACKOFF_OVER, S.CONNECTING, after_s=9), "sac-prompt"),
    (waiting, lambda it: it.back_off().move(E.BACKOFF_OVER, S.CONNECTING, after_s=0.5).end(40), "sac-prompt"),
    (waiting, lambda it: it.host("stopped"), "sac-prompt"),
    (begun, never_starts, "sac-prompt"),
]


@pytest.mark.parametrize(("before", "history"), RIGHT)
def test_a_right_history_is_in_order(before: History, history: History) -> None:
    assert history(before(Scene())).found == []


@pytest.mark.parametrize(("before", "history", "invariant"), SLIPS)
def test_a_slip_is_found(before: History, history: History, invariant: str) -> None:
    scene = before(Scene())
    assert scene.found == []
    assert history(scene).found == [invariant]
