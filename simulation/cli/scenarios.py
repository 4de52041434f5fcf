"""`fencepost scenarios`: what `simulate` and `campaign` can run by name."""

from __future__ import annotations

from fencepost.simulation.cli.arguments import Json
from fencepost.simulation.cli.output import print_json
from fencepost.simulation.scenarios.load import library


def scenarios(*, json: Json = False) -> int:
    """The scenarios that ship with fencepost, a line each. A TOML file of your own works as well."""
    entries = library()
    if json:
        print_json([entry._asdict() for entry in entries])
    else:
        from fencepost.simulation.cli.terminal import Terminal

        Terminal().table(("name", "world", "summary"), [(e.name, e.world, e.summary) for e in entries])
    return 0
