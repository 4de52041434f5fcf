"""Runs on brokers that were kept are judged again, without brokers, and the same is found.

`fencepost chaos SCENARIO --keep FILE` made the files; a change of what members report needs new ones.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import consumer, records
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.cli import main
from fencepost.simulation.lab.chaos import events as e
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.kept import KeptRun, LostRecord, judge, keep, kept
from fencepost.simulation.lab.chaos.played import Arrival
from fencepost.simulation.lab.chaos.run import run_again
from fencepost.simulation.scenarios.load import library_names, load_any, loads
from tests.unit.simulation.test_cli_chaos import RESULT

VECTORS = sorted((Path(__file__).parents[2] / "vectors" / "chaos").glob("*.run"))
IMAGE = TopicsImage().with_topic(Topic(topic_id="T", name="orders", partitions=2))
PLACE = TopicPartition("orders", 0)


def run(*happenings: Any, **fields: Any) -> Any:
    scenario = loads('duration = "1m"\n[group]\nmembers = 1\n[[topics]]\nname = "orders"\npartitions = 2\n')
    given: dict[str, Any] = {
        "scenario": scenario,
        "seed": 1,
        "client": "fencepost",
        "config": GroupCoordinatorConfig(),
    }
    given |= {"members": [("member-1", None)], "brokers": ["broker-1"], "ended_us": 1_000_000}
    return KeptRun(happenings=list(happenings), **{**given, **fields})


@pytest.mark.parametrize("file", VECTORS, ids=lambda file: file.stem)
def test_a_run_is_judged_as_it_was(file: Path):
    _, before = kept(file)
    _, again = run_again(file)
    for result in (before, again):  # the places of rules in our code may change
        result.violations[:] = [msgspec.structs.replace(each, rule="") for each in result.violations]
    assert msgspec.structs.replace(again, digest=before.digest) == before
    assert {each.invariant for each in again.violations} == (
        {"at-least-once", "commit-within-processed"} if file.stem == "skipped-records" else set()
    )


def test_everything_is_read_as_it_was_written(tmp_path: Path):
    asked = consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id="id", member_epoch=0)
    told = consumer.ConsumerGroupHeartbeatResponse(member_id="id", member_epoch=1, assignment={"T": (0,)})
    commit = OffsetCommitRequest(group_id="g", offsets={PLACE: OffsetAndMetadata(offset=3)})
    whole = run(
        (0, "", e.TopicImageChanged(IMAGE, "orders", "created", 2)),
        (1, "member-1", m.Up(1, "id")),
        (2, "member-1", m.RequestSent(2, 1, asked, None)),
        (3, "member-1", m.RequestSent(3, 2, None, commit)),
        (4, "member-1", e.HeartbeatSeen(asked, told)),
        (5, "", e.MessageLost("member-1", "broker-1", "request", "OffsetCommitRequest")),
        (6, "", e.MemberEvent("on_fault", ("member-crash", "begin", "member-1"))),
        (7, "member-1", e.HostNoted("crash")),
        arrivals=[
            Arrival(
                t_us=4,
                timestamp_ms=1,
                offset=7,
                leader=1,
                leader_epoch=2,
                records=(
                    records.Record(
                        records.ConsumerGroupMetadataKey("g"), records.ConsumerGroupMetadataValue(1)
                    ),
                    records.Record(records.OffsetCommitKey("g", "orders", 0), None),
                ),
                image=IMAGE,
                unsettled=frozenset({"T"}),
            )
        ],
        lost=[LostRecord(9, PLACE, 4)],
    )
    keep(whole, RESULT, tmp_path / "a.run")
    assert kept(tmp_path / "a.run") == (whole, RESULT)
    assert [each.invariant for each in judge(run(lost=whole.lost)).violations] == ["at-least-once"]


@pytest.mark.parametrize("name", [n for n in library_names() if load_any(n).protocol != "sac"])
def test_every_scenario_can_be_kept(name: str, tmp_path: Path):
    keep(run(scenario=load_any(name)), RESULT, tmp_path / "a.run")
    assert kept(tmp_path / "a.run")[0].scenario == load_any(name)


@pytest.mark.parametrize(
    "data", [b"", b"text", gzip.compress(b"text", mtime=0), gzip.compress(b"\x80", mtime=0)]
)
def test_another_file_is_refused(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "a.run"
    file.write_bytes(data)
    with pytest.raises(FencepostError, match=r"a\.run is not a run that `fencepost chaos --keep`"):
        kept(file)
    assert main(["chaos", "--judge", str(file)]) == 2
    assert "is not a run" in capsys.readouterr().err.replace("\n", " ")


def test_the_command_shows_what_it_finds(capsys: pytest.CaptureFixture[str]):
    (file,) = (file for file in VECTORS if file.stem == "skipped-records")
    assert main(["chaos", "--judge", str(file), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["violations"]
    assert told["records_sent"] == kept(file)[1].records_sent
