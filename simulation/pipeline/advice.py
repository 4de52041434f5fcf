"""What an operator is told: which option to take, by how much, and why; in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fencepost.simulation.analyses.comparison import CONFIDENCE, FEWEST_RUNS, MeasureComparison
from fencepost.simulation.analyses.measures import MEASURES
from fencepost.simulation.pipeline.answer import OptionAnswer, PlanAnswer, as_good, best
from fencepost.simulation.pipeline.question import CRASHES, Question
from fencepost.simulation.scenarios.values import Duration

_EVENTS: Final = {
    "deploy": "in a deploy",
    "crash": f"in {CRASHES} crashes",
    "scale": "when the group grows and shrinks again",
}
_SLOWER: Final = 1.1
"""A start-up may take so much longer than its mean."""


class Recommendation(msgspec.Struct, frozen=True):
    """Which option to take."""

    option: str | None
    """Its name; None where no option can be told to be fit."""
    text: str
    why: list[str]


def recommend(question: Question, found: PlanAnswer) -> Recommendation:
    """The option with the least downtime in all, what the others cost, and what makes the difference."""
    chosen = best(found)
    if chosen is None:
        text = "Take none of these as they are: of each, runs failed, broke an invariant, or never settled."
        return Recommendation(None, text, [])
    total = chosen.downtime_s.total_per_run
    others = [each for each in found.options if each.name != chosen.name and not each.failed]
    lasts = told_seconds(total)
    text = f"Take {chosen.name}: {_EVENTS[question.event]} partitions stand still for {lasts} in all"
    text += f", the least of {len(others) + 1} options." if others else "."
    alike = as_good(found, chosen)
    if others and len(found.samples[chosen.name].runs) < FEWEST_RUNS:
        text += f" How sure that is, fewer than {FEWEST_RUNS} runs can't tell."
    elif alike:
        text += f" These runs can't tell it from {' and '.join(alike)}."
    return Recommendation(chosen.name, text, [*_why(question, chosen, others)])


def _why(question: Question, chosen: OptionAnswer, others: Sequence[OptionAnswer]) -> Iterator[str]:
    everyone = [chosen, *others]
    if question.event == "crash":
        yield (
            "A process that dies is noticed when its session timeout is over, whatever the protocol: nobody"
            " else has its partitions before. A shorter one helps most, as long as no pause outlasts it."
        )
    static = [each for each in everyone if each.parameters["static"]]
    if static and question.event == "deploy":
        yield from _of_static(question, static)
    if static and question.event == "crash":
        yield from _of_dead_static(question, static)
    protocols = {each.parameters["protocol"] for each in everyone}
    if "consumer" in protocols and len(everyone) > 1:
        yield (
            "consumer: members are told one by one, with their heartbeats, and all others go on; so a"
            " rebalance takes a heartbeat interval or two, and few partitions stand still in it."
        )
    eager = [each for each in everyone if _is_eager(each)]
    if eager and len(eager) < len(everyone):
        most = max(eager, key=lambda each: each.downtime_s.count)
        least = min(everyone, key=lambda each: each.downtime_s.count)
        yield (
            f"{most.name}: eager, so each rebalance takes all partitions from all members:"
            f" {most.downtime_s.count / max(most.runs, 1):,.0f} interruptions a run, against"
            f" {least.downtime_s.count / max(least.runs, 1):,.0f} with {least.name}. Each lasts until the"
            " slowest member is done with its batch and its callbacks."
        )
    if any(each.parameters["assignor"] == "cooperative-sticky" for each in everyone) and eager:
        yield "cooperative-sticky: only partitions that move are given up, and handed out in a second round."
    for each in others:
        if chosen.downtime_s.total_per_run > 0:
            times = each.downtime_s.total_per_run / chosen.downtime_s.total_per_run
            yield (
                f"{each.name} costs {told_seconds(each.downtime_s.total_per_run)}, {times:.1f} times as much."
            )


def _of_static(question: Question, static: Sequence[OptionAnswer]) -> Iterator[str]:
    slowest_us = question.start_up.us * _SLOWER
    late = [each for each in static if Duration.parse(each.parameters["session_timeout"]).us <= slowest_us]
    if late:
        yield (
            f"static: a start-up of {question.start_up} may outlast a session timeout of"
            f" {late[0].parameters['session_timeout']}. Then the group rebalances twice for each restart; a"
            " longer session timeout would spare that."
        )
    else:
        yield (
            "static: a member that is back within its session timeout keeps its partitions, and nothing"
            f" rebalances. They wait for its start-up, {question.start_up}; others would have them sooner if"
            " that is longer than a rebalance."
        )


def _of_dead_static(question: Question, static: Sequence[OptionAnswer]) -> Iterator[str]:
    """Of those whose process may be back before its session is over."""
    soonest_us = question.start_up.us / _SLOWER
    back = [each for each in static if Duration.parse(each.parameters["session_timeout"]).us > soonest_us]
    protocols = {each.parameters["protocol"] for each in back}
    if "classic" in protocols:
        yield (
            "classic static: a process that is back within its session timeout takes its member's place by"
            " its instance id, and nothing rebalances. Its partitions wait for its start-up,"
            f" {question.start_up}, and not for the session."
        )
    if "consumer" in protocols:
        yield (
            "consumer static: who died has not left, and its instance id is taken until the session timeout"
            " is over. A process that is back before is refused (UNRELEASED_INSTANCE_ID) and has to start"
            " again; so its partitions wait as long as others', and the group rebalances twice: without the"
            " member, and with it."
        )


def _is_eager(option: OptionAnswer) -> bool:
    name, protocol = option.parameters["assignor"], option.parameters["protocol"]
    return protocol == "classic" and name != "cooperative-sticky" and not option.parameters["static"]


def told_seconds(seconds: float | None) -> str:
    """`52 ms`, `3.2 s`, `4 min 10 s`; `nothing` for none."""
    if not seconds:
        return "no time"
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def difference_in_words(
    first: str, second: str, comparisons: Sequence[MeasureComparison], runs: int
) -> list[str]:
    """What changes from the first plan to the second; what chance alone may do is called so."""
    lines = []
    for each in comparisons:
        measure = MEASURES[each.measure]
        what = f"{measure.title}, {each.quantile}"
        if each.differs is None:
            lines.append(f"{what}: too few runs to tell.")
        elif not each.differs:
            lines.append(f"{what}: no difference that {runs} runs can tell.")
        else:
            more = "longer" if each.difference > 0 else "shorter"
            lines.append(
                f"{what}: {more} in {second} than in {first}, by {told_seconds(abs(each.difference))}"
                f" ({CONFIDENCE:.0%} interval: {_signed(each.difference_low)} to"
                f" {_signed(each.difference_high)})."
            )
    return lines


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{'-' if seconds < 0 else '+'}{told_seconds(abs(seconds)) if seconds else '0 s'}"
