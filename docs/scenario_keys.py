"""The tables of scenario files: each key, with its values, its default and its text."""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from fencepost.simulation.scenarios import sac, scenario, streams
from fencepost.simulation.scenarios.values import Duration, Moment, Span

HEAD = "| key | value | default | meaning |\n|---|---|---|---|"

KEYS_WITHOUT_TEXT = {
    "Scenario.name": "The name in reports. Default: the file's name.",
    "Scenario.summary": "One line for `fencepost scenarios`.",
    "Scenario.group": "A table, below.",
    "Scenario.topics": "At least one table `[[topics]]`, below.",
    "Scenario.cluster": "A table, below.",
    "Scenario.network": "A table, below.",
    "Scenario.application": "A table, below.",
    "Scenario.transactions": "A table, below.",
    "Scenario.steps": "Tables `[[steps]]`: what operators do.",
    "Scenario.faults": "Tables `[[faults]]`: failures and delays.",
    "SacScenario.protocol": "Marks the kind of the file.",
    "SacScenario.name": "The name in reports. Default: the file's name.",
    "SacScenario.summary": "One line for `fencepost scenarios`.",
    "SacScenario.group": "A table, below.",
    "SacScenario.streams": "At least one table `[[streams]]`, below.",
    "SacScenario.cluster": "A table, below.",
    "SacScenario.network": "A table, below.",
    "SacScenario.application": "A table, below.",
    "SacScenario.steps": "Tables `[[steps]]` of the kinds `rolling-restart` and `scale`.",
    "SacScenario.faults": "Tables `[[faults]]`: failures and delays.",
    "SacGroup.members": "Number of clients at the start.",
    "SacStream.name": "The name.",
    "SacCluster.nodes": "Number of nodes.",
    "SacCluster.disconnected_timeout": (
        "Time that a lost consumer may block its group before it is forgotten."
    ),
    "StreamsScenario.protocol": "Marks the kind of the file.",
    "StreamsScenario.name": "The name in reports. Default: the file's name.",
    "StreamsScenario.summary": "One line for `fencepost scenarios`.",
    "StreamsScenario.group": "A table, below.",
    "StreamsScenario.topics": "At least one table `[[topics]]`, below.",
    "StreamsScenario.cluster": "A table, below.",
    "StreamsScenario.network": "A table, below.",
    "StreamsScenario.application": "A table, below.",
    "StreamsScenario.faults": "Tables `[[faults]]`: failures and delays.",
    "ScenarioStreamsGroup.id": "The group id, which is the application id.",
    "StreamsApplication.max_poll_records": "Maximum number of records that one poll returns.",
    "StreamsApplication.commit_interval": "Time between two commits of processed records.",
    "ScenarioGroup.id": "The group's id.",
    "ScenarioGroup.members": "Number of members at the start.",
    "ScenarioGroup.assignor": (
        "The assignor that members request: `uniform` or `range`. Default: the coordinator's."
    ),
    "ScenarioTopic.name": "The name.",
    "ScenarioTopic.partitions": "Number of partitions.",
    "ScenarioCluster.brokers": "Number of brokers that can coordinate.",
    "ScenarioNetwork.request_timeout": (
        "A member gives up a request after this time. If eight messages may take longer, nothing "
        "judges whether the group settles."
    ),
    "ScenarioApplication.max_poll_records": "Maximum number of records that one poll returns.",
    "ScenarioApplication.auto_commit_interval": "Time between two commits of processed records.",
    "ChangeSubscription.topics": "The new topics. The file declares them or a step creates them.",
    "ChangeSubscription.pattern": "The new regular expression.",
    "Scale.members": "Number of members after the step.",
    "at": "Time of the step or fault.",
    "over": (
        "Duration of the step, cut into equal parts. One member or batch acts at the start of "
        "each part: four in 40s act at 0, 10, 20 and 30 s."
    ),
    "name": "The topic.",
    "partitions": "Number of partitions.",
    "records_per_second": "Records per second over all partitions. With 0 there is no data plane.",
    "lasts": "Duration.",
    "share": "Share of the members.",
    "probability": "Probability that a message is lost.",
    "returns": "Probability that the process starts again.",
    "from": "With `every`: earliest time of the first one.",
    "until": "With `every`: latest time of the last one.",
}


def texts_of(owner: type) -> dict[str, str]:
    """The text under each field of a class."""
    body = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not isinstance(text, ast.Expr) or not isinstance(text.value, ast.Constant):
            continue
        name = field.target if isinstance(field, ast.AnnAssign) else getattr(field, "targets", [None])[0]
        if isinstance(name, ast.Name):
            texts[name.id] = " ".join(str(text.value.value).split())
    return texts


def inherited_texts(kind: type) -> dict[str, str]:
    """The texts of a class and of those that it extends."""
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith("fencepost."):
            texts |= texts_of(owner)
    return texts


