"""The command line: one command, `fencepost`, and its table of subcommands."""

from fencepost.simulation.cli.entry import main

__all__ = ["main"]
