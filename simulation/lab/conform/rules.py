"""All rules, by their subject. If several fit a request, the first one accounts for a difference."""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.simulation.lab.conform import rules_administration as administration
from fencepost.simulation.lab.conform import rules_classic as classic
from fencepost.simulation.lab.conform import rules_group as group
from fencepost.simulation.lab.conform import rules_heartbeat as heartbeat
from fencepost.simulation.lab.conform import rules_streams as streams
from fencepost.simulation.lab.conform import schedule
from fencepost.simulation.lab.conform.exchange import ConformExchange, ConformRule

_BY_STEP: Mapping[type, tuple[ConformRule, ...]] = {
    schedule.ClassicJoinStep: (*classic.MIGRATION, *classic.JOINS),
    schedule.ClassicSyncStep: classic.SYNCS,
    schedule.ClassicBeat: classic.HEARTBEATS,
    schedule.Beat: (
        *classic.MIGRATION,
        *heartbeat.CHECKS,
        *heartbeat.STATIC,
        *heartbeat.EPOCHS,
        *heartbeat.LEAVING,
        *group.REGEX,
        *group.EPOCH,
        *group.RECONCILIATION,
        *group.TARGETS,
        *heartbeat.RESPONSES,
    ),
    schedule.StreamsBeat: streams.HEARTBEATS,
    schedule.DescribeStreams: streams.DESCRIPTIONS,
    schedule.CommitStep: (*classic.MIGRATED_COMMITS, *administration.COMMITS),
    schedule.Fetch: administration.FETCHES,
    schedule.Describe: administration.DESCRIPTIONS,
    schedule.DescribeClassic: administration.CLASSIC,
    schedule.List: administration.LISTS,
    schedule.Remove: (*classic.MIGRATION, *administration.REMOVALS),
    schedule.DeleteGroup: administration.DELETIONS,
    schedule.Forget: administration.FORGETTING,
}

_OF_STREAMS: Mapping[type, tuple[ConformRule, ...]] = {
    schedule.CommitStep: streams.OFFSETS,
    schedule.Fetch: streams.OFFSETS,
}
"""The same, if the group is a streams group."""

_OF_CLASSIC: Mapping[type, tuple[ConformRule, ...]] = {
    schedule.CommitStep: classic.COMMITS,
    schedule.Describe: classic.NEWER_DESCRIPTIONS,
    schedule.DescribeClassic: classic.DESCRIPTIONS,
    schedule.Remove: classic.LEAVING,
}
"""The same, if it is a classic group."""

WITHOUT_REQUEST: Mapping[str, str] = {
    "assignor.range.equal": "both range targets are equal",
    "assignor.uniform.valid": "Kafka's uniform target assigns each subscribed partition to one subscriber",
    "assignor.uniform.sizes": "both uniform targets have the same sizes",
    "assignor.uniform.moves": "fencepost's uniform target moves no more partitions than Kafka's",
    "regex.resolution": "a resolution of expressions raises the epoch, or does not",
    "group.configuration": "group settings are accepted or refused",
    "timer.session": "a member without heartbeats for its session timeout is removed",
    "timer.rebalance": "a member that does not revoke in time is removed",
    "topics.change": "topics are created, grown, deleted, or refused",
    **classic.WITHOUT_REQUEST,
    **streams.WITHOUT_REQUEST,
}
"""Rules that no single request exercises."""

NAMES: Mapping[str, str] = {
    **{rule.name: rule.about for rules in _BY_STEP.values() for rule in rules},
    **{rule.name: rule.about for rules in _OF_STREAMS.values() for rule in rules},
    **{rule.name: rule.about for rules in _OF_CLASSIC.values() for rule in rules},
    **WITHOUT_REQUEST,
}
"""All rules with their subjects."""


def exercised(exchange: ConformExchange) -> list[str]:
    """Return the rules that a request tests, the most significant first."""
    kind = type(exchange.step)
    rules = _BY_STEP[kind]
    if exchange.before.streams is not None:
        rules = _OF_STREAMS.get(kind, rules)
    elif exchange.before.classic is not None:
        rules = _OF_CLASSIC.get(kind, rules)
    return [rule.name for rule in rules if rule.when(exchange)]
