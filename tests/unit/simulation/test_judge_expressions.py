"""Subscriptions by expression: looked up when it is time, with the right answer, and on record."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fencepost.coordinator.consumer import regular_expressions
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.outcome import Outcome, ResolveRegularExpressions, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from tests.unit.simulation.judged_steps import IMAGE, ConsumerScene, Tamper, beat, changed

Y = Topic(topic_id="Y" * 22, name="y", partitions=2)
WITH_Y = msgspec.structs.replace(TopicsImage.of([*IMAGE.by_id.values(), Y]), version=IMAGE.version + 1)


class Scene(ConsumerScene):
    """A, that subscribes to an expression."""

    def subscribe(self, expression: str = "x|y") -> None:
        self.look(beat("A", 0, subscribed_topic_names=(), subscribed_topic_regex=expression))

    def look(self, request: Any) -> None:
        outcome = self.tamper(self.live.handle(request, self.now_ms))
        self.take(request, outcome)
        self.effects = outcome.effects

    def ask(self) -> None:
        """A heartbeat that may lead to a lookup."""
        self.look(beat("A", self.group.members["A"].member_epoch))

    def silent(self) -> None:
        """A heartbeat that is answered, and leads to nothing."""
        epoch = self.group.members["A"].member_epoch
        reply = consumer.ConsumerGroupHeartbeatResponse(
            member_id="A", member_epoch=epoch, heartbeat_interval_ms=5_000
        )
        self.take(beat("A", epoch), Outcome(reply=reply))

    def answer(self, *topics: str) -> None:
        """The lookup is answered, by these topics or by the right ones."""
        (effect,) = self.effects
        event = regular_expressions.resolve(effect, self.live.image)
        found = dict.fromkeys(event.topics, topics) if topics else event.topics
        self.step(msgspec.structs.replace(event, topics=found))

    def grow(self) -> None:
        """A topic comes."""
        self.step(TopicsChanged(image=WITH_Y))

    def matches(self, *topics: str) -> None:
        assert self.group.resolved["x|y"].topics == topics


def lookup(expression: str) -> Tamper:
    return changed(effects=(ResolveRegularExpressions(group_id="g", regular_expressions=(expression,)),))


def dated_wrongly(outcome: Outcome) -> Outcome:
    first, *rest = outcome.records
    value = msgspec.structs.replace(first.value, timestamp_ms=7)  # type: ignore[type-var]
    return Outcome(records=(msgspec.structs.replace(first, value=value), *rest))


BROKEN = {"expressions-resolved"}
KNOWN = "at 1; subscribe; at 1.1; answer; at 1.2; ask; matches x"


@pytest.mark.parametrize(
    ("script", "tamper", "broken"),
    [
        (KNOWN + "; grow; at 11.101; ask; answer; matches x y", None, set()),
        # A new topic is looked for, once the pause is over. A refresh comes every ten minutes.
        (KNOWN + "; grow; at 11.1; silent", None, set()),
        (KNOWN + "; grow; at 11.101; silent", None, BROKEN),
        (KNOWN + "; at 30; silent; at 60; silent", None, set()),
        (KNOWN + "; at 30; silent; at 60; silent; at 601.101; silent", None, BROKEN),
        # A lookup is not too early, for what members subscribe to, and one at a time.
        (KNOWN + "; at 11.1; ask", lookup("x|y"), BROKEN),
        (KNOWN + "; at 11.101; ask", lookup("z"), BROKEN),
        ("at 1; subscribe; at 1.1; ask", lookup("x|y"), BROKEN),
        ("at 1; subscribe; load 0; silent", None, BROKEN),
        # A result is right, and on record.
        ("at 1; subscribe x.*; answer x y", None, BROKEN),
        ("at 1; subscribe x.*; answer x", dated_wrongly, BROKEN),
        ("at 1; subscribe x.*; answer x", lambda _: Outcome(), BROKEN),
    ],
)
def test_an_expression_is_looked_up(script: str, tamper: Tamper | None, broken: set[str]) -> None:
    assert Scene().play_wrongly(script, tamper) & BROKEN == broken
