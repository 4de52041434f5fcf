"""Writes the parts of the docs that the code knows best: machines, scenario keys, commands, traces.

`make docs` runs it. A part lies between the lines `<!-- generated: NAME -->` and `<!-- end -->`. The texts of
invariants and mutants are written into the tables that list them.

With `--examples` it also runs the commands of console blocks and shows their output, hunts the mutants, runs
the library's scenarios to see what they reach, and walks through the explorer's small worlds.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import cyclopts
from docstring_parser import parse_from_object
from machine_terms import machines
from results import fidelity
from scenario_keys import sac_keys, scenario_keys, streams_keys, variants

from fencepost.coordinator.codec.registry import REGISTRY
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.member.machines import (
    DRAFTS,
    KAFKA_4_CLIENT,
    KAFKA_4_THREAD,
    MachineDifference,
    verdict,
)
from fencepost.simulation.analyses.catalogue import TABLES
from fencepost.simulation.analyses.measures import MEASURES
from fencepost.simulation.cli.commands import COMMANDS
from fencepost.simulation.judge import consumer_model
from fencepost.simulation.judge.catalogue import INVARIANTS
from fencepost.simulation.lab.clusters.compose import repository_services
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, KafkaVersion
from fencepost.simulation.lab.conform.deviations import DEVIATIONS
from fencepost.simulation.lab.conform.exercised import NAMES, WITHOUT_REQUEST
from fencepost.simulation.lab.coverage import coverage_lines, library_coverage
from fencepost.simulation.lab.explorer.explore import explore
from fencepost.simulation.lab.mutation.matrix import MatrixRow, by_rule, read_matrix
from fencepost.simulation.mutants.mutant import UNREPORTED
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.scenarios import sac, scenario, streams
from fencepost.simulation.trace import schema

DOCS = Path(__file__).parent
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SERVERS = re.compile("fencepost (?:serve|proxy) ")
NAMED_FILE = re.compile(r"^```\w+\n(# ([\w-]+\.(?:toml|py|ini))\n.*?)^```$", re.DOTALL | re.MULTILINE)
"""A file that commands of its page read; its first line names it."""
PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
REACH = re.compile(r"(<!-- reached: library -->\n).*?(<!-- end -->)", re.DOTALL)
"""What the library's scenarios reach: it takes a minute, and is renewed with the examples too."""
EXPLORED = re.compile(r"(<!-- explored: worlds -->\n).*?(<!-- end -->)", re.DOTALL)
"""The sizes of worlds that are walked through in two minutes: they are renewed with the examples."""
MATRIX = DOCS.parent / "tests" / "vectors" / "kill-matrix.gz"
COMPOSE_FILE = DOCS.parent / "docker-compose.yml"
SERVICES = re.compile(r"(  # generated: Kafka\n).*?(  # end\n)", re.DOTALL)


def columns() -> Iterator[str]:
    """The trace's columns."""
    yield "| column | type | of the kinds | meaning |\n|---|---|---|---|"
    for name, column in schema.COLUMNS.items():
        yield f"| `{name}` | {column.type.ddl} | {_kinds_of(name)} | {column.meaning} |"


def _kinds_of(column: str) -> str:
    using = set(schema.kinds_of(column))
    others = [kind for kind in schema.RowKind if kind not in using]
    if len(others) < len(using):
        return "all" + (f" except {', '.join(f'`{kind}`' for kind in others)}" if others else "")
    return ", ".join(f"`{kind}`" for kind in schema.RowKind if kind in using)


def kinds() -> Iterator[str]:
    """The trace's kinds of rows."""
    yield "| kind | what happened | `actor` | other columns |\n|---|---|---|---|"
    for kind in schema.RowKind:
        meanings = "; ".join(f"`{name}`: {meaning}" for name, meaning in kind.columns.items())
        yield f"| `{kind}` | {kind.event} | {kind.actor} | {meanings} |"


