"""The checksums of Kafka's jars: what Maven fetched is compared with them before it is run.

`jars/kafka-VERSION.sha256` has a line for each jar, as `sha256sum` writes it. The SHA-1 of these jars
was that of the repository.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.lab.clusters.settings import KafkaVersion


def pinned(version: KafkaVersion) -> Mapping[str, str]:
    """Return the SHA-256 of each jar of a version, by its name."""
    text = resources.files(__package__).joinpath("jars", f"kafka-{version}.sha256").read_text("ascii")
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def check_jars(folder: Path, version: KafkaVersion) -> None:
    """See that a folder has exactly the jars of a version.

    :raises EnvironmentLacks: if a jar is missing, is another one, or should not be there.
    """
    expected = pinned(version)
    found = {path.name: path for path in folder.iterdir()}
    for name in sorted(expected.keys() ^ found.keys()):
        what = "is missing among" if name in expected else "is not expected among"
        raise EnvironmentLacks(f"{name} {what} the jars that Maven fetched for Kafka {version}: {_ADVICE}")
    for name, path in sorted(found.items()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected[name]:
            raise EnvironmentLacks(
                f"{name}, which Maven fetched for Kafka {version}, has the SHA-256 {digest}, "
                f"expected {expected[name]}: {_ADVICE}"
            )


_ADVICE = (
    "delete it in Maven's local repository and run again, or check where Maven's settings.xml fetches from"
)
