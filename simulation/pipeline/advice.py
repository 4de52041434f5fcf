"""The recommendation of a plan and its basis, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fencepost.simulation.analyses.comparison import CONFIDENCE, MeasureComparison, compare
from fencepost.simulation.analyses.measures import MEASURES
from fencepost.simulation.pipeline.answer import OptionAnswer, PlanAnswer, run_costs
from fencepost.simulation.pipeline.question import CRASHES, Question
from fencepost.simulation.pipeline.rounds import interval
from fencepost.simulation.report.model import duration
from fencepost.simulation.scenarios.values import Duration


def best(found: PlanAnswer) -> OptionAnswer | None:
    """Return the option with the least total downtime of partitions in a run.

    Return None if every option has failed runs, or none that ended.
    """
    sound = (each for each in found.options if each.is_sound)
    return min(sound, key=lambda each: each.cost, default=None)


def differences(found: PlanAnswer, first: str, second: str) -> list[MeasureComparison]:
    """Compare the second option with the first, with intervals from resampling whole runs."""
    return compare(found.samples[first], found.samples[second])


def as_good(found: PlanAnswer, chosen: OptionAnswer) -> Sequence[str]:
    """Return the options that do not cost measurably more than the chosen one: the difference may be
    chance."""
    alike = []
    for each in found.options:
        if each.name != chosen.name and each.is_sound:
            between = interval(*(run_costs(found.samples[name]) for name in (chosen.name, each.name)))
            if between is None or between[0] <= 0:
                alike.append(each.name)
    return alike


_EVENTS: Final = {
    "deploy": "in a deploy",
    "crash": f"in {CRASHES} crashes",
    "scale": "when the group grows and shrinks again",
}
_SLOWER: Final = 1.1
"""The factor by which a start-up may take longer than its mean."""


class Recommendation(msgspec.Struct, frozen=True):
    """The recommended option."""

    option: str | None
    """The name of the option; None if no option is sound."""
    text: str
    why: list[str]
    basis: list[str]
    """The results that were compared with real brokers, and those that were not."""


def recommend(question: Question, found: PlanAnswer) -> Recommendation:
    """Recommend the option with the least total downtime, with the costs of the others and the reasons."""
    chosen = best(found)
    if chosen is None:
        text = (
            "Take none of these unchanged: each had runs that failed, broke an invariant, or never settled."
        )
        if not any(each.failed for each in found.options):
            text = "Nothing can be recommended yet: no run ended in time."
        return Recommendation(None, text, [], _basis(found))
    others = [each for each in found.options if each.name != chosen.name and each.is_sound]
    text = f"Take {chosen.name}: {_EVENTS[question.event]} {_price(chosen)}"
    text += f". That is the least of {len(others) + 1} options." if others else "."
    if alike := as_good(found, chosen):
        text += f" The difference from {' and '.join(alike)} is small enough to be chance."
    return Recommendation(chosen.name, text, [*_why(question, chosen, others)], _basis(found))


def _price(option: OptionAnswer) -> str:
    total = option.downtime_s.total_per_run
    if not total:
        return "no partition stands still"
    return (
        f"partitions stand still for {duration(total)} in all, {share(option.capacity_lost)} of the"
        f" capacity, and lag is gone {duration(option.lag_gone_s)} after its peak of"
        f" {option.lag_peak:,.0f} records"
    )


def share(part: float) -> str:
    """Format a share, such as `12 %` or `0.35 %`."""
    return f"{part * 100:.2g} %"


_COMPARED: Final = (
    "compared with real brokers: consumer groups (KIP-848) of up to 12 members without instance ids that"
    " restart all the time (docs/fidelity.md)"
)


def _basis(found: PlanAnswer) -> list[str]:
    """Return which results behind the recommendation were compared with real brokers, and which were not."""
    lines = []
    parameters = [each.parameters for each in found.options]
    if any(each["protocol"] == "consumer" and not each["static"] for each in parameters):
        lines.append(_COMPARED)
    missing = []
    if any(each["protocol"] == "classic" for each in parameters):
        missing.append("classic groups")
    if any(each["static"] for each in parameters):
        missing.append("members with instance ids")
    missing.append("larger groups")
    lines.append(
        f"not compared: how long rebalances of {', '.join(missing)} take; lag is computed from the times"
        " without an owner"
    )
    return lines


def _why(question: Question, chosen: OptionAnswer, others: Sequence[OptionAnswer]) -> Iterator[str]:
    everyone = [chosen, *others]
    dies = question.event == "crash" or question.kill
    if dies:
        yield (
            "In each protocol, the coordinator notices a dead process when its session timeout is over. No"
            " other member gets its partitions before that. A shorter timeout helps most, if no pause "
            "exceeds it."
        )
    static = [each for each in everyone if each.parameters["static"]]
    if static and question.surge:
        yield (
            "static: the new process starts while the old one runs, so it needs an instance id of its own,"
            " and the old one leaves for good. Static members gain nothing."
        )
    elif static and dies:
        yield from _of_dead_static(question, static)
    elif static and question.event == "deploy":
        yield from _of_static(question, static)
    protocols = {each.parameters["protocol"] for each in everyone}
    if "consumer" in protocols and len(everyone) > 1:
        yield (
            "consumer: each member learns of a rebalance with its next heartbeat, and the others go on. So a"
            " rebalance takes one or two heartbeat intervals, and few partitions stand still."
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
        yield "cooperative-sticky: only partitions that move are released, and assigned in a second round."
    for each in others:
        if chosen.downtime_s.total_per_run > 0:
            seconds = each.downtime_s.total_per_run
            times = seconds / chosen.downtime_s.total_per_run
            yield f"{each.name}: {_price(each)}, {times:.1f} times as much."


def _of_static(question: Question, static: Sequence[OptionAnswer]) -> Iterator[str]:
    slowest_us = question.start_up.us * _SLOWER
    late = [each for each in static if Duration.parse(each.parameters["session_timeout"]).us <= slowest_us]
    if late:
        yield (
            f"static: a start-up of {question.start_up} may outlast a session timeout of"
            f" {late[0].parameters['session_timeout']}. Then the group rebalances twice for each restart; a"
            " longer session timeout avoids that."
        )
    else:
        yield (
            "static: a member that is back within its session timeout keeps its partitions, and nothing"
            f" rebalances. They wait for its start-up, {question.start_up}; other members would get them "
            "sooner if"
            " that is longer than a rebalance."
        )


def _of_dead_static(question: Question, static: Sequence[OptionAnswer]) -> Iterator[str]:
    """Yield the reasons for static members whose process may return before its session ends."""
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
            "consumer static: a dead member has not left, and keeps its instance id until the session timeout"
            " is over. The coordinator refuses a process that returns before that (UNRELEASED_INSTANCE_ID), "
            "and"
            " it must start again. So its partitions wait as long as those of others, and the group "
            "rebalances"
            " twice: without the member, and with it."
        )


def _is_eager(option: OptionAnswer) -> bool:
    name, protocol = option.parameters["assignor"], option.parameters["protocol"]
    return protocol == "classic" and name != "cooperative-sticky" and not option.parameters["static"]


def difference_in_words(
    first: str, second: str, comparisons: Sequence[MeasureComparison], runs: int
) -> list[str]:
    """Describe the changes from the first plan to the second; a change that may be chance is reported as
    such."""
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
                f"{what}: {more} in {second} than in {first}, by {duration(abs(each.difference))}"
                f" ({CONFIDENCE:.0%} interval: {_signed(each.difference_low)} to"
                f" {_signed(each.difference_high)})."
            )
    return lines


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds)) if seconds else '0 s'}"
