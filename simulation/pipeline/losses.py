"""Executors that a cluster lost on the way: Spark gives their tasks to others, and says nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fencepost.simulation.pipeline.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LostExecutor(msgspec.Struct, frozen=True, kw_only=True):
    """One executor that is gone."""

    executor: str
    """Spark's number of it."""
    host: str
    reason: str
    """What Spark's driver knows about it."""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was lost on the way, and done again."""

    executors: list[LostExecutor] = []
    runs_again: int = 0
    """Runs that a second attempt did, as the executor or the Python process of the first was lost."""

    @property
    def lines(self) -> list[str]:
        """The same for people: nothing if nothing was lost."""
        lines = [
            f"Executor {each.executor} on {each.host} was lost: {each.reason}" for each in self.executors
        ]
        if self.runs_again:
            process = "its executor" if self.executors else "its process"
            lines.append(f"{self.runs_again:,} runs were done again: each had lost {process}.")
        elif lines:
            lines.append("No run had to be done again.")
        return lines


class Losses:
    """Watches a session for what it loses from now on."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._before = _lost(spark).keys()
        self.runs_again = 0

    def found(self) -> Lost:
        """Return what was lost since, executors in the order of their numbers."""
        lost = _lost(self._spark)
        names = sorted(lost.keys() - self._before, key=lambda name: (len(name), name))
        return Lost(executors=[lost[name] for name in names], runs_again=self.runs_again)


def _lost(spark: SparkSession) -> dict[str, LostExecutor]:
    """Return all executors of the session that are gone, by their numbers."""
    context: Any = spark.sparkContext
    if is_local(context.master):
        return {}
    found = {}
    listed = context._jsc.sc().statusStore().executorList(False)
    for index in range(listed.size()):
        each = listed.apply(index)
        if not each.isActive():
            reason = each.removeReason()
            first = reason.get().strip().splitlines() if reason.isDefined() else []
            host = str(each.hostPort()).rpartition(":")[0]
            found[str(each.id())] = LostExecutor(
                executor=str(each.id()), host=host, reason=first[0] if first else "no reason is known"
            )
    return found
