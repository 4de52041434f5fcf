"""Checks whether members on real brokers can play a scenario, before anything is started."""

from __future__ import annotations

from importlib.util import find_spec
from typing import get_args

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.lab.chaos.messages import ClientName
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.scenario import Operate, RollingRestart, Scenario
from fencepost.simulation.scenarios.streams import OtherApplication, StreamsScenario


def playable(scenario: AnyScenario, client: ClientName = "fencepost") -> Scenario | StreamsScenario:
    """Return the scenario, if members of that client can play it.

    :raises FencepostError: if there is no such client, or it can't do what the scenario requires.
    :raises EnvironmentLacks: if the client is not installed.
    """
    if client not in get_args(ClientName):
        raise FencepostError(f"client {client!r}: expected one of {', '.join(get_args(ClientName))}")
    if scenario.protocol == "sac":
        raise FencepostError(f"{scenario.name} is about {scenario.subject}: {scenario.runs_with} run it")
    if scenario.protocol == "streams":
        if client != "fencepost":
            raise FencepostError(
                f"client {client}: the clients of a Streams application, which {scenario.name} is about, are"
                " fencepost's"
            )
        if any(isinstance(fault, OtherApplication) for fault in scenario.faults):
            raise FencepostError(
                f"{scenario.name} has faults of kind other-application: `simulate` and `campaign` run it, and"
                " in `chaos` there is one application"
            )
        return scenario
    if "classic" in scenario.protocols:
        _require_classic(scenario, client)
    if scenario.application.commit == "transaction":
        raise FencepostError(
            f"{scenario.name} commits in transactions: `simulate` and `campaign` run it, and members of"
            " `chaos` have no transactional producers"
        )
    if any(isinstance(step, Operate) for step in scenario.steps):
        raise FencepostError(
            f"{scenario.name} has steps of kind operate: `simulate` and `campaign` run it, and in `chaos`"
            " no operator administers the group"
        )
    if scenario.application.batch is not None:
        raise FencepostError(
            f"{scenario.name} has application.batch: `simulate` and `campaign` run it, and members of `chaos`"
            " take their time for each record: expected application.processing"
        )
    if any(isinstance(step, RollingRestart) and step.overlap is not None for step in scenario.steps):
        raise FencepostError(
            f"{scenario.name} has a rolling-restart with an overlap: `simulate` and `campaign` run it, and"
            " `chaos` restarts each member in its place"
        )
    if client == "confluent":
        _require_confluent(scenario)
    return scenario


def _require_classic(scenario: Scenario, client: ClientName) -> None:
    if client != "fencepost":
        raise FencepostError(
            f"client {client}: the members of the classic protocol, which {scenario.name} has, are"
            " fencepost's"
        )
    if scenario.patterns:
        raise FencepostError(
            f"{scenario.name} has members of the classic protocol that subscribe to a pattern: `simulate` and"
            " `campaign` run it, and in `chaos` such members subscribe to names"
        )


def _require_confluent(scenario: Scenario) -> None:
    if find_spec("confluent_kafka") is None:
        raise EnvironmentLacks(
            "client confluent: needs confluent-kafka, which is not installed: pip install confluent-kafka"
        )
    if found := scenario.patterns:
        from fencepost.simulation.lab.chaos.confluent import takes

        for pattern in found:
            if not takes(pattern):
                raise FencepostError(
                    f"client confluent: {scenario.name} has the pattern {pattern!r}, which librdkafka does"
                    " not take: expected a POSIX extended regular expression"
                )
