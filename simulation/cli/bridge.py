"""`fencepost bridge`: single active consumers and a consumer group under the same faults, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import Count, Json, writable_file
from fencepost.simulation.cli.completion import scenario_names
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_json
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.report.model import duration as told
from fencepost.simulation.scenarios.load import load_any

if TYPE_CHECKING:
    from fencepost.simulation.lab.bridge.counterpart import Bridge, Protocol

DEFAULT = "sac-node-failures"


def bridge(
    scenario: Annotated[
        str,
        Parameter(
            help="A single-active-consumer scenario of the library, or a TOML file.",
            completer=scenario_names,
        ),
    ] = DEFAULT,
    /,
    *,
    seeds: Annotated[Count, Parameter(help="Number of seeds, from 1.")] = 10,
    members: Annotated[Count | None, Parameter(help="Clients at the start.")] = None,
    partitions: Annotated[Count | None, Parameter(help="Total number of partitions.")] = None,
    duration: Annotated[str | None, Parameter(help="Virtual time, such as 10m or 1h.")] = None,
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", help="Override a scenario key: cluster.nodes=5. Repeatable."),
    ] = None,
    report: Annotated[Path | None, Parameter(help="Write an HTML page that compares both.")] = None,
    json: Json = False,
) -> int:
    """Run the same clients and faults with single active consumers and with a KIP-848 group, and compare.

    Reports how long partitions had no consumer, and how long they had two.
    """
    loaded = load_any(
        scenario,
        overrides=settings or [],
        members=members,
        partitions=partitions,
        duration=duration,
        option="--set",
    )
    if loaded.protocol != "sac":
        raise FencepostError(f'{scenario}: expected a scenario with protocol = "sac"')
    writable_file(report, "--report")
    configure_logs()
    from fencepost.simulation.lab.bridge.counterpart import compare

    with progress_for(json=json).step("comparing", 2 * seeds) as advance:
        result = compare(loaded, range(1, seeds + 1), progress=advance)
    if report is not None:
        from fencepost.simulation.report.render import render_bridge

        render_bridge(result.scenario, _facts(result), _rows(result), report)
    if json:
        print_json(result)
    else:
        _print(result, report)
    return 1 if any(each.violations for each in result.protocols) else 0


def _facts(result: Bridge) -> list[tuple[str, str]]:
    return [
        ("scenario", result.scenario),
        ("seeds", f"{result.seeds:,}"),
        ("clients", f"{result.members:,}"),
        ("partitions", f"{result.partitions:,}"),
        ("virtual time of a run", told(result.virtual_seconds)),
    ]


def _rows(result: Bridge) -> list[tuple[str, str, str]]:
    """Return the rows of the table, headings first."""
    first, second = result.protocols
    measures = [(name, text(first), text(second)) for name, text in _MEASURES.items()]
    return [("", first.name, second.name), *measures]


_MEASURES: Mapping[str, Callable[[Protocol], str]] = {
    "time without a consumer, of all": lambda one: f"{one.share_without_consumer:.2%}",
    "how often": lambda one: f"{one.gaps:,}",
    "how long: median": lambda one: told(one.median_s),
    "p99": lambda one: told(one.p99_s),
    "longest": lambda one: told(one.longest_s),
    "two at once, how often": lambda one: f"{one.overlaps:,}",
    "two at once, in all": lambda one: told(one.two_consumers_s),
    "invariants violated": lambda one: f"{one.violations:,}",
}


def _print(result: Bridge, report: Path | None) -> None:
    from rich.text import Text

    from fencepost.simulation.cli.terminal import Terminal

    out = Terminal()
    out.table(("", ""), [(Text(name, "dim"), value) for name, value in _facts(result)], headed=False)
    out.say()
    head, *rows = _rows(result)
    out.table(head, rows)
    if report is not None:
        out.say()
        out.say(f"Report: {report}")
