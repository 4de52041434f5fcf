"""Test suites of others on an embedded Kafka of three brokers.

    python tests/suites/run.py [librdkafka-classic] [librdkafka-consumer] [franz-go]

All of them take about twenty minutes, the first time five more to build. The judges watch, and what they
find is a failure too, but for commits behind the end of a log: tests of administration commit where nothing
is. Exit code 0 if what failed is what was expected to, 1 if not, 3 if a program is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from franz_go import FranzGo
from librdkafka import Librdkafka
from suite import Missing, Suite

from fencepost import EmbeddedKafka

FOLDER = Path(__file__).resolve().parents[2] / "out" / "suites"
SUITES: dict[str, Callable[[], Suite]] = {
    "librdkafka-classic": lambda: Librdkafka(FOLDER, "classic"),
    "librdkafka-consumer": lambda: Librdkafka(FOLDER, "consumer"),
    "franz-go": lambda: FranzGo(FOLDER),
}
COMMITTED_AT_WILL = "commit-within-processed"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    chosen = parser.parse_args().suites or list(SUITES)
    if unknown := [name for name in chosen if name not in SUITES]:
        parser.error(f"no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    wrong = 0
    for name in chosen:
        suite = SUITES[name]()
        try:
            suite.build()
        except Missing as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 3
        wrong += judged(name, suite)
    return 1 if wrong else 0


def judged(name: str, suite: Suite) -> int:
    """How many tests surprised."""
    told: Counter[str] = Counter()
    with EmbeddedKafka(
        brokers=3, auto_create_topics=True, default_partitions=4, config=suite.config
    ) as kafka:
        for outcome in suite.run(kafka.bootstrap_servers):
            reason = suite.expected.get(outcome.test)
            if outcome.passed == (reason is None):
                told["passed" if outcome.passed else "failed as expected"] += 1
                continue
            told["surprised"] += 1
            verdict = "passed, though it " + reason if reason is not None else f"failed: {outcome.log}"
            print(f"{name} {outcome.shown} {verdict}", flush=True)
        found = [each for each in kafka.check() if each.invariant != COMMITTED_AT_WILL]
        for violation in found:
            print(f"{name}: {violation.invariant}: {violation.message}")
    told["violations"] = len(found)
    print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in told.items()), flush=True)
    return told["surprised"] + told["violations"]


if __name__ == "__main__":
    sys.exit(main())
