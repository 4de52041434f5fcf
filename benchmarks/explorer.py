"""How fast small worlds are walked through: states a second, of each size that docs/explorer.md lists.

    python benchmarks/explorer.py [--large] [--full] [--json]

`--large` adds one that takes minutes. With `--full` steps that commute are taken in every order. Nothing may
be wrong in any world. Budget: 100,000 states a second with `--full`. Without it there is none: most of the
time goes into steps that are worked out once, so the rate depends on the size.
"""

from __future__ import annotations

import argparse
import json

from fencepost.simulation.lab.explorer.explore import explore

SIZES = ((1, 2, 2), (2, 2, 0), (2, 2, 1), (2, 3, 1), (3, 2, 0), (3, 3, 0))
LARGE = (4, 2, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for members, partitions, faults in (*SIZES, LARGE) if args.large else SIZES:
        found = explore(
            members=members, partitions=partitions, faults=faults, full=args.full, max_states=10_000_000
        )
        assert found.complete, found
        assert not found.violations, found
        rows.append(
            {
                "members": members,
                "partitions": partitions,
                "faults": faults,
                "states": found.states,
                "transitions": found.transitions,
                "wall_s": round(found.wall_seconds, 2),
                "states_per_s": found.states_per_second,
            }
        )
        if not args.json:
            print(*(f"{key} {value:,}" for key, value in rows[-1].items()), sep="  ", flush=True)
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
