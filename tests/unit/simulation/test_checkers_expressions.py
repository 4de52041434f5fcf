"""Subscriptions by expression: looked up when it is time, with the right answer, and on record."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.consumer import regular_expressions
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.outcome import Outcome, ResolveRegularExpressions, TopicsChanged
from fencepost.coordinator.protocol.records import ConsumerGroupRegularExpressionValue
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from tests.unit.simulation.test_checkers_sessions import IMAGE, Judged

Y = Topic(topic_id="Y" * 22, name="y", partitions=2)
WITH_Y = msgspec.structs.replace(TopicsImage.of([*IMAGE.by_id.values(), Y]), version=IMAGE.version + 1)


class Group(Judged):
    """A, that subscribes to `x|y`."""

    def subscribe(self, expression="x|y"):
        """A joins, or changes its expression: the effects."""
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="A",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=(),
            subscribed_topic_regex=expression,
            topic_partitions={},
            api_version=1,
        )
        return self.looked(request)

    def looked(self, request, tamper=lambda effects: effects):
        outcome = self.live.handle(request, self.now_ms)
        self.take(request, msgspec.structs.replace(outcome, effects=tamper(outcome.effects)))
        return outcome.effects

    def answer(self, effects, **fields):
        (effect,) = effects
        event = regular_expressions.resolve(effect, self.live.image)
        self.step(msgspec.structs.replace(event, **fields))

    def beat(self, tamper=lambda effects: effects):
        member = self.live.groups["g"].members["A"]
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="A", member_epoch=member.member_epoch, api_version=1
        )
        return self.looked(request, tamper)

    def silent(self):
        """A heartbeat that is answered, and leads to nothing."""
        member = self.live.groups["g"].members["A"]
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="A", member_epoch=member.member_epoch, api_version=1
        )
        reply = consumer.ConsumerGroupHeartbeatResponse(
            member_id="A", member_epoch=member.member_epoch, heartbeat_interval_ms=5_000
        )
        self.take(request, Outcome(reply=reply))


@pytest.fixture
def group():
    it = Group()
    effects = it.at(1_000).subscribe()
    it.at(1_100).answer(effects)
    it.at(1_200).beat()
    assert it.live.groups["g"].resolved["x|y"].topics == ("x",)
    assert it.found == set()
    return it


def test_an_expression_is_looked_up_anew_when_a_topic_comes(group):
    group.step(TopicsChanged(image=WITH_Y))
    group.at(11_101).answer(group.beat())
    assert group.live.groups["g"].resolved["x|y"].topics == ("x", "y")
    assert group.found == set()


@pytest.mark.parametrize(("now_ms", "found"), [(11_100, set()), (11_101, {"expressions-resolved"})])
def test_a_topic_that_is_not_looked_for_is_flagged(group, now_ms, found):
    group.step(TopicsChanged(image=WITH_Y))
    group.at(now_ms).silent()
    assert group.found == found


def test_a_refresh_that_does_not_come_is_flagged(group):
    group.at(30_000).silent()
    group.at(60_000).silent()
    assert group.found & {"expressions-resolved"} == set()
    group.at(601_101).silent()
    assert "expressions-resolved" in group.found


def test_an_expression_that_nobody_looks_up_is_flagged():
    it = Group()
    it.at(1_000).subscribe()
    it.checker.on_coordinator_state("b", "active", 0)
    it.silent()
    assert it.found == {"expressions-resolved"}


@pytest.mark.parametrize(
    "effects",
    [
        (ResolveRegularExpressions(group_id="g", regular_expressions=("x|y",)),),
        (ResolveRegularExpressions(group_id="g", regular_expressions=("z",)),),
    ],
    ids=["early", "another"],
)
def test_a_look_too_early_or_for_another_expression_is_flagged(group, effects):
    group.at(11_100 if "x|y" in effects[0].regular_expressions else 11_101).beat(lambda _: effects)
    assert group.found == {"expressions-resolved"}


def test_two_looks_at_once_are_flagged():
    it = Group()
    effects = it.at(1_000).subscribe()
    it.at(1_100).beat(lambda _: effects)
    assert it.found == {"expressions-resolved"}


def test_a_wrong_match_is_flagged():
    it = Group()
    it.answer(it.at(1_000).subscribe("x.*"), topics={"x.*": ("x", "y")})
    assert "expressions-resolved" in it.found


def test_an_answer_that_is_not_written_as_it_is_is_flagged():
    it = Group()
    (effect,) = it.at(1_000).subscribe()
    event = regular_expressions.resolve(effect, it.live.image)
    outcome = it.live.handle(event, it.now_ms)
    first, *rest = outcome.records
    assert isinstance(first.value, ConsumerGroupRegularExpressionValue)
    other = msgspec.structs.replace(first, value=msgspec.structs.replace(first.value, timestamp_ms=7))
    it.take(event, Outcome(records=(other, *rest)))
    assert it.found == {"expressions-resolved"}


def test_topics_that_are_not_written_at_all_are_flagged():
    it = Group()
    (effect,) = it.at(1_000).subscribe()
    event = regular_expressions.resolve(effect, it.live.image)
    it.take(event, Outcome())
    assert it.found == {"expressions-resolved"}
