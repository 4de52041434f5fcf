"""What a campaign runs, how its runs are called, and the directory it may use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.output import CampaignDirectory
from fencepost.simulation.pipeline.runs import begun_row
from fencepost.simulation.pipeline.shipping import project_zip
from fencepost.simulation.pipeline.tasks import Task, cells_of, dealt, parse_grid, simulate_command, tasks_of
from fencepost.simulation.pipeline.traces import NOTE, run_schema
from fencepost.simulation.pipeline.whole_files import whole_file, write_whole

SCENARIO = 'duration = "{}"\n[[topics]]\nname = "orders"\npartitions = 4\n'


def scenario(folder: Path, name: str = "small", duration: str = "30s") -> str:
    path = folder / f"{name}.toml"
    path.write_text(SCENARIO.format(duration))
    return str(path)


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], parse_grid(["members=2,3", "cluster.brokers=1,2"]))
    assert [cell.parameters for cell in cells] == [
        {"members": members, "cluster.brokers": brokers} for members in ("2", "3") for brokers in ("1", "2")
    ]
    assert [(cell.scenario.group.members, cell.scenario.cluster.brokers) for cell in cells] == [
        (2, 1),
        (2, 2),
        (3, 1),
        (3, 2),
    ]
    assert len({cell.run_id(17) for cell in cells}) == 4


def test_run_ids_are_the_scenario_the_parameters_digest_and_the_seed(tmp_path: Path) -> None:
    source = scenario(tmp_path)
    (plain,) = cells_of([source], {})
    assert plain.run_id(17) == "small-000017"
    (one,) = cells_of([source], {"members": ["2"], "partitions": ["8"]})
    (other,) = cells_of([source], {"partitions": ["8"], "members": ["2"]})
    assert one.run_id(3) == other.run_id(3)
    assert re.fullmatch("small-[0-9a-f]{12}-000003", one.run_id(3))


def test_a_run_can_be_repeated_by_a_command(tmp_path: Path) -> None:
    command = simulate_command("my file.toml", {"members": "3", "network.loss": "a b"}, 4)
    assert command == "fencepost simulate 'my file.toml' --seed 4 --members 3 --set 'network.loss=a b'"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *(
            ([word], "--grid")
            for word in ("members", "members=", "=3", "members=1,,2", "members=2,2", "", "no_such_key=1")
        ),
        (["members=2", "members=3"], "members is there twice"),
        *(
            ([f"members={each}"], f"members={each}: expected a number from 1")
            for each in ("0", "x", "-1", "1.5")
        ),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(words: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(FencepostError, match=told):
        cells_of([scenario(tmp_path)], parse_grid(words))


def test_a_mutant_is_a_parameter_wherever_it_is_set(tmp_path: Path) -> None:
    source = scenario(tmp_path)
    healthy, sick = cells_of([source], parse_grid(["mutant=none,offset-one-too-far"]))
    assert (healthy.mutant, sick.mutant) == ("", "offset-one-too-far")
    assert healthy.scenario == sick.scenario
    assert healthy.run_id(1) != sick.run_id(1)
    assert (healthy.overrides, sick.overrides) == ((), ())
    assert healthy.command(3) == f"fencepost simulate {source} --seed 3"
    assert sick.command(3) == f"fencepost simulate {source} --seed 3 --mutant offset-one-too-far"
    (fixed,) = cells_of([source], {}, fixed={"mutant": "offset-one-too-far"})
    assert fixed.parameters == sick.parameters == {"mutant": "offset-one-too-far"}
    with pytest.raises(FencepostError, match="--grid mutant=typo: there is no mutant typo; "):
        cells_of([source], {"mutant": ["typo"]})


def test_two_scenarios_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(FencepostError, match="its name small is also that of"):
        cells_of([scenario(tmp_path), scenario(tmp_path / "other")], {})
    with pytest.raises(FencepostError, match="twice"):
        cells_of([scenario(tmp_path), scenario(tmp_path)], {})


def test_tasks_are_what_is_not_finished(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], {"members": ["2", "3"]})
    finished = frozenset({cells[0].run_id(0), cells[1].run_id(2)})
    tasks = list(tasks_of(cells, [0, 1, 2], finished, always_traced=1))
    assert [(task.cell, task.seed, task.traced) for task in tasks] == [
        (1, 0, True),
        (0, 1, False),
        (1, 1, False),
        (0, 2, False),
    ]


def test_dealing_keeps_every_task_and_mixes_cells(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], {"members": ["2", "3"]})
    tasks = list(tasks_of(cells, range(6), frozenset(), 0))
    order = dealt(tasks, 3)
    assert sorted(order, key=repr) == sorted(tasks, key=repr)
    assert [{task.cell for task in order[start : start + 4]} for start in (0, 4, 8)] == [{0, 1}] * 3


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], {})
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(FencepostError, match="is not empty and holds no campaign"):
            CampaignDirectory(out).prepare(cells, resume=resume)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_damaged_parts_of_a_campaign_are_named(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], {})
    out = tmp_path / "out"
    directory = CampaignDirectory(out)
    directory.prepare(cells, resume=False)
    part = out / "runs" / "part-001.parquet"
    part.write_bytes(b"PAR1 and no more")
    with pytest.raises(FencepostError) as refused:
        directory.prepare(cells, resume=True)
    assert str(refused.value).startswith(f"{part}: not a readable Parquet file (")
    assert str(refused.value).endswith("remove it, and its runs are carried out again")
    part.unlink()
    assert directory.prepare(cells, resume=True) == frozenset()
    (out / "campaign.json").write_text('{"format"')
    with pytest.raises(FencepostError, match=r"campaign\.json, which describes its campaign, is damaged: "):
        directory.prepare(cells, resume=True)


def test_a_campaign_is_gone_on_with_only_when_asked(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], {})
    directory = CampaignDirectory(tmp_path / "out")
    assert directory.prepare(cells, resume=False) == frozenset()
    with pytest.raises(FencepostError, match="--resume"):
        directory.prepare(cells, resume=False)
    assert directory.prepare(cells, resume=True) == frozenset()


def test_another_scenario_of_the_same_name_is_not_mixed_in(tmp_path: Path) -> None:
    directory = CampaignDirectory(tmp_path / "out")
    directory.prepare(cells_of([scenario(tmp_path)], {}), resume=False)
    changed = cells_of([scenario(tmp_path, duration="60s")], {})
    with pytest.raises(FencepostError, match="small has changed"):
        directory.prepare(changed, resume=True)


def test_a_campaign_goes_on_with_all_that_it_has_and_perhaps_with_more(tmp_path: Path) -> None:
    wide, narrow, other = (
        cells_of(["steady"], {"members": ("2", "3")}),
        cells_of(["steady"], {"members": ("2",)}),
        cells_of(["churn"], {}),
    )
    directory = CampaignDirectory(tmp_path / "out")
    directory.prepare(narrow, resume=False)
    told = "holds a campaign of steady members=2, and this is one of churn; choose another directory"
    with pytest.raises(FencepostError, match=told):
        directory.prepare(other, resume=True)
    directory.prepare((*wide, *other), resume=True)
    with pytest.raises(FencepostError, match="of steady members=2, steady members=3, churn, and this is one"):
        directory.prepare(wide, resume=True)


def test_a_campaign_goes_on_with_all_seeds_that_it_has_and_perhaps_with_more(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], {})
    directory = CampaignDirectory(tmp_path / "out")
    directory.prepare(cells, resume=False, seeds=range(4))
    rows = [
        begun_row(cells[0], Task(0, seed, traced=False)) | {"wall_seconds": 0.0, "error": "no"}
        for seed in range(3)
    ]
    table = pa.Table.from_pylist(rows, schema=run_schema())
    pq.write_table(table, directory.root / "runs" / "part.parquet")
    note = (directory.root / "campaign.json").read_bytes()
    for seeds in (range(2), range(1, 9)):
        with pytest.raises(FencepostError) as raised:
            directory.prepare(cells, resume=True, seeds=seeds)
        assert f"holds {3 - len(set(seeds) & {0, 1, 2})} run" in str(raised.value)
        assert "of other seeds, such as small-00000" in str(raised.value)
        assert (directory.root / "campaign.json").read_bytes() == note
    assert len(directory.prepare(cells, resume=True, seeds=range(3))) == 3
    assert len(directory.prepare(cells, resume=True, seeds=range(9))) == 3


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(FencepostError, match="--out"):
            CampaignDirectory(out).prepare(cells_of([scenario(tmp_path)], {}), resume=False)


def test_half_done_parts_go_and_finished_runs_stay(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], {})
    directory = CampaignDirectory(tmp_path / "out")
    directory.prepare(cells, resume=False)
    row = {
        "run_id": "small-000001",
        "scenario": "small",
        "parameters": "{}",
        "seed": 1,
        "command": "fencepost simulate small --seed 1",
        "wall_seconds": 0.1,
        "violations": 0,
        "traced": False,
    }
    pq.write_table(
        pa.Table.from_pylist([row], run_schema()), tmp_path / "out/runs/part-000-000000-0000.parquet"
    )
    (tmp_path / "out/traces/part-000-000001-0000.parquet").write_bytes(b"its summaries are missing")
    (tmp_path / "out/traces/.part-000-000002-0000.parquet-77").write_bytes(b"half")
    assert directory.prepare(cells, resume=True) == {"small-000001"}
    assert list((tmp_path / "out/traces").iterdir()) == []
    assert directory.generation == 1


def test_a_note_of_another_format_is_told(tmp_path: Path) -> None:
    cells = cells_of([scenario(tmp_path)], {})
    directory = CampaignDirectory(tmp_path / "out")
    directory.prepare(cells, resume=False)
    note = tmp_path / "out" / NOTE
    note.write_text(note.read_text().replace('"format": 2', '"format": 9'))
    with pytest.raises(FencepostError, match="another version"):
        directory.prepare(cells, resume=True)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with whole_file(tmp_path / "a") as path:
            path.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []
    with whole_file(tmp_path / "a") as path:
        path.write_text("whole")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "whole")]


def test_a_link_stays_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    write_whole(tmp_path / "link", "by a link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text() == "by a link"
    (tmp_path / "circle").symlink_to("circle")
    write_whole(tmp_path / "circle", "in its place")
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(tmp_path / "pipe", "through a pipe")
        assert os.read(reading, 100) == b"through a pipe"
    finally:
        os.close(reading)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "circle", "link", "pipe"}


@pytest.mark.processes
def test_the_projects_code_travels_as_one_zip(tmp_path: Path) -> None:
    archive = project_zip(tmp_path)
    names = set(zipfile.ZipFile(archive).namelist())
    assert {
        "fencepost/coordinator/protocol/ids.py",
        "fencepost/simulation/scenarios/library/steady.toml",
    } <= names
    assert any(name.endswith("/rebalances.sql") for name in names)
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from fencepost.coordinator.protocol import ids; print(ids.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, archive], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{archive}/fencepost/coordinator/protocol/ids.pyc"  # compiled already
