"""franz-go's own tests of a client on a broker; Go builds them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from suite import Outcome, Suite, called, need

MODULE = "github.com/twmb/franz-go@v1.22.3"
RECORDS = "60000"
"""How many go through each of the tests that move records from topic to topic."""
SECONDS = 600

_OVER = re.compile(r"^--- (PASS|FAIL): (\w+)", re.MULTILINE)


class FranzGo(Suite):
    """All tests of its client in one process, many at a time."""

    name = "franz-go"
    expected: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / self.name)
        self._source = self.folder / "source"
        self._program = self.folder / "kgo.test"

    def build(self) -> None:
        """Fetch the source and compile the tests, unless that was done."""
        if self._program.exists():
            return
        need("go")
        self.folder.mkdir(parents=True, exist_ok=True)
        found = json.loads(called("go", "mod", "download", "-json", MODULE, cwd=self.folder))
        shutil.rmtree(self._source, ignore_errors=True)
        shutil.copytree(found["Dir"], self._source)
        for each in (self._source, *self._source.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
        called("go", "test", "-c", "-o", str(self._program), "./pkg/kgo", cwd=self._source)

    def run(self, servers: str) -> Iterator[Outcome]:
        """Each test that the program tells of."""
        told = {
            "KGO_SEEDS": servers,
            "KGO_TEST_RF": "3",
            "KGO_TEST_RECORDS": RECORDS,
            "KGO_TEST_UNSAFE": "1",
            "KGO_LOG_LEVEL": "none",
        }
        log = self.folder / "kgo.log"
        with log.open("wb") as output:
            subprocess.run(
                [self._program, "-test.v", f"-test.timeout={SECONDS}s", "-test.skip=Fuzz"],
                cwd=self._source / "pkg" / "kgo",
                env=os.environ | told,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        told_of = log.read_text(errors="replace")
        for verdict, test in _OVER.findall(told_of):
            yield Outcome(test, test, verdict == "PASS", log)
        if "\npanic: " in told_of:
            yield Outcome("all of them", "", False, log)
