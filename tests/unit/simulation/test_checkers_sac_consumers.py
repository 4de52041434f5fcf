"""What single active consumers do with what they hear: histories made by hand, right and wrong."""

from __future__ import annotations

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
    """What the checker asks of a subscriber."""

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
        self.checker = SacConsumers()
        self.checker.attach(world, lambda invariant, message, rule="": self.found.append(invariant))
        self.state = S.UNSUBSCRIBED

    @property
    def now_us(self) -> int:
        return int(self.now_s * 1_000_000)

    def move(self, event: SacMemberEvent, target: SacMemberState, after_s: float = 0.1) -> None:
        self.now_s += after_s
        self.checker.on_client_state(self.subscriber, event, self.state, target, self.now_us)
        self.state = target

    def call(self, kind: SacCallback, phase: str = "end", lasts_s: float = 1, *, heard: bool = True) -> None:
        self.checker.on_client_callback(self.subscriber, kind, "begin", self.now_us)
        self.subscriber.heard = kind if heard else None
        self.now_s += lasts_s
        self.checker.on_client_callback(self.subscriber, kind, phase, self.now_us)

    def hear(self, correlation: int, active: bool) -> None:
        self.checker.on_client_update(self.subscriber, correlation, active, self.now_us)

    def answer(self, correlation: int, offset: OffsetSpecification) -> None:
        self.checker.on_client_answer(self.subscriber, correlation, offset, self.now_us)

    def process(self, offset: int, after_s: float = 1) -> None:
        self.now_s += after_s
        self.checker.on_processed(self.subscriber, offset, self.now_us)

    def grant(self, chunks: int = 1) -> None:
        self.checker.on_client_credit(self.subscriber, chunks, self.now_us)

    def store(self, offset: int) -> None:
        self.offsets["s", "app"] = offset

    def cut(self) -> None:
        self.checker.on_connection("k1@a", OWNER, False, self.now_us)

    def subscribe(self) -> Scene:
        self.move(E.STARTED, S.CONNECTING)
        self.checker.on_connection("k1@a", OWNER, True, self.now_us)
        self.move(E.CONNECTED, S.SUBSCRIBING)
        self.move(E.SUBSCRIBED, S.WAITING)
        return self

    def activate(self, offset: OffsetSpecification = NEXT) -> Scene:
        self.hear(1, True)
        self.move(E.TOLD_ACTIVE, S.ACTIVATING)
        self.call(ACTIVATED)
        self.move(E.OFFSET_CHOSEN, S.ACTIVE)
        self.answer(1, offset)
        return self

    def host(self, what: str) -> None:
        self.checker.on_host("client-1", what, self.now_us)


@pytest.fixture
def waiting() -> Scene:
    return Scene().subscribe()


@pytest.fixture
def active() -> Scene:
    scene = Scene()
    scene.store(4)
    return scene.subscribe().activate(AT(5))


def test_a_life_without_fault_is_in_order(active: Scene) -> None:
    active.process(5)
    active.grant()
    active.process(6)
    active.store(6)
    active.hear(2, False)
    active.move(E.TOLD_WAITING, S.STEPPING_DOWN)
    active.call(STEPPING_DOWN, lasts_s=90)
    active.move(E.LET_GO, S.WAITING)
    active.answer(2, NONE)
    active.cut()
    active.move(E.DISCONNECTED, S.BACKING_OFF)
    active.move(E.BACKOFF_OVER, S.CONNECTING, after_s=0.5)
    active.move(E.CLOSED, S.CLOSED)
    active.host("stopped")
    active.checker.on_end(active.now_us)
    assert active.found == []


def test_a_loss_is_told(active: Scene) -> None:
    active.cut()
    active.move(E.DISCONNECTED, S.LOST)
    active.call(LOST)
    active.move(E.TOLD_LOST, S.BACKING_OFF)
    assert active.found == []


def test_a_loss_that_is_not_told_is_found(active: Scene) -> None:
    active.cut()
    active.move(E.DISCONNECTED, S.LOST)
    active.move(E.TOLD_LOST, S.BACKING_OFF)
    assert active.found == ["sac-callbacks"]


def test_letting_go_without_a_word_to_the_application_is_found(active: Scene) -> None:
    active.move(E.TOLD_WAITING, S.STEPPING_DOWN)
    active.move(E.LET_GO, S.WAITING)
    assert active.found == ["sac-callbacks"]


def test_a_callback_in_the_wrong_state_is_found(waiting: Scene) -> None:
    waiting.call(ACTIVATED)
    assert waiting.found == ["sac-callbacks"]


def test_a_callback_of_which_the_application_hears_nothing_is_found(active: Scene) -> None:
    active.move(E.TOLD_WAITING, S.STEPPING_DOWN)
    active.call(STEPPING_DOWN, heard=False)
    assert active.found == ["sac-callbacks"]


def test_callbacks_that_overlap_are_found(active: Scene) -> None:
    active.move(E.TOLD_WAITING, S.STEPPING_DOWN)
    for _ in range(2):
        active.checker.on_client_callback(active.subscriber, STEPPING_DOWN, "begin", active.now_us)
    assert active.found == ["sac-callbacks"]


