"""One node of real Kafka for a whole test run: the first process to ask starts it, the last one ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from pathlib import Path

import msgspec

from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.processes import identify
from fencepost.simulation.lab.clusters.state import find
from tests.orphans import shared_by_the_run


@contextlib.contextmanager
def shared_node(run: str, folder: Path, make: Callable[[str], RealCluster]) -> Iterator[RealCluster]:
    """The node of this run. `make` is given the name of the cluster; `folder` is the same for all processes.

    Whoever uses it holds a lock, which the system takes from a process that dies.
    """
    name = f"tests-{run}"
    with (folder / f"{name}.turn").open("w") as turn, (folder / f"{name}.users").open("w") as users:
        with _locked(turn.fileno()):
            flock(users, LOCK_SH)
            cluster = _found_or_started(name, make)
        try:
            yield cluster
        finally:
            with _locked(turn.fileno()):
                flock(users, LOCK_UN)
                with contextlib.suppress(BlockingIOError):
                    flock(users, LOCK_EX | LOCK_NB)
                    cluster.stop()


def _found_or_started(name: str, make: Callable[[str], RealCluster]) -> RealCluster:
    folder = find(name)
    if folder is None:
        cluster = make(name)
        with shared_by_the_run():
            asyncio.run(cluster.start())
        folder = cluster.leave_up()
        # Should nobody come to stop it, whoever starts a cluster next does: not before this run has ended.
        owner = identify(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())
        folder.update(msgspec.structs.replace(folder.state, owner=owner))
    return RealCluster.attached(folder)


@contextlib.contextmanager
def _locked(file: int) -> Iterator[None]:
    flock(file, LOCK_EX)
    try:
        yield
    finally:
        flock(file, LOCK_UN)
