"""Who may import whom: the contracts of pyproject.toml hold, and would not hold if they were broken."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from importlinter.api import read_configuration
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.fixture(autouse=True)
def _loggers_stay_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """import-linter configures logging, which disables the loggers that there are: for all tests to come."""
    monkeypatch.setattr("logging.config.dictConfig", lambda config: None)


@pytest.mark.timeout(120)
def test_every_contract_holds() -> None:
    assert lint_imports(str(ROOT / "pyproject.toml"), no_cache=True) == 0


@pytest.mark.timeout(120)
def test_a_contract_that_is_broken_is_seen(tmp_path: Path) -> None:
    (tmp_path / ".importlinter").write_text(
        "[importlinter]\n"
        "root_packages =\n    fencepost.coordinator\n    fencepost.member\n    fencepost.simulation\n"
        "[importlinter:contract:upside-down]\n"
        "name = Upside down\ntype = layers\n"
        "layers =\n    fencepost.coordinator\n    fencepost.member\n    fencepost.simulation\n"
    )
    assert lint_imports(str(tmp_path / ".importlinter"), no_cache=True) == 1


def test_the_configuration_is_read() -> None:
    assert len(read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]) == len(CONTRACTS) > 8


def test_members_may_import_no_part_of_the_coordinator_but_its_protocol() -> None:
    contract = next(each for each in CONTRACTS if each["name"].startswith("Members"))
    parts = {path.stem for path in (ROOT / "coordinator").iterdir() if path.suffix in {"", ".py"}}
    parts -= {"__init__", "__pycache__", "protocol"}
    assert set(contract["forbidden_modules"]) == {f"fencepost.coordinator.{part}" for part in parts}


@pytest.mark.parametrize(
    "package", ["assign", "consumer", "coordinator", "journal.memory", "offsets", "protocol"]
)
def test_every_core_of_the_coordinator_is_under_the_contract_for_cores(package: str) -> None:
    contract = next(each for each in CONTRACTS if each["name"].startswith("Cores"))
    assert f"fencepost.coordinator.{package}" in contract["source_modules"]
    assert "fencepost.member.consumer.machine" in contract["source_modules"]
    assert {"asyncio", "time", "socket", "logging", "structlog"} <= set(contract["forbidden_modules"])
