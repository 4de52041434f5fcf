"""The end of programs that tests have started: they are killed if their test process dies before them.

Each process of pytest adds a token to a variable of its environment. All programs below it inherit that, also
through other programs and in sessions of their own. It starts a guard, which is this file as a program. If
the process ends and has not ended its guard (SIGKILL, a crash, the watchdog), the guard kills all programs
that carry the token. macOS hides the environment of its own programs, such as `sh` and `sleep`: they stay.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TOKENS = "FENCEPOST_TESTS_OF"
"""The variable with the tokens, outermost process first, separated by spaces."""
LIMIT_S = 30.0
"""Time after which a guard gives up on processes that the system does not let it kill."""


class Guard:
    """A pytest plugin: starts the guard of this process, and ends it when pytest ends."""

    def __init__(self) -> None:
        self._before = os.environ.get(TOKENS)
        token = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._program = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._program.stdin is not None
        # A fork that outlives this process must not keep the guard waiting.
        os.register_at_fork(after_in_child=self._program.stdin.close)
        os.environ[TOKENS] = f"{self._before or ''} {token}".strip()

    def pytest_unconfigure(self) -> None:
        self._program.kill()
        self._program.communicate()
        if self._before is None:
            del os.environ[TOKENS]
        else:
            os.environ[TOKENS] = self._before


@contextlib.contextmanager
def shared_by_the_run() -> Iterator[None]:
    """Let what is started in the block outlive this worker, and end with the run."""
    own = os.environ[TOKENS]
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ[TOKENS] = own.rpartition(" ")[0]
    try:
        yield
    finally:
        os.environ[TOKENS] = own


def _carrying(token: str) -> list[int]:
    pattern = re.compile(rf"\b{TOKENS}=[^\0=]*\b{token}\b".encode())
    if sys.platform != "linux":
        words = ["ps", "-A", "-E", "-ww", "-o", "pid=,command="]
        lines = subprocess.run(words, capture_output=True, check=False).stdout.splitlines()
        return [int(line.split()[0]) for line in lines if pattern.search(line)]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if pattern.search((folder / "environ").read_bytes()):
                found.append(int(folder.name))
    return found


def main(token: str) -> None:
    """Wait until the process at the other end of standard input has ended; kill what it started."""
    sys.stdin.read()
    deadline = time.monotonic() + LIMIT_S
    while (pids := _carrying(token)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
