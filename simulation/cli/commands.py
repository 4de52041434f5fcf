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
    _command("simulate", "One run of a scenario in virtual time, checked after every event"),
    _command("replay", "A failed run again, as it was", "failures"),
    _command("shrink", "A failed run made small, and a test of it", "failures"),
    _command("scenarios", "The scenarios that ship with fencepost", "states"),
    _command("states", "The state machines, as tables, JSON or Mermaid diagrams"),
    _command("campaign", "Many seeds of scenarios on Spark, then the analyses and a report"),
    _command("plan", "What a deploy, a crash or scaling costs, and which settings to take"),
    _command("analyze", "The analyses and the report again, over traces that exist"),
    _command("serve", "The coordinator as a Kafka endpoint for real clients"),
    _command("cluster", "A real Kafka on this machine, for tests and comparisons"),
    _command("chaos", "A scenario on real brokers, in real time, with members in processes"),
    _command("compare", "A scenario on real brokers and simulated, side by side"),
    _command("bridge", "Single active consumers and a KIP-848 group under the same faults"),
    _command("conform", "The coordinator against a real broker, or against recorded answers"),
    _command("explore", "Every interleaving of a small group, each state judged"),
    _command("mutants", "Are the checkers awake? Known bugs, put back one at a time"),
)

BY_NAME: dict[str, Command] = {command.name: command for command in COMMANDS}
