"""Hooks of mkdocs for `make site`: the repository's own pages, the API reference, diagrams, and llms.txt."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "build" / "site-source" / "fencepost"
"""The package as mkdocstrings reads it: the four folders under the names that they are imported by."""

TOP = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages of the repository's top, and their names on the site."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ARROW = re.compile(r"^    (\S+) --> (\S+) : (.+)$", re.MULTILINE)
ENDS = re.compile(r"^    (\S+) --> (\S+)$", re.MULTILINE)
_ROW, _TRACK = 20, 15
"""Heights of a line of text, and the distance of two tracks, in pixels."""
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)

API: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "tests": (
        "API: tests",
        "The Kafka that runs inside a test process. [EmbeddedKafka](../embedded.md) explains it.",
        (
            *(
                "EmbeddedKafka",
                "AsyncEmbeddedKafka",
                "KafkaProxy",
                "Group",
                "AsyncGroup",
                "GroupMember",
                "ReadRecord",
            ),
            *("Fault", "FaultAction", "FaultState", "KafkaScope"),
            *("Violation", "Broker", "ApiKey", "ErrorCode", "GroupCoordinatorConfig"),
        ),
    ),
    "simulation": (
        "API: simulation",
        "Runs of scenarios in virtual time. [Scenarios](../scenarios.md) explains them.",
        (
            *("simulate", "load", "RunResult", "ParquetTrace", "failure_of", "replay", "shrink"),
            *("Campaign", "TooManyEvents"),
        ),
    ),
    "world": (
        "API: your own programs",
        "Your own asyncio programs in virtual time. [Your own programs](../world.md) explains them.",
        (
            "simulated",
            "run_simulated",
            "SimulatedWorld",
            "Program",
            "HttpStub",
            "HttpRequest",
            "WorldResult",
            "SimulationFailed",
            "FailureGone",
        ),
    ),
    "clients": (
        "API: the consumer",
        "An asyncio consumer for KIP-848. [The consumer](../consumer.md) explains it.",
        ("KIP848Consumer", "AuthenticationError"),
    ),
    "streams": (
        "API: Streams applications",
        "Worker threads for Kafka. [Streams applications](../streams.md) explains them.",
        (
            *("StreamsApp", "GlobalThread", "StreamClientState", "StreamThreadState"),
            *("StreamThreadExceptionResponse", "StreamsError", "IllegalStreamsState", "MissingSourceTopic"),
            "TaskAssignmentFailed",
        ),
    ),
    "rabbitmq": (
        "API: RabbitMQ streams",
        "A RabbitMQ node inside a test process, and a single active consumer. "
        "[RabbitMQ streams](../rabbit-streams.md) and [single active consumers](../sac.md) explain them.",
        (
            *("EmbeddedRabbitStream", "AsyncEmbeddedRabbitStream", "StreamGroup", "AsyncStreamGroup"),
            *("StreamConsumer", "StreamMessage", "SingleActiveConsumer", "RabbitTransport", "SacListener"),
            *("SacSubscription", "OffsetKind", "OffsetSpecification", "ConsumerClosed"),
            *("SubscriptionRefused", "UnreadableMessages"),
        ),
    ),
    "brokers": (
        "API: real brokers",
        "A real Kafka on this machine, and scenarios on it. [Clusters](../clusters.md) and "
        "[chaos](../chaos.md) explain them.",
        ("RealCluster", "run_real"),
    ),
    "errors": (
        "API: errors",
        "Errors that several parts raise. Their texts say what was expected, and what to do.",
        (
            *("FencepostError", "EnvironmentLacks", "ProtocolError", "InconsistentRecord", "BrokenJournal"),
            "ShadowDiverged",
        ),
    ),
}
"""Pages of the API reference: title, introduction, names."""

_markdown: dict[str, str] = {}


def public_names() -> dict[str, str]:
    """Return the module of each public name, as `public/__init__.py` lists them."""
    for node in ast.parse((ROOT / "public" / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise PluginError("public/__init__.py has no table _MODULES")


def on_startup(*, command: str, dirty: bool) -> None:
    """Lay the package out for mkdocstrings, which reads sources and looks for them before `on_config`."""
    shutil.rmtree(SOURCE.parent, ignore_errors=True)
    shutil.copytree(ROOT / "public", SOURCE)
    for folder in ("coordinator", "member", "simulation"):
        (SOURCE / folder).symlink_to(ROOT / folder)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's top and of the API."""
    for name, target in TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, page in TOP.items():
            text = text.replace(f"]({other})", f"]({page})")
        files.append(File.generated(config, target, content=text))
    modules = public_names()
    listed = [name for _, _, names in API.values() for name in names]
    if sorted(listed) != sorted(modules):
        raise PluginError(
            f"docs/site_hooks.py: API differs from the public names: {set(listed) ^ set(modules)}"
        )
    for page, (title, about, names) in API.items():
        parts = [f"# {title}", about, *(f"::: fencepost.{modules[name]}.{name}" for name in names)]
        files.append(File.generated(config, f"api/{page}.md", content="\n\n".join(parts) + "\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fit links that lead out of docs/, and draw diagrams: browsers need a library for Mermaid."""
    folder = PurePosixPath(page.file.src_uri).parent

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        outside = re.match(r"(\.\./)+", target)
        if image or outside is None or len(outside[0]) // 3 <= len(folder.parts):
            return match[0]
        name = target[outside.end() :]
        if name in TOP:
            return f"[{text}]({'../' * len(folder.parts)}{TOP[name]}{anchor or ''})"
        return text

    written = LINK.sub(link, markdown)
    written = MERMAID.sub(lambda match: "\n".join([*_drawing(match[1]), *_table(match[1])]), written)
    _markdown[page.file.src_uri] = written
    return written


def _drawing(diagram: str) -> Iterator[str]:
    """Draw a Mermaid state diagram: boxes in a column, a line for each way out, and a track for each target.

    A line leads from a state to the track of its target, and the track to the target's box. The colours are
    those of the site's theme, and a hue for each target.
    """
    arrows, ends = ARROW.findall(diagram), ENDS.findall(diagram)
    states = list(dict.fromkeys(name for source, target, _ in arrows for name in (source, target)))
    right = 40 + 9 * max(map(len, states))
    tracks = right + 30 + round(6.6 * max(len(events) for *_, events in arrows))
    boxes, lines = [], []
    heads: dict[str, int] = {}
    y = 10
    for state in states:
        ways = [(target, events) for source, target, events in arrows if source == state]
        height = 30 + _ROW * len(ways)
        heads[state] = y + 14
        last = " last" if (state, "[*]") in ends else ""
        boxes.append(
            f'<rect class="state{last}" x="20" y="{y}" width="{right - 20}" height="{height}" rx="6"/>'
        )
        boxes.append(f'<text class="name" x="{(20 + right) / 2}" y="{y + height / 2 + 4}">{state}</text>')
        if ("[*]", state) in ends:
            boxes.append(f'<circle cx="8" cy="{y + height / 2}" r="5"/>')
        for number, (target, events) in enumerate(ways):
            at = y + 36 + _ROW * number
            lines.append((target, at, events))
            boxes.append(f'<text x="{right + 10}" y="{at - 3}">{events}</text>')
        y += height + 14
    for number, state in enumerate(
        targets := [state for state in states if any(state == each for each, *_ in lines)]
    ):
        x, head = tracks + _TRACK * number, heads[state]
        rows = [at for target, at, _ in lines if target == state]
        path = f"M{x} {min(head, *rows)}V{max(head, *rows)}M{x} {head}H{right + 8}" + "".join(
            f"M{right} {at}H{x}" for at in rows
        )
        hue = 360 * number // len(targets)
        dots = "".join(f'<circle cx="{x}" cy="{at}" r="3"/>' for at in rows)
        boxes.append(
            f'<g style="--hue: {hue}"><path d="{path}"/>'
            f'<path class="head" d="M{right} {head}l9 -4.5v9z"/>{dots}</g>'
        )
    width = tracks + _TRACK * len(targets)
    label = "State diagram; the table below has the same arrows"
    size = f'viewBox="0 0 {width} {y}" width="{width}" height="{y}"'
    yield f'<div class="machine"><svg {size} role="img" aria-label="{label}">'
    yield from boxes
    yield "</svg></div>\n"


def _table(diagram: str) -> Iterator[str]:
    """The arrows of a Mermaid state diagram as a table."""
    yield "| from | to | on |\n|---|---|---|"
    for source, target, events in ARROW.findall(diagram):
        yield f"| {source} | {target} | {events} |"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Refuse a page on which a block was not understood: GitHub reads some Markdown that mkdocs does not."""
    prose = re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.DOTALL)
    for sign in ("```", "|---", "\n- ", "**"):
        if sign in prose:
            around = prose[max(0, prose.index(sign) - 80) : prose.index(sign) + 80]
            raise PluginError(f"{page.file.src_uri}: {sign!r} is left in the page: {around!r}")
    return html


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the order of the pages for llms.txt."""
    config.extra["sections"] = nav.items
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, and each page's Markdown next to it."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section in config.extra["sections"]:
        lines += ["", f"## {section.title}", ""]
        for page in _pages(section):
            name = page.file.src_uri
            target = site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_markdown[name], encoding="utf-8")
            lines.append(f"- [{page.title}]({config.site_url or ''}{name}): {_summary(_markdown[name])}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pages(item: Any) -> Iterator[Page]:
    if item.is_page:
        yield item
    for child in item.children or ():
        yield from _pages(child)


def _summary(markdown: str) -> str:
    """The first sentence after the title."""
    text = FENCED.sub("", markdown)
    paragraphs = (each.strip() for each in text.split("\n\n"))
    first = next((each for each in paragraphs if each and each[0] not in "#<|!:-"), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(":")
