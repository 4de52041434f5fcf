"""Views of single runs: each is computed from the rows of one run alone, in the task that has these rows.

Each is a file of DuckDB's SQL in `runs/`; `{NAME}` in it stands for another view, or for the rows (`trace`).
A task has all rows of its runs, so only the results of views are sent between tasks.
"""

from __future__ import annotations

import functools
import hashlib
import string
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Final

from fencepost.member.classic.states import ClassicMemberState
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.member.sac.states import SacMemberState
from fencepost.simulation.analyses import situations
from fencepost.simulation.trace.schema import GENERATION, LOG_WORLD

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

RUN_VIEWS: Final[Mapping[str, str]] = {
    "traced": (
        "scenario string, parameters string, began_at timestamp, run_end_us long, begun boolean, "
        "violations long"
    ),
    "incident": "seq long, t_us long, actor string, incident string, name string",
    "rebalance": (
        "`group` string, rebalance long, begin_seq long, begin_us long, end_us long, settled string, "
        "cause string, epochs long, heartbeats long, bytes long, seconds double, forms boolean"
    ),
    "formation": "seconds double",
    "handover": (
        "topic string, partition int, actor string, before_actor string, seq long, from_us long, "
        "cause string, first boolean, apart boolean, gap_us long, shared_us long"
    ),
    "sharing": "seq long, topic string, partition int, shared_us long, opened_by string",
    "owning": "as_seen_by string, owners long, count long, us long, max_us long",
    "sac_gap": "as_seen_by string, from_us long, until_us long, last boolean",
    "move": "`group` string, rebalance long, begin_us long, moved long, first long, least long",
    "recovery": (
        "topic string, partition int, from_us long, cause string, lag long, caught_up_us long, again long"
    ),
    "escalation": "client string, answer string, request long, asked_us long, end_us long",
    "fencing": "name string, fenced_us long, stable_us long",
    "stay": "state string, visits long, us long, max_us long",
    "transition": "machine string, state_from string, state_to string, stayed_us long",
    "situation": "situation string, reached long",
}
"""The views that tables use, with their columns after `run_id`, as Spark declares them. A view that only
other views of a run use is a file without an entry here."""

MEMORY: Final = "2GB"
"""The memory limit of DuckDB in one task. It writes the rest to disk."""


class RunViews:
    """The views over the rows of some runs; each is computed on first use."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, trace: str = "trace") -> None:
        """`trace` names a table or view of the connection that has all rows of these runs."""
        self._connection = connection
        self._made: dict[str, str] = {"trace": trace}

    def view(self, name: str) -> pa.Table:
        """The rows of a view."""
        names = ", ".join(f'"{each}"' for each in columns_of(name))
        rows = f"SELECT {names} FROM {self._table(name)}"
        return self._connection.sql(rows).to_arrow_table()

    def _table(self, name: str) -> str:
        if name not in self._made:
            query = _filled(name, self._table)
            self._connection.execute(f'CREATE OR REPLACE TEMP TABLE "view_{name}" AS {query}')
            self._made[name] = f'"view_{name}"'
        return self._made[name]


def ddl_of_view(name: str) -> str:
    """The columns of a view, as Spark declares them."""
    return f"run_id string, {RUN_VIEWS[name]}"


def columns_of(name: str) -> list[str]:
    """The names of a view's columns."""
    return [each.split()[0].strip("`") for each in ddl_of_view(name).split(", ")]


def empty_view(name: str) -> pa.Table:
    """Return a view without rows."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us"),
    }
    declared = (each.split()[1] for each in ddl_of_view(name).split(", "))
    fields = zip(columns_of(name), (types[each] for each in declared), strict=True)
    return pa.schema(list(fields)).empty_table()


@functools.cache
def version() -> str:
    """Return a version that changes with every query of a run's view. Kept results of another version are
    useless."""
    texts = {name: "" for name in ("trace", *_TEXTS)}
    found = hashlib.sha256()

    def add(name: str) -> str:
        if name not in texts:
            texts[name] = _filled(name, add)
        return texts[name]

    for name, columns in RUN_VIEWS.items():
        found.update(f"{name} {columns} {add(name)}".encode())
    return found.hexdigest()


def _filled(name: str, table: Callable[[str], str]) -> str:
    text = resources.files(__package__).joinpath("runs", f"{name}.sql").read_text(encoding="utf-8")
    fields = {field for _, field, _, _ in string.Formatter().parse(text) if field}
    return text.format(**{each: _TEXTS[each]() if each in _TEXTS else table(each) for each in fields})


ACTIVE_LIKE: Final = "('CONNECTED_ACTIVE', 'CONNECTED_DEACTIVATING', 'DISCONNECTED_ACTIVE')"
"""The states in which the coordinator counts a single active consumer as having its stream, or as possibly
having it."""

_SHARED: Final = frozenset({*ConsumerMemberState, *ClassicMemberState})
SINGLE_ACTIVE_STATES: Final = str(tuple(str(each) for each in SacMemberState if each not in _SHARED))
"""The states that only single active consumers have, as a list of SQL."""

_TEXTS: Final[Mapping[str, Callable[[], str]]] = {
    "active_like": lambda: ACTIVE_LIKE,
    "single_active_states": lambda: SINGLE_ACTIVE_STATES,
    "log_world": lambda: LOG_WORLD,
    "generation": lambda: GENERATION,
    "situation_counts": situations.counts,
    "situation_names": situations.names,
}
"""Texts that a query may name in braces, next to views."""
