"""The machine of a run, as substitutes for clocks, randomness and sockets ask it."""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
from typing import Any

from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.places import refusal
from fencepost.simulation.world.processes import PROCESS, WorldProcess
from fencepost.simulation.world.readiness import VirtualEpoll, VirtualPoll, selected
from fencepost.simulation.world.sockets import VirtualSocket


class Machine:
    """The machine as the thread of a run sees it."""

    patient_reads = 10_000
    """Reads of the clock at one moment, after which each read takes `read_us`."""
    read_us = 1

    def __init__(self, loop: WorldLoop, draws: Draws) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.random = draws.random("machine")
        self.seeds = draws.random("machine/seeds")
        self._read_us = -1
        self._reads = 0

    @property
    def process(self) -> WorldProcess | None:
        """The process that runs; None in the test itself and in brokers."""
        return PROCESS.get()

    def now_us(self) -> int:
        """Microseconds since the run began.

        A program that asks again and again waits for the clock to move on, so it then does.
        """
        here_us = self.loop.here_us
        if here_us != self._read_us:
            self._read_us, self._reads = here_us, 0
        self._reads += 1
        if self._reads > self.patient_reads and self.process is not None:
            self._read_us = here_us + self.read_us  # a thread that reads meanwhile waits for the same clock
            self.loop.sleep_blocking(self.read_us / 1_000_000)
            self._read_us = self.loop.here_us
        return here_us

    def urandom(self, size: int) -> bytes:
        """Return random bytes."""
        return self.random.randbytes(size)

    def seed(self) -> int:
        """Return the seed of a generator of random numbers."""
        return self.seeds.getrandbits(64)

    def seed_generators(self) -> None:
        """Seed the generators that all modules share: Python's, and numpy's if it is there."""
        self.shared_seed = self.seeds.getrandbits(64)
        random.seed(self.shared_seed)
        self.seed_numpy()

    def seed_numpy(self) -> None:
        """Seed numpy's shared generator, which a program may import in the middle of a run."""
        if (generator := numpy_generator()) is not None:
            generator.seed(self.shared_seed % 2**32)

    def connect_sqlite(self, connect: Any, *args: Any, **options: Any) -> sqlite3.Connection:
        """Return a new connection to a database."""
        connection: sqlite3.Connection = connect(*args, **options)
        return connection

    def socket(self, *arguments: Any, **options: Any) -> Any:
        """Return a new socket on the host of the program that runs."""
        return VirtualSocket(*arguments, loop=self.loop, host=self.loop.network.here(), **options)

    def poll(self) -> Any:
        """Return what `select.poll` does."""
        return VirtualPoll(self.loop)

    def socketpair(self) -> Any:
        """Refuse: no thread or process could be at the other side."""
        tcp = "asyncio's streams between hosts of the world"
        raise refusal("socket.socketpair()", "hosts speak TCP only", tcp)

    def epoll(self) -> Any:
        """Return what `select.epoll` does."""
        return VirtualEpoll(self.loop)

    def select(self, wanted: tuple[Any, Any, Any], timeout: float | None) -> Any:
        """Do what `select.select` does."""
        return selected(self.loop, wanted, timeout)

    def now_ns(self) -> int:
        """The same in nanoseconds."""
        return self.now_us() * 1_000


def numpy_generator() -> Any:
    """Return the module with numpy's shared generator; None if nothing has imported it."""
    return sys.modules.get("numpy.random")


MACHINES: list[Machine] = []
"""The machine of this process, if a run is under way."""


def machine_here() -> Machine | None:
    """Return the machine of the run of this thread; None if there is no run."""
    if MACHINES and MACHINES[-1].thread == threading.get_ident():
        return MACHINES[-1]
    return None
