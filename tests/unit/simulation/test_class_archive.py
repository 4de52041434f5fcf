"""The archive of Spark's classes: when it is made and used, and that nothing about it is a reason to fail."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from fencepost.simulation import java
from fencepost.simulation.java import ARCHIVE_OPTION, CLASS_PATH
from fencepost.simulation.pipeline.class_archive import ClassArchive, class_archive

DUMPS = (
    '#!/bin/sh\nfor word; do case $word in -XX:SharedArchiveFile=*) echo "$@" >"${word#*=}";; esac; done\n'
)
FAILS = "#!/bin/sh\nexit 1\n"


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    """The one of this Java and these jars, in a cache of its own."""
    found = class_archive({"XDG_CACHE_HOME": str(tmp_path)})
    if found is None:
        pytest.skip("no Java from a wheel on this platform")
    return found


def listed(archive: ClassArchive) -> Path:
    return Path(archive.environment[ARCHIVE_OPTION].removeprefix("-XX:DumpLoadedClassList="))


def test_a_session_lists_its_classes_until_there_is_an_archive(archive: ClassArchive) -> None:
    assert listed(archive).parent == archive.path.parent
    archive.path.touch()
    assert archive.environment[ARCHIVE_OPTION] == f"-XX:SharedArchiveFile={archive.path}"
    jars = archive.environment[CLASS_PATH].split(":")
    assert len(set(jars)) == len(jars) > 100
    assert "/slf4j-api" in jars[0]


@pytest.mark.parametrize("name", ["JAVA_HOME", "SPARK_CONF_DIR", "SPARK_HOME"])
def test_settings_of_the_user_come_without_an_archive(name: str, tmp_path: Path) -> None:
    assert class_archive({"XDG_CACHE_HOME": str(tmp_path), name: "/mine"}) is None


def test_a_cache_that_cannot_be_made_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "fencepost").touch()
    assert class_archive({"XDG_CACHE_HOME": str(tmp_path)}) is None


@pytest.mark.processes
def test_the_archive_is_made_once_from_the_list_of_a_session(archive: ClassArchive, tmp_path: Path) -> None:
    made = msgspec.structs.replace(archive, java=program(tmp_path / "java", DUMPS))
    made.make(wait=True)
    assert not made.path.exists(), "no session has listed anything"
    listed(made).touch()
    made.make(wait=True)
    assert f"-cp {made.class_path}" in made.path.read_text()
    unneeded = made.path.with_name(f"{made.path.name}.list-{os.getpid()}")
    unneeded.touch()
    made.make(wait=True)
    assert {path.name for path in made.path.parent.iterdir()} == {made.path.name, f"{made.path.name}.lock"}


@pytest.mark.processes
def test_an_archive_that_cannot_be_made_is_tried_again_later(archive: ClassArchive, tmp_path: Path) -> None:
    broken = msgspec.structs.replace(archive, java=program(tmp_path / "broken", FAILS))
    listed(broken).touch()
    broken.make(wait=True)
    assert not broken.path.exists()
    again = msgspec.structs.replace(archive, java=program(tmp_path / "java", DUMPS))
    listed(again).touch()
    again.make(wait=True)
    assert not again.path.exists(), "another process may be making it"
    assert not listed(again).exists(), "what is not used is not left behind"
    lock = again.path.with_name(f"{again.path.name}.lock")
    os.utime(lock, (time.time() - 3_600,) * 2)
    listed(again).touch()
    again.make(wait=True)
    assert again.path.exists()


@pytest.mark.processes
def test_an_archive_that_java_does_not_use_is_made_again(archive: ClassArchive, tmp_path: Path) -> None:
    made = msgspec.structs.replace(archive, java=program(tmp_path / "java", DUMPS))
    for vm_info in ("mixed mode, emulated-client", "mixed mode, emulated-client, sharing"):
        listed(made).touch()
        made.make(wait=True)
        assert made.path.exists()
        made.check_used(vm_info)
    assert made.path.exists()


@pytest.mark.processes
def test_a_new_archive_deletes_those_of_other_versions(archive: ClassArchive, tmp_path: Path) -> None:
    java = program(tmp_path / "java", DUMPS)
    homes = {"before": archive.home, "gone": str(tmp_path / "gone"), "neighbour": str(tmp_path), "": ""}
    for name, home in homes.items():
        other = msgspec.structs.replace(
            archive, java=java, path=archive.path.with_name(f"spark-{name}.jsa"), home=home
        )
        other.path.touch()
        if home:
            other.path.with_name(f"{other.path.name}.lock").write_text(home)
    listed(archive).touch()
    msgspec.structs.replace(archive, java=java).make(wait=True)
    left = {path.name for path in archive.path.parent.glob("spark-*")}
    names = (archive.path.name, "spark-neighbour.jsa")
    assert left == {*names, *(f"{name}.lock" for name in names)}


@pytest.mark.processes
@pytest.mark.parametrize("is_whole", [False, True])
def test_java_starts_with_a_damaged_archive_and_says_nothing_of_it(
    archive: ClassArchive, tmp_path: Path, is_whole: bool
) -> None:
    content = b"not an archive"
    if is_whole:
        made = tmp_path / "made.jsa"
        dump = [archive.java, "-Xshare:dump", f"-XX:SharedArchiveFile={made}", "-Xlog:disable"]
        subprocess.run(dump, capture_output=True, check=True)
        whole = made.read_bytes()
        third = len(whole) // 3
        content = whole[:third] + bytes(third) + whole[2 * third :]
    archive.path.write_bytes(content)
    home = java.wrapped_java_home(archive.java, tmp_path)
    environment = {**os.environ, **archive.environment}
    command = [home / "bin" / "java", "-cp", "/some/jars/*", "-version"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "archive" not in done.stdout + done.stderr
    assert "21" in done.stderr


@pytest.mark.processes
def test_the_wrapper_gives_java_the_path_of_the_archive(tmp_path: Path) -> None:
    echo = program(tmp_path / "java", '#!/bin/sh\necho "$@"\n')
    home = java.wrapped_java_home(echo, tmp_path / "cache")
    command = [home / "bin" / "java", "-cp", "conf:a.jar:/spark/jars/*", "Main", "a*"]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert plain == "-cp conf:a.jar:/spark/jars/* Main a*\n"
    variables = {CLASS_PATH: "a.jar:b.jar", ARCHIVE_OPTION: "-XX:SharedArchiveFile=x"}
    given = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    ).stdout
    assert given.startswith("-XX:SharedArchiveFile=x ")
    assert given.endswith(" -cp a.jar:b.jar Main a*\n")