def commands() -> Iterator[str]:
    """Each command with its arguments and options, as cyclopts reads them."""
    for command in COMMANDS:
        function = pkgutil.resolve_name(command.function)
        yield f"## `fencepost {command.name}`\n\n{inspect.getdoc(function)}\n"
        yield "| argument or option | default | meaning |\n|---|---|---|"
        for parameter, hint in _parameters(function):
            yield _argument(parameter, hint)
        yield ""


def _parameters(function: Callable[..., object]) -> Iterator[tuple[inspect.Parameter, Any]]:
    """The parameters of a command with their annotations; a group of options is that of its class."""
    hints = get_type_hints(function, include_extras=True)
    texts = {each.arg_name: each.description for each in parse_from_object(function).params}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if dataclasses.is_dataclass(hint):
            yield from _parameters(hint)
        elif all(meta.parse is not False for meta in _metas(hint)):
            text = texts.get(parameter.name)
            yield parameter, Annotated[hint, cyclopts.Parameter(help=text)] if text else hint


def _metas(hint: Any) -> list[cyclopts.Parameter]:
    return [meta for meta in get_args(hint)[1:] if isinstance(meta, cyclopts.Parameter)]


def _argument(parameter: inspect.Parameter, hint: Any) -> str:
    metas = _metas(hint)
    text = next(meta.help for meta in metas if meta.help)
    named = next((meta.name for meta in metas if meta.name), None)
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        shown = f"[{parameter.name.upper().removesuffix('S')} …]"
    elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        optional = parameter.default is not inspect.Parameter.empty
        shown = f"[{parameter.name.upper()}]" if optional else parameter.name.upper()
    else:
        shown = f"{named[0]}" if named else f"--{parameter.name.replace('_', '-')}"
        opposite = next((meta.negative for meta in metas if meta.negative), None)
        if opposite:
            shown += f", {opposite[0]}"
        elif parameter.default is not False:
            shown += f" {_metavar(hint)}"
    default = parameter.default
    absent = default in ("", (), None, inspect.Parameter.empty) or default is False  # 0 is a value
    return f"| `{shown}` | {'' if absent else f'`{default}`'} | {text} |"


