"""The subcommands: one table for the help, the dispatch and the docs."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand. `function` is "module:name" and is imported only when the command runs."""

    name: str
    summary: str
    function: str


def _command(name: str, summary: str, module: str = "") -> Command:
    return Command(name, summary, f"fencepost.simulation.cli.{module or name}:{name}")


COMMANDS: tuple[Command, ...] = (
    _command("simulate", "Simulate one run of a scenario, and check it after every event"),
    _command("replay", "Replay a failed run exactly", "failures"),
    _command("shrink", "Shrink a failed run to a small one, and write a test of it", "failures"),
    _command("scenarios", "List the scenarios that ship with fencepost", "states"),
    _command("states", "Show the state machines as tables, JSON or Mermaid diagrams"),
    _command("campaign", "Run many seeds of scenarios on Spark, then analyse and report"),
    _command("plan", "Compare settings by what a deploy, a crash or scaling costs"),
    _command("analyze", "Analyse traces in files or in a topic, and write a report"),
    _command("serve", "Serve the coordinator as a Kafka endpoint for real clients"),
    _command("proxy", "Stand before a real cluster, and disturb its clients over HTTP"),
    _command("cluster", "Start, stop or show a real Kafka cluster on this machine"),
    _command("chaos", "Run a scenario on real brokers, with member processes"),
    _command("compare", "Run a scenario on real brokers and simulated, and compare both"),
    _command("conform", "Compare responses with a real broker's, or with recorded ones"),
    _command("explore", "Explore every interleaving of a small group, and check each state"),
    _command("mutants", "Test the judges: put known bugs back, one at a time"),
)

BY_NAME: dict[str, Command] = {command.name: command for command in COMMANDS}
