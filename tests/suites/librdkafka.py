"""librdkafka's own tests of brokers, from the crate that has its source; cargo, cc and make build them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from suite import Outcome, Suite, called, need

CRATE = "4.10.0+2.12.1"
BROKER_VERSION = "4.1.0"
"""Which tests run and what they expect goes by it; 2.12 knows no later one."""
SECONDS = 240

_MANIFEST = f"""[package]
name = "suite"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
rdkafka-sys = "={CRATE}"
"""
_ADMIN = "0081"
_ADMIN_PARTS = (
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "DescribeConfigs",
    "DeleteRecords",
    "ListConsumerGroups",
    "DescribeConsumerGroups",
    "DescribeTopics",
    "DescribeCluster",
    "DeleteGroups",
    "DeleteConsumerGroupOffsets",
    "ListOffsets",
    "AlterConsumerGroupOffsets",
    "ListConsumerGroupOffsets",
)
"""Its other parts are about rights, passwords and brokers' own settings, which are not offered."""
_NOT_OURS = ("0115", "0119", "0126", "0128", "0135", "0142")
"""Tests that ask for brokers with a login of theirs."""


class Librdkafka(Suite):
    """Each test in a process of its own, quick, as `make quick` of theirs has them."""

    name = "librdkafka"
    expected: Mapping[str, str] = {
        "0052": "wants the program kafka-topics.sh",
        "0077": "wants segments of 10,000 bytes, which Kafka refuses since 4.0",
        "0109": "wants rights, which are not offered",
        "0129": "wants segments of 20,000 bytes, which Kafka refuses since 4.0",
    }

    config: Mapping[str, int] = {"group.initial.rebalance.delay.ms": 3_000}
    """Kafka's own: members that come together are in the first round together."""

    def __init__(self, folder: Path, protocol: str) -> None:
        super().__init__(folder / self.name)
        self._protocol = protocol
        self._source = self.folder / "source"

    def build(self) -> None:
        """Fetch the source and make the tests, unless that was done."""
        if (self._source / "tests" / "test-runner").exists():
            return
        need("cargo", "cc", "c++", "make")
        crate = self.folder / "crate"
        crate.mkdir(parents=True, exist_ok=True)
        (crate / "Cargo.toml").write_text(_MANIFEST)
        (crate / "lib.rs").touch()
        told = json.loads(called("cargo", "metadata", "--format-version", "1", cwd=crate))
        (found,) = (each for each in told["packages"] if each["name"] == "rdkafka-sys")
        shutil.rmtree(self._source, ignore_errors=True)
        shutil.copytree(Path(found["manifest_path"]).parent / "librdkafka", self._source)
        called("./configure", "--disable-sasl", "--disable-zstd", "--disable-curl", cwd=self._source)
        called("make", "-j2", "libs", cwd=self._source)
        called("make", "-j2", "-C", "tests", "build", cwd=self._source)

    def run(self, servers: str) -> Iterator[Outcome]:
        """The tests that need a broker; those of mock brokers and of nothing but the client do not."""
        settings = self.folder / "test.conf"
        settings.write_text(f"metadata.broker.list={servers}\ntest.timeout.multiplier=2\n")
        for number in self._numbers():
            parts = [f"do_test_{part}" for part in _ADMIN_PARTS] if number == _ADMIN else [""]
            for part in parts:
                yield self._outcome(number, part, servers, settings)

    def _numbers(self) -> list[str]:
        table = (self._source / "tests" / "test.c").read_text()
        table = table[table.index("struct test tests[]") :].partition("{NULL}")[0]
        named = re.findall(r"_TEST\(\s*(0\d{3})\w*?(_mock|_local)?\s*,\s*([^)]*)\)", table)
        found = {number for number, apart, flags in named if not apart and "TEST_F_LOCAL" not in flags}
        return sorted(found.difference(_NOT_OURS))

    def _outcome(self, number: str, part: str, servers: str, settings: Path) -> Outcome:
        libraries = f"{self._source / 'src'}:{self._source / 'src-cpp'}"
        told = {
            "LD_LIBRARY_PATH": libraries,
            "RDKAFKA_TEST_CONF": str(settings),
            "TEST_KAFKA_VERSION": BROKER_VERSION,
            "TEST_CONSUMER_GROUP_PROTOCOL": self._protocol,
            "BROKERS": servers,
            "TESTS": number,
            **({"SUBTESTS": part} if part else {}),
        }
        log = self.folder / f"{number}{part.removeprefix('do_test')}.{self._protocol}.log"
        with log.open("wb") as output:
            try:
                done = subprocess.run(
                    ["./test-runner", "-p1", "-Q", "-L"],
                    cwd=self._source / "tests",
                    env=os.environ | told,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=SECONDS,
                    check=False,
                )
                passed = done.returncode == 0
            except subprocess.TimeoutExpired:
                passed = False
        return Outcome(f"{number} {part.removeprefix('do_test_')}".strip(), number, passed, log)
