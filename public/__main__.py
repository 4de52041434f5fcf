"""`python -m fencepost` is the command `fencepost`."""

import sys

from fencepost.simulation.cli import main

if __name__ == "__main__":
    sys.exit(main())