def kind_of_value(hint: Any) -> str:
    """A key's type, in the words of the page."""
    if get_origin(hint) is Annotated:
        base, *rest = get_args(hint)
        limits = next((meta for meta in rest if isinstance(meta, msgspec.Meta)), None)
        return kind_of_value(base) if limits is None else _limited(base, limits)
    if get_origin(hint) in (typing.Union, UnionType):
        return " or ".join(kind_of_value(each) for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return "tables" if _is_table(inner) else f"list of {kind_of_value(inner)}s"
    if get_origin(hint) is dict:
        return "table of settings"
    if get_origin(hint) is typing.Literal:
        return " or ".join(f'`"{each}"`' for each in get_args(hint))
    if _is_table(hint):
        return "table"
    names = {bool: "true or false", int: "number", float: "number", str: "text"}
    return names.get(hint) or {Duration: "duration", Moment: "moment", Span: "span"}[hint]


def _limited(base: Any, meta: msgspec.Meta) -> str:
    low = meta.ge if meta.ge is not None else meta.gt
    high = meta.le if meta.le is not None else meta.lt
    if base is str or low is None or high is None:
        return kind_of_value(base)
    above = "above " if meta.gt is not None else ""
    return f"{above}{low:,} to {high:,}"


def _is_table(hint: Any) -> bool:
    if get_origin(hint) in (typing.Union, UnionType):
        return all(_is_table(each) for each in get_args(hint))
    return (
        isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in (Duration, Moment, Span)
    )


def shown_default(field: msgspec.structs.FieldInfo) -> str:
    """A key's default, as a file would have it."""
    value = field.default
    if value is msgspec.NODEFAULT:
        return "required" if field.default_factory is msgspec.NODEFAULT else ""
    if value is None or value == () or (isinstance(value, msgspec.Struct) and _is_table(type(value))):
        return ""
    if isinstance(value, Span):
        return f"`{_span(value)}`"
    if isinstance(value, Moment):
        return f'`"{value.share:.0%}"`' if value.share is not None else f'`"{Duration(value.us)}"`'
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str | Duration) else f"`{value:,}`"


def _span(span: Span) -> str:
    low, high = Duration(span.low), Duration(span.high)
    match span.kind:
        case "constant":
            return f'"{low}"'
        case "uniform":
            return f'"{low}..{high}"'
        case "lognormal":
            return f'{{median = "{low}", p99 = "{high}"}}'
        case _:
            return f'{{mean = "{low}"}}'


def keys(kind: type[msgspec.Struct], skip: frozenset[str] = frozenset()) -> Iterator[str]:
    """A table of a struct's keys."""
    hints = get_type_hints(kind, include_extras=True)
    texts = inherited_texts(kind)
    yield HEAD
    for field in msgspec.structs.fields(kind):
        if field.encode_name in skip or field.name in getattr(kind, "unused", ()):
            continue
        named = (f"{owner.__name__}.{field.name}" for owner in kind.__mro__)
        known = (KEYS_WITHOUT_TEXT[name] for name in named if name in KEYS_WITHOUT_TEXT)
        text = texts.get(field.name) or next(known, None) or KEYS_WITHOUT_TEXT[field.encode_name]
        value = kind_of_value(hints[field.name])
        yield f"| `{field.encode_name}` | {value} | {shown_default(field)} | {text} |"


def keys_by_table(whole: type[msgspec.Struct], tables: Mapping[str, type[msgspec.Struct]]) -> Iterator[str]:
    """The keys of a whole file, then those of its tables under their headings."""
    yield from keys(whole)
    for heading, kind in tables.items():
        yield f"\n### `{heading}`\n\n{inspect.getdoc(kind)}\n"
        yield from keys(kind)


def scenario_keys() -> Iterator[str]:
    """The keys of a scenario file, table by table."""
    tables = {
        "[group]": scenario.ScenarioGroup,
        "[[topics]]": scenario.ScenarioTopic,
        "[cluster]": scenario.ScenarioCluster,
        "[network]": scenario.ScenarioNetwork,
        "[application]": scenario.ScenarioApplication,
        "[transactions]": scenario.ScenarioTransactions,
    }
    yield from keys_by_table(scenario.Scenario, tables)


def sac_keys() -> Iterator[str]:
    """The keys of a scenario file of single active consumers, table by table."""
    tables = {
        "[group]": sac.SacGroup,
        "[[streams]]": sac.SacStream,
        "[cluster]": sac.SacCluster,
        "[network]": sac.SacNetwork,
        "[application]": sac.SacApplication,
    }
    yield from keys_by_table(sac.SacScenario, tables)


def streams_keys() -> Iterator[str]:
    """The keys of a scenario file of a Streams application, table by table."""
    tables = {
        "[group]": streams.ScenarioStreamsGroup,
        "[[topics]]": scenario.ScenarioTopic,
        "[cluster]": streams.StreamsCluster,
        "[network]": scenario.ScenarioNetwork,
        "[application]": streams.StreamsApplication,
    }
    yield from keys_by_table(streams.StreamsScenario, tables)


def variants(union: Any, shared: type[msgspec.Struct]) -> Iterator[str]:
    """The kinds of steps or faults: what is common, then each with its own keys."""
    common = frozenset(field.encode_name for field in msgspec.structs.fields(shared))
    yield HEAD
    yield "| `kind` | text | required | One of those below. |"
    yield from list(keys(shared))[1:]
    for kind in get_args(union):
        yield f"\n#### `{kind.__struct_config__.tag}`\n\n{inspect.getdoc(kind)}"
        rows = list(keys(kind, common))
        if len(rows) > 1:
            yield ""
            yield from rows
