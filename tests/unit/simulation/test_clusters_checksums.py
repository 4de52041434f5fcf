"""Jars that are fetched: each has the checksum that is on record for it, or none of them is run."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.lab.clusters import artifacts
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, KafkaVersion


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {"a.jar": b"x", "b.jar": b"other"},
            r"^b\.jar, which Maven .* has the SHA-256 d9298a10.*, expected 3e23",
        ),
        ({"a.jar": b"x"}, r"^b\.jar is missing among the jars that Maven fetched"),
        ({"a.jar": b"x", "b.jar": b"y", "c.jar": b"z"}, r"^c\.jar is not expected among the jars that Maven"),
    ],
    ids=["other", "missing", "more"],
)
def test_jars_that_are_not_those_on_record_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], told: str
) -> None:
    expected = {name: hashlib.sha256(data).hexdigest() for name, data in (("a.jar", b"x"), ("b.jar", b"b"))}
    monkeypatch.setattr(artifacts, "pinned", lambda version: expected)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(EnvironmentLacks, match=told):
        artifacts.check_jars(tmp_path, KAFKA_VERSION)
    (tmp_path / "b.jar").write_bytes(b"b")
    (tmp_path / "c.jar").unlink(missing_ok=True)
    artifacts.check_jars(tmp_path, KAFKA_VERSION)


@pytest.mark.parametrize("version", ["4.3.1", "4.4.0"])
def test_each_version_has_the_checksums_of_its_jars(version: KafkaVersion) -> None:
    found = artifacts.pinned(version)
    assert f"kafka_2.13-{version}.jar" in found
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in found.values())