def _metavar(hint: Any) -> str:
    """What stands for an option's value."""
    if get_origin(hint) is Annotated:
        return _metavar(get_args(hint)[0])
    if get_origin(hint) is typing.Literal:
        return "\\|".join(map(str, get_args(hint)))
    if get_origin(hint) in (typing.Union, UnionType):
        return _metavar(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return " ".join(_metavar(each) for each in get_args(hint) if each is not ...)
    return {int: "N", Path: "PATH"}.get(hint, "VALUE")


def drafts() -> Iterator[str]:
    """Write the drafts' names of each state, and the arrows on which a draft and `consumer-member` differ."""
    names = [view.table.name for view in DRAFTS]
    yield "| state | " + " | ".join(f"in `{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for state in ConsumerMemberState:
        named = (", then ".join(view.names[state]) or "no such state" for view in DRAFTS)
        yield f"| {state} | " + " | ".join(named) + " |"
    for view in DRAFTS:
        yield f"\nArrows of `consumer-member` that `{view.table.name}` does not have:\n"
        yield from _reasons(view.differences)
        if view.untaken:
            yield f"\nArrows of `{view.table.name}` that `consumer-member` does not take:\n"
            yield from _reasons(view.untaken)


def _reasons(differences: Sequence[MachineDifference]) -> Iterator[str]:
    for difference in differences:
        steps = "; ".join(f"{step.source} → {step.target} ({step.event})" for step in difference.steps)
        yield f"- {difference.reason} {steps}."


def kafka_4() -> Iterator[str]:
    """Where the machines of Kafka 4.x and ours part."""
    yield "| machine | move | ours | Kafka 4.x | why |"
    yield "|---|---|---|---|---|"
    for view in (KAFKA_4_THREAD, KAFKA_4_CLIENT):
        for difference in view.differences:
            alike: dict[tuple[str, str], list[str]] = {}
            for move in difference.steps:
                verdicts = verdict(view.ours, move), verdict(view.table, move)
                alike.setdefault(verdicts, []).append(" → ".join(move))
            for (ours, kafkas), moves in alike.items():
                shown = "; ".join(moves)
                yield f"| `{view.ours.name}` | {shown} | {ours} | {kafkas} | {difference.reason} |"


def apis() -> Iterator[str]:
    """The APIs that the endpoint speaks."""
    yield "| key | API | versions |\n|---|---|---|"
    for api in sorted(REGISTRY.values()):
        name = "".join(word.capitalize() for word in api.key.name.split("_"))
        yield f"| {api.key.value} | {name} | {api.min_version} to {api.max_version} |"


def deviations() -> Iterator[str]:
    """The table of deviations that `fencepost conform` knows."""
    yield "| name | Kafka | fencepost | why |"
    yield "|---|---|---|---|"
    for one in DEVIATIONS:
        yield f"| {one.name} | {one.kafka} | {one.fencepost} | {one.why} |"


def consumer_groups() -> Iterator[str]:
    """The source of the model by which consumer groups are judged."""
    source = inspect.getsource(consumer_model)
    yield f"Consumer groups in {len(source.splitlines())} lines:\n\n```py\n{source}```"


def conformance_rules() -> Iterator[str]:
    """The tables of names of what `fencepost conform` exercises: by their beginnings, and one by one."""
    ends: dict[str, list[str]] = {}
    for name in NAMES.keys() - WITHOUT_REQUEST.keys():
        ends.setdefault(name.rsplit(".", max(1, name.count(".") - 1))[0], []).append(name)
    yield "| names begin with | and end with |"
    yield "|---|---|"
    for beginning, names in sorted(ends.items()):
        yield f"| {beginning} | {', '.join(sorted(name.removeprefix(f'{beginning}.') for name in names))} |"
    yield "\n| rule | what it says |"
    yield "|---|---|"
    for name, text in WITHOUT_REQUEST.items():
        yield f"| {name} | {text} |"


def analyses() -> Iterator[str]:
    """Each table of `fencepost analyze`, with its columns."""
    for table in TABLES.values():
        yield f"### `{table.name}`\n\n{table.summary}\n"
        yield "| column | holds | meaning |\n|---|---|---|"
        for column in table.columns:
            yield f"| `{column.name}` | {column.unit} | {column.text} |"
        yield ""


def measures() -> Iterator[str]:
    """What runs are compared by."""
    yield "| measure | in | a value is |\n|---|---|---|"
    for measure in MEASURES.values():
        yield f"| `{measure.name}` | {measure.unit} | {measure.text} |"


def on_a_real_broker() -> Iterator[str]:
    """Write the table of what is different if the coordinator is a real broker: a row for each difference."""
    yield "| on a real broker | invariants |"
    yield "|---|---|"
    alike: dict[str, list[str]] = {}
    for name, invariant in INVARIANTS.items():
        if invariant.on_real:
            note = invariant.on_real if invariant.judged_on_real else f"Not judged. {invariant.on_real}"
            alike.setdefault(note, []).append(f"`{name}`")
    for note, names in alike.items():
        yield f"| {note} | {', '.join(names)} |"


CLIENTS = {
    "aiokafka": "aiokafka",
    "confluent-kafka": "confluent-kafka, and with it librdkafka",
    "kafka-python": "kafka-python",
    "rstream": "rstream, on RabbitMQ streams",
    "pyspark": "Spark Structured Streaming with its own connector",
}
"""Clients of the test suite, by their names in requirements.lock."""


def kafka_versions() -> Iterator[str]:
    """The releases of Kafka that tests and commands start."""
    yield "| Kafka | runs |\n|---|---|"
    for version in get_args(KafkaVersion):
        usual = ", the default" if version == KAFKA_VERSION else ""
        yield f"| {version} | `chaos`, `compare` and `conform` start it{usual} |"


def client_versions() -> Iterator[str]:
    """The clients that the tests install, with their locked versions."""
    lock = (DOCS.parent / "requirements.lock").read_text(encoding="utf-8")
    modules = (DOCS.parent / "tests" / "conformance" / "go" / "go.mod").read_text(encoding="utf-8")
    yield "| client | version that runs |\n|---|---|"
    for name, shown in CLIENTS.items():
        (version,) = re.findall(rf"^{name}==([\w.]+)", lock, re.MULTILINE)
        yield f"| {shown} | {version} |"
    (version,) = re.findall(r"^require github.com/twmb/franz-go v([\w.]+)$", modules, re.MULTILINE)
    yield f"| franz-go | {version} |"


PARTS: dict[str, Callable[[], str]] = {
    "kafka-versions": lambda: "\n".join(kafka_versions()) + "\n",
    "client-versions": lambda: "\n".join(client_versions()) + "\n",
    "on-a-real-broker": lambda: "\n".join(on_a_real_broker()) + "\n",
    "commands": lambda: "\n".join(commands()),
    "analyses": lambda: "\n".join(analyses()),
    "measures": lambda: "\n".join(measures()) + "\n",
    "apis": lambda: "\n".join(apis()) + "\n",
    "consumer-groups": lambda: "\n".join(consumer_groups()) + "\n",
    "conformance-rules": lambda: "\n".join(conformance_rules()) + "\n",
    "deviations": lambda: "\n".join(deviations()) + "\n",
    "fidelity": lambda: "\n".join(fidelity.table()) + "\n",
    "kafka-4": lambda: "\n".join(kafka_4()) + "\n",
    "drafts": lambda: "\n".join(drafts()) + "\n",
    "machines": lambda: "\n".join(machines()),
    "scenario-keys": lambda: "\n".join(scenario_keys()) + "\n",
    "sac-keys": lambda: "\n".join(sac_keys()) + "\n",
    "sac-steps": lambda: "\n".join(variants(sac.SacStep, scenario._Step)) + "\n",
    "sac-faults": lambda: "\n".join(variants(sac.SacFault, scenario._Fault)) + "\n",
    "streams-keys": lambda: "\n".join(streams_keys()) + "\n",
    "streams-faults": lambda: "\n".join(variants(streams.StreamsFault, scenario._Fault)) + "\n",
    "steps": lambda: "\n".join(variants(scenario.Step, scenario._Step)) + "\n",
    "faults": lambda: "\n".join(variants(scenario.Fault, scenario._Fault)) + "\n",
    "mutants": lambda: "\n".join(mutants()) + "\n",
    "trace-columns": lambda: "\n".join(columns()) + "\n",
    "trace-kinds": lambda: "\n".join(kinds()) + "\n",
}


def mutants() -> Iterator[str]:
    """Write the table of mutants. The kill matrix has the runs in which an expected judge reports each."""
    rows = {row.name: row for row in read_matrix(MATRIX) if row.kind == "known"}
    yield "| mutant | bug | what it does | runs that show it | reported as |"
    yield "|---|---|---|---|---|"
    for name, mutant in MUTANTS.items():
        row = rows.get(name, MatrixRow(name=name, kind="known", runs=()))
        by: dict[str, set[int]] = {}
        for key, runs in by_rule(row, blind=False).items():
            by.setdefault(key.partition(" ")[0], set()).update(runs)
        hits = set().union(*(by.get(invariant, ()) for invariant in mutant.expected))
        counts = Counter({invariant: len(hits & runs) for invariant, runs in sorted(by.items())})
        shown = ", ".join(f"`{invariant}`" for invariant, count in counts.most_common() if count)
        bug = f"*{mutant.bug}*" if mutant.bug == UNREPORTED else mutant.bug
        yield f"| `{name}` | {bug} | {mutant.summary} | {len(hits)} of {len(row.runs)} | {shown} |"


WORLDS = (
    (1, 2, 2, False),
    (2, 2, 0, False),
    (2, 2, 1, False),
    (2, 2, 1, True),
    (2, 3, 1, False),
    (3, 2, 0, False),
    (3, 3, 0, False),
)
"""Members, partitions and faults of the worlds that the page lists, and whether members are static."""


def explored() -> Iterator[str]:
    """Walk through each world twice, and write the table of their sizes."""
    yield "| members | partitions | faults | states with `--full` | states | transitions | CPU seconds |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for members, partitions, faults, static in WORLDS:
        walk = functools.partial(
            explore, members=members, partitions=partitions, faults=faults, static=static
        )
        full = walk(full=True)
        began = time.process_time()
        reduced = walk()
        seconds = time.process_time() - began
        for each in (full, reduced):
            assert each.complete, f"{each.states} states of {members} members are not all"
            assert not each.violations, each.violations[0].message
        yield (
            f"| {members}{', static' if static else ''} | {partitions} | {faults} | {full.states:,} |"
            f" {reduced.states:,} | {reduced.transitions:,} | {seconds:.{0 if seconds > 1 else 1}f} |"
        )


CELLS: dict[tuple[str, str], dict[str, str]] = {
    ("invariant", "what must hold"): {name: one.summary for name, one in INVARIANTS.items()},
    ("rule", "what it says"): dict(NAMES),
}
"""Cells that the catalogues know, by the headings of the first column and of their own, and by their row."""


def with_cells(text: str) -> str:
    """Return a page whose tables of invariants and rules have the catalogues' texts."""
    headings: list[str] = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        cells = line.removesuffix(" |\n").removeprefix("| ").split(" | ")
        if not line.startswith("| "):
            headings = headings if line.startswith("|") else []
        elif not headings:
            headings = cells
        elif len(cells) == len(headings):
            name = cells[0].strip("`")
            for column, heading in enumerate(headings):
                if (headings[0], heading) in CELLS:
                    cells[column] = CELLS[headings[0], heading].get(name, cells[column])
            lines[number] = f"| {' | '.join(cells)} |\n"
    return "".join(lines)


def renewed(text: str) -> str:
    """A page with its generated parts, and its cells of the catalogues, as the code has them now."""
    return with_cells(PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}", text))


def rerun(text: str, folder: str) -> str:
    """A page whose console blocks show what their commands print now; servers are left alone."""

    def block(match: re.Match[str]) -> str:
        commands = [line[2:] for line in match[1].splitlines() if line.startswith("$ ")]
        if not all(command.startswith("fencepost ") for command in commands) or SERVERS.search(match[1]):
            return match[0]
        return f"```console\n{''.join(_session(command, folder) for command in commands)}```"

    for example in NAMED_FILE.finditer(text):
        Path(folder, example[2]).write_text(example[1], encoding="utf-8")
    return CONSOLE.sub(block, text)


def _session(command: str, folder: str) -> str:
    words = [sys.executable, "-m", "fencepost.simulation", *shlex.split(command)[1:]]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    # Both outputs in one pipe: in the order in which a terminal shows them.
    result = subprocess.run(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=environment,
    )
    lines = [line.rstrip() for line in result.stdout.rstrip("\n").splitlines()]
    return "\n".join([f"$ {command}", *lines, ""])


def with_services(text: str) -> str:
    """A compose file whose services of Kafka are as the settings have them now."""
    return SERVICES.sub(lambda match: f"{match[1]}{repository_services()}{match[2]}", text)


def main(arguments: Sequence[str]) -> int:
    """Renew the compose file and every page; with `--examples` the output of commands, too."""
    compose = COMPOSE_FILE.read_text(encoding="utf-8")
    if (written := with_services(compose)) != compose:
        COMPOSE_FILE.write_text(written, encoding="utf-8")
        sys.stdout.write(f"{COMPOSE_FILE.name} renewed\n")
    for page in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        before = page.read_text(encoding="utf-8")
        after = renewed(before)
        if "--examples" in arguments:
            with TemporaryDirectory() as folder:
                after = rerun(after, folder)
            after = REACH.sub(
                lambda match: "\n".join([match[1], *coverage_lines(library_coverage()), "", match[2]]), after
            )
            after = EXPLORED.sub(lambda match: "\n".join([match[1], *explored(), "", match[2]]), after)
        if after != before:
            page.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{page.name} renewed\n")
    if "--examples" in arguments:  # the pictures, where playwright and Chromium are
        subprocess.run([sys.executable, str(DOCS / "screenshots.py")], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
