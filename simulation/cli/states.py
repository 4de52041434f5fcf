"""`fencepost states` and `fencepost scenarios`: the state machines and the scenarios of the package."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.member.machines import OTHERS
from fencepost.simulation.cli.arguments import Json
from fencepost.simulation.cli.completion import machine_names
from fencepost.simulation.cli.output import print_json, print_result, print_text
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.machines import TABLES, Table, document, markdown, mermaid
from fencepost.simulation.scenarios.load import library


def states(
    machine: Annotated[
        str | None, Parameter(help="The name of one machine. Default: all.", completer=machine_names)
    ] = None,
    /,
    *,
    as_: Annotated[
        str | None,
        Parameter(name="--as", help="Show another version of the machine: kafka-4, kip848-draft1 …"),
    ] = None,
    format: Annotated[
        Literal["table", "mermaid", "json"],
        Parameter(help="The output format; mermaid without MACHINE prints Markdown."),
    ] = "table",
    json: Json = False,
) -> int:
    """Show the state machines as they are declared: every state, and every transition with its event."""
    chosen = _chosen(machine) if as_ is None else (_as(machine, as_),)
    if json or format == "json":
        print_json({each.name: document(each) for each in chosen})
    elif format == "mermaid":
        print_text(markdown(chosen) if machine is None else mermaid(chosen[0]))
    else:
        _print_tables(chosen)
    return 0


def _chosen(machine: str | None) -> tuple[Table, ...]:
    if machine is None:
        return TABLES
    names = {each.name: each for each in TABLES}
    if machine not in names:
        hint = suggestion(machine, names, f"there are {', '.join(names)}")
        raise FencepostError(f"no machine is called {machine!r}; {hint}")
    return (names[machine],)


def _as(machine: str | None, other: str) -> Table:
    """Return another version of a machine's table."""
    if machine is None:
        raise FencepostError(
            f"--as {other}: expected a machine, as in: fencepost states MACHINE --as {other}"
        )
    (ours,) = _chosen(machine)
    others = OTHERS.get(ours.name, {})
    if other not in others:
        known = f"expected {', '.join(others)}" if others else "it has no other version"
        raise FencepostError(f"--as {other}: {machine} has no such version; {known}")
    return others[other]


def _print_tables(chosen: tuple[Table, ...]) -> None:
    out = Terminal()
    for number, each in enumerate(chosen):
        if number:
            out.say()
        out.say(Text(each.name, style="bold"), Text(f"({each.source})", style="dim"))
        ends = f", ends in {', '.join(each.terminal)}" if each.terminal else ""
        out.say(f"{len(each.states)} states, starts in {each.initial}{ends}")
        out.say()
        rows = [(_state(each, t.source), str(t.event), _state(each, t.target)) for t in each.transitions]
        out.table(("from", "event", "to"), rows)
        for source, target in each.refused:
            out.say(f"refused without an error: {source} to {target}")


def _state(machine: Table, state: str) -> Text:
    style = "cyan" if state == machine.initial else "red" if state in machine.terminal else ""
    return Text(str(state), style=style)


def scenarios(*, json: Json = False) -> int:
    """List the scenarios that ship with fencepost. Commands also take a TOML file of your own."""
    entries = [entry._asdict() for entry in library()]
    rows = [(each["name"], each["world"], each["summary"]) for each in entries]
    print_result(entries, lambda _: Terminal().table(("name", "world", "summary"), rows), json=json)
    return 0