def test_a_step_down_that_is_answered_too_soon_is_found(active: Scene) -> None:
    active.hear(2, False)
    active.answer(2, NONE)
    assert active.found == ["sac-answers"]


def test_an_answer_to_another_update_is_found(active: Scene) -> None:
    active.hear(2, True)
    active.answer(3, AT(5))
    assert active.found == ["sac-answers"]


def test_an_answer_to_nothing_is_found(active: Scene) -> None:
    active.answer(1, AT(5))
    assert active.found == ["sac-answers"]


def test_an_answer_without_a_place_is_found(waiting: Scene) -> None:
    waiting.activate(NONE)
    assert waiting.found == ["sac-answers"]


def test_an_update_that_nobody_takes_up_is_found(waiting: Scene) -> None:
    waiting.hear(1, True)
    waiting.checker.on_end(waiting.now_us)
    assert waiting.found == ["sac-answers"]


@pytest.mark.parametrize("offset", [AT(4), AT(6), NEXT])
def test_a_wrong_beginning_is_found(waiting: Scene, offset: OffsetSpecification) -> None:
    waiting.store(4)
    waiting.activate(offset)
    assert waiting.found == ["sac-records"]


def test_a_gap_is_found(active: Scene) -> None:
    active.process(6)
    assert active.found == ["sac-records"]


@pytest.mark.parametrize(
    ("offset", "is_stale", "found"), [(6, True, []), (7, True, ["sac-records"]), (6, False, ["sac-records"])]
)
def test_a_node_that_takes_an_earlier_response_for_the_last_one_sends_from_elsewhere(
    waiting: Scene, offset: int, is_stale: bool, found: list[str]
) -> None:
    waiting.store(4)
    waiting.checker.on_log_opened(OWNER, offset, is_stale, 0)
    waiting.activate(AT(5))
    waiting.process(6)
    waiting.process(7)
    assert waiting.found == found


def test_a_late_message_is_found(active: Scene) -> None:
    active.process(5)
    active.process(6, after_s=60)
    assert active.found == ["sac-records"]


def test_a_message_after_the_step_down_is_found(active: Scene) -> None:
    active.move(E.TOLD_WAITING, S.STEPPING_DOWN)
    active.call(STEPPING_DOWN)
    active.process(5)
    assert active.found == ["sac-records"]


def test_only_the_message_in_hand_may_end_when_a_consumer_steps_down(active: Scene) -> None:
    active.move(E.TOLD_WAITING, S.STEPPING_DOWN)
    active.process(5)
    assert active.found == []
    active.process(6)
    assert active.found == ["sac-records"]


def test_time_that_the_process_stands_still_is_no_delay(active: Scene) -> None:
    active.process(5)
    active.host("freeze")
    active.now_s += 100
    active.host("thaw")
    active.process(6)
    assert active.found == []


def test_a_connection_that_is_given_up_is_found(active: Scene) -> None:
    active.move(E.DISCONNECTED, S.LOST)
    assert active.found == ["sac-prompt"]


@pytest.mark.parametrize("after_s", [0.01, 9])
def test_a_wait_of_another_length_is_found(waiting: Scene, after_s: float) -> None:
    waiting.cut()
    waiting.move(E.DISCONNECTED, S.BACKING_OFF)
    waiting.move(E.BACKOFF_OVER, S.CONNECTING, after_s=after_s)
    assert waiting.found == ["sac-prompt"]


def test_a_subscription_that_takes_too_long_is_found(waiting: Scene) -> None:
    waiting.cut()
    waiting.move(E.DISCONNECTED, S.BACKING_OFF)
    waiting.move(E.BACKOFF_OVER, S.CONNECTING, after_s=0.5)
    waiting.now_s += 40
    waiting.checker.on_end(waiting.now_us)
    assert waiting.found == ["sac-prompt"]


def test_a_process_that_ends_with_an_open_consumer_is_found(waiting: Scene) -> None:
    waiting.host("stopped")
    assert waiting.found == ["sac-prompt"]


def test_a_message_that_does_not_come_at_all_is_found(active: Scene) -> None:
    active.now_s += 60
    active.checker.on_end(active.now_us)
    assert active.found == ["sac-records"]


def test_more_credit_than_was_agreed_is_found(active: Scene) -> None:
    active.subscriber.connection.may_be_sent = 11
    active.process(5)
    assert active.found == ["sac-records"]


def test_credit_that_a_node_refuses_is_found(waiting: Scene) -> None:
    waiting.grant()
    assert waiting.found == ["sac-records"]
    waiting.activate()
    waiting.grant()
    assert waiting.found == ["sac-records"]
    waiting.move(E.TOLD_WAITING, S.STEPPING_DOWN)
    waiting.grant()
    assert waiting.found == ["sac-records"] * 2


def test_credit_for_nothing_is_found(active: Scene) -> None:
    active.grant(0)
    assert active.found == ["sac-records"]


def test_a_consumer_that_does_not_start_is_found() -> None:
    scene = Scene()
    scene.host("start")
    scene.clients["client-1"] = SimpleNamespace(
        name="client-1", running=True, frozen=False, subscribers=[scene.subscriber]
    )
    scene.now_s += 10
    scene.checker.on_end(scene.now_us)
    assert scene.found == ["sac-prompt"]
