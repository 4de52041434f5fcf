"""`fencepost plan`: from a question to scenarios and options, and from what was measured to words."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import Sample
from fencepost.simulation.cli import main
from fencepost.simulation.pipeline.advice import (
    best,
    difference_in_words,
    differences,
    recommend,
)
from fencepost.simulation.pipeline.analyze import analyze
from fencepost.simulation.pipeline.answer import (
    DOWNTIME,
    DOWNTIME_OF_RUN,
    REBALANCE,
    OptionAnswer,
    PlanAnswer,
    Spread,
)
from fencepost.simulation.pipeline.question import BEGIN, ask, choices, options, scenario_text
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import loads
from fencepost.simulation.scenarios.scenario import MemberCrash, RollingRestart, Scale
from fencepost.simulation.trace.schema import Row
from tests.unit.simulation.kept_rows import KeptRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def question(**raw):
    return ask(raw, {key: f"--{key.replace('_', '-')}" for key in raw})


def scenarios(**raw):
    asked = question(**raw)
    chosen = choices(asked)
    text = scenario_text(asked, chosen)
    return {
        each.name: loads(text, overrides=[f"{key}={value}" for key, value in each.settings.items()])
        for each in options(chosen, {})
    }


def test_a_first_question_has_the_usual_options():
    assert list(choices(question())) == [
        "consumer/uniform",
        "consumer/uniform static",
        "classic/cooperative-sticky",
        "classic/cooperative-sticky static",
        "classic/range",
        "classic/range static",
    ]


def test_several_values_are_options_and_an_assignor_goes_with_the_protocols_that_have_it():
    asked = question(
        protocol=["classic", "consumer"],
        assignor=["range", "sticky"],
        session_timeout=["10s", "45s"],
        static=True,
    )
    assert list(choices(asked)) == [
        f"{protocol}/{assignor} session={session} static"
        for protocol, assignor in (("classic", "range"), ("classic", "sticky"), ("consumer", "range"))
        for session in ("10s", "45s")
    ]


def test_one_option_is_the_newer_protocol_with_dynamic_members():
    assert list(choices(question(), one=True)) == ["consumer/uniform"]
    assert list(choices(question(protocol="classic", static=True), one=True)) == [
        "classic/cooperative-sticky static"
    ]


def test_options_set_what_kafka_s_clients_and_brokers_set():
    made = scenarios(session_timeout="10s", heartbeat_interval="2s", static=False)
    classic, consumer = made["classic/range"], made["consumer/uniform"]
    assert (classic.group.session_timeout.ms, classic.group.heartbeat_interval.ms) == (10_000, 2_000)
    assert classic.group.partition_assignment_strategy == "range"
    assert consumer.config["group.consumer.session.timeout.ms"] == 10_000
    assert consumer.config["group.consumer.min.heartbeat.interval.ms"] == 2_000


def test_events_become_steps_and_faults():
    (deploy,) = scenarios(protocol="consumer", static=False, members=10, at_once=4, start_up="20s").values()
    (step,) = deploy.steps
    assert isinstance(step, RollingRestart)
    assert step.batch == 0.4
    assert step.over.us == 3 * 32_000_000
    (whole,) = scenarios(protocol="consumer", static=False, members=3, at_once=3).values()
    assert whole.steps[0].batch == 1
    (crash,) = scenarios(event="crash", protocol="consumer", static=False).values()
    assert [type(each) for each in crash.faults] == [MemberCrash] * 3
    (scale,) = scenarios(event="scale", protocol="consumer", static=False, members=10).values()
    assert [(type(each), each.members) for each in scale.steps] == [(Scale, 15), (Scale, 10)]


def rows_of(**raw) -> list[Row]:
    kept = KeptRows()
    (made,) = scenarios(
        protocol="consumer", static=False, members=3, partitions=9, start_up="3s", **raw
    ).values()
    assert run(made, 1, trace=kept).violations == []
    return kept


@pytest.mark.parametrize("partitions", [3, 30])
def test_a_batch_takes_its_time_however_many_records_it_has(partitions):
    """And records gather for the time of a poll."""
    times = {"batch": "3s", "poll": "2s", "partitions": partitions}
    (made,) = scenarios(protocol="consumer", static=False, members=3, **times).values()
    kept = KeptRows()
    run(made, 1, trace=kept)
    done = sorted(
        {(each.actor, each.t_us) for each in kept if each.kind == "records" and each.t_us > 30_000_000}
    )
    gaps = [later - t for (actor, t), (other, later) in itertools.pairwise(done) if actor == other]
    quick = [gap for gap in gaps if gap < 4_900_000]
    assert statistics.median(gaps) == pytest.approx(5_000_000, abs=100_000)
    assert len(quick) <= len(gaps) * 0.1, "only a change of the assignment ends a poll earlier"


def test_a_surge_starts_the_new_member_before_the_old_one_stops():
    rows = rows_of(surge=True)
    running, least = 0, None
    for row in (each for each in rows if each.kind == "host"):
        running += {"start": 1, "stopped": -1}.get(row.detail, 0)
        least = running if row.t_us >= BEGIN.us and (least is None or running < least) else least
    starts = {row.actor: row.t_us for row in rows if row.kind == "host" and row.detail == "start"}
    stops = [row.t_us for row in rows if row.kind == "host" and row.detail == "stop"]
    assert (least, running) == (3, 3)
    assert len(starts) == 6, "no process comes back under an old name"
    assert [stop - start for stop, start in zip(stops, sorted(starts.values())[3:], strict=True)] == [
        10_000_000
    ] * 3


@pytest.mark.parametrize("surge", [False, True])
def test_killed_members_do_not_leave(surge):
    rows = rows_of(kill=True, surge=surge)
    assert [row.detail for row in rows if row.kind == "host"].count("crash") == 3
    assert {row.detail for row in rows if row.kind == "member.removed"} == {"session"}


def test_brokers_have_the_settings_of_the_plan():
    found = scenarios(config={"group.initial.rebalance.delay.ms": 7_000}, session_timeout="10s")
    assert {each.config["group.initial.rebalance.delay.ms"] for each in found.values()} == {7_000}
    nested = scenarios(config={"group": {"initial": {"rebalance": {"delay": {"ms": 7_000}}}}})
    assert {each.config["group.initial.rebalance.delay.ms"] for each in nested.values()} == {7_000}


@pytest.mark.parametrize("event", ["deploy", "crash", "scale"])
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_the_group_settles_after_each_event(event, protocol):
    (made, *_) = scenarios(
        event=event, protocol=protocol, static=False, members=3, partitions=6, start_up="3s"
    ).values()
    result = run(made, 1)
    assert result.violations == []
    assert result.converged
    assert result.rebalances >= 2


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"event": "burn"}, "--event: expected one of deploy, crash, scale"),
        ({"members": 0}, "--members: expected a whole number of at least 1"),
        ({"start_up": "soon"}, "--start-up: expected a duration"),
        ({"batch": "0s"}, "--batch: expected at least 1ms"),
        ({"protocol": ["share"]}, "--protocol: expected one of consumer, classic"),
        ({"protocol": "classic", "assignor": "uniform"}, "--assignor: expected one of range, roundrobin"),
        (
            {"protocol": ["classic", "consumer"], "assignor": "sticky"},
            "--protocol: consumer has none of these assignors, expected one of uniform, range",
        ),
        ({"static": [True, True]}, "--static: a value is there twice"),
        ({"event": "crash", "at_once": 2}, "--at-once: has an effect only in a deploy"),
        ({"event": "scale", "surge": True}, "--surge: has an effect only in a deploy, not in a scale"),
        ({"event": "crash", "kill": True}, "--kill: has an effect only in a deploy, not in a crash"),
        ({"poll": "0s"}, "--poll: expected at least 1ms"),
        ({"config": {"group.max.siez": 3}}, "--config: .*group.max.size"),
        (
            {"config": {"group.consumer.session.timeout.ms": 9_000}},
            "--config: group.consumer.session.timeout.ms follows from session_timeout: give that instead",
        ),
        ({"at_once": 21}, "--at-once: expected at most the 20 members of the group, got 21"),
        ({"members": 3, "at_once": 50}, "--at-once: expected at most the 3 members"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_wrong_value_is_told_with_its_place(raw, message):
    with pytest.raises(FencepostError, match=message):
        question(**raw)


def spread(count, total):
    return Spread(count=count, p50=1.0 if count else None, p99=2.0 if count else None, total_per_run=total)


def option(name, total, *, count=4, runs=4, session="45s"):
    protocol, _, rest = name.partition("/")
    return OptionAnswer(
        name=name,
        parameters={
            "protocol": protocol,
            "assignor": rest.split()[0],
            "session_timeout": session,
            "heartbeat_interval": "3s",
            "static": rest.endswith("static"),
        },
        runs=runs,
        failed=0,
        event_s=100.0,
        capacity_lost=total / 2_000,
        most_down=3.0,
        lag_peak=1_234.0,
        lag_gone_s=20.0,
        rebalance_s=spread(count, total),
        downtime_s=spread(count, total),
        command="",
    )


def found(runs="123456", **totals):
    names = {"consumer": "consumer/uniform", "eager": "classic/range", "static": "consumer/uniform static"}
    samples = {
        names[key]: Sample(
            tuple(runs),
            {
                REBALANCE: {run: [value] for run in runs},
                DOWNTIME: {run: [value] for run in runs},
                DOWNTIME_OF_RUN: {
                    run: [value + (7 - int(run) if key == "eager" else int(run)) / 100] for run in runs
                },
            },
        )
        for key, value in totals.items()
    }
    answers = [option(names[key], value) for key, value in totals.items()]
    return PlanAnswer(options=answers, samples=samples, wall_seconds=1.0)


def test_the_option_with_the_least_downtime_is_recommended_and_why():
    answers = found(eager=60.0, consumer=10.0, static=30.0)
    assert best(answers).name == "consumer/uniform"
    advice = recommend(question(), answers)
    assert advice.option == "consumer/uniform"
    assert advice.text.startswith(
        "Take consumer/uniform: in a deploy partitions stand still for 10.0 s in all, 0.5 % of the capacity, "
        "and lag is gone 20.0 s after its peak of 1,234 records. That is the least of 3 options."
    )
    assert "chance" not in advice.text
    said = " ".join(advice.why)
    assert "classic/range: partitions stand still for 60.0 s in all, 3 % of the capacity" in said
    assert "6.0 times as much." in said
    assert any("instance ids" in line for line in advice.basis), "static members were not compared"
    assert "docs/fidelity.md" in advice.basis[0]
    assert "eager" in said
    assert "keeps its partitions" in said


def test_an_option_whose_runs_fail_is_not_recommended_however_little_was_measured_of_it():
    answers = found(consumer=10.0, static=0.0)
    broken = msgspec.structs.replace(answers.options[1], failed=1)
    advice = recommend(question(), msgspec.structs.replace(answers, options=[answers.options[0], broken]))
    assert advice.option == "consumer/uniform"
    assert "of 2 options" not in advice.text
    nothing_ran = msgspec.structs.replace(answers.options[0], runs=0)
    advice = recommend(question(), msgspec.structs.replace(answers, options=[nothing_ran, broken]))
    assert advice.option is None
    assert advice.text.startswith("Take none")


def test_what_chance_may_do_is_no_difference():
    advice = recommend(question(), found(eager=10.001, consumer=10.0))
    assert "The difference from classic/range is small enough to be chance." in advice.text


def test_an_option_that_is_better_in_most_runs_is_not_told_to_be_worse():
    """The least in all is recommended, though one long run of the other is all that makes it so."""
    answers = found(eager=10.0, consumer=10.0)
    runs = answers.samples["classic/range"].runs
    totals = {DOWNTIME_OF_RUN: {run: [8.0 if run != "6" else 100.0] for run in runs}}
    eager = msgspec.structs.replace(answers.samples["classic/range"], values=totals)
    answers = msgspec.structs.replace(
        answers,
        options=[option("classic/range", 23.0), option("consumer/uniform", 10.0)],
        samples=answers.samples | {"classic/range": eager},
    )
    advice = recommend(question(), answers)
    assert advice.option == "consumer/uniform"
    assert "The difference from classic/range is small enough to be chance." in advice.text


def test_one_run_does_not_tell_options_apart():
    advice = recommend(question(), found(runs="1", eager=60.0, consumer=10.0))
    assert advice.text.endswith("The difference from classic/range is small enough to be chance.")
    assert "chance" not in recommend(question(), found(runs="123", eager=60.0, consumer=10.0)).text
    assert "chance" not in recommend(question(), found(runs="1", consumer=10.0)).text


def test_a_start_up_that_outlasts_the_session_is_told():
    advice = recommend(question(start_up="44s"), found(static=30.0, consumer=10.0))
    assert any("may outlast a session timeout of 45s" in line for line in advice.why)


def test_after_a_crash_the_session_counts():
    assert "session timeout" in recommend(question(event="crash"), found(consumer=10.0)).why[0]


def test_after_a_crash_static_members_of_each_protocol_fare_differently():
    answers = found(consumer=10.0, static=11.0)
    late = option("classic/range static", 4.0)
    samples = answers.samples | {late.name: answers.samples["consumer/uniform"]}
    answers = msgspec.structs.replace(answers, options=[*answers.options, late], samples=samples)

    def why(**asked):
        lines = recommend(question(**asked), answers).why
        return [line for line in lines if " static: " in line and "stand still" not in line]

    classic, consumer = why(event="crash", start_up="20s")
    assert classic.startswith("classic static: a process that is back within its session timeout takes its")
    assert "wait for its start-up, 20s," in classic
    assert consumer.startswith("consumer static: a dead member has not left")
    assert "UNRELEASED_INSTANCE_ID" in consumer
    assert why(event="crash", start_up="1m") == []
    assert why(event="scale", start_up="20s") == []
    assert "static" not in " ".join(recommend(question(event="crash"), found(consumer=9.0)).why)


def test_a_crashed_static_member_is_back_by_its_instance_id_only_in_the_classic_protocol():
    rows = {}
    for protocol in ("classic", "consumer"):
        asked = {"event": "crash", "members": 3, "partitions": 6, "start_up": "10s", "protocol": protocol}
        one, *_ = scenarios(**asked, static=True).values()
        kept = KeptRows()
        run(one, 1, trace=kept)
        rows[protocol] = kept
    assert {row.detail for row in rows["classic"] if row.kind == "member.removed"} == {"replaced"}
    assert {row.detail for row in rows["consumer"] if row.kind == "member.removed"} == {"session"}
    assert "UNRELEASED_INSTANCE_ID" in {row.error for row in rows["consumer"]}


def test_differences_are_told_with_their_intervals():
    answers = found(consumer=10.0, eager=60.0)
    lines = difference_in_words("a", "b", differences(answers, "consumer/uniform", "classic/range"), 6)
    assert (
        lines[0] == "rebalance, median: longer in b than in a, by 50.0 s (95% interval: +50.0 s to +50.0 s)."
    )
    same = difference_in_words("a", "b", differences(answers, "classic/range", "classic/range"), 6)
    assert same[0] == "rebalance, median: no difference that 6 runs can tell."


def test_plans_that_are_compared_tell_of_failed_runs(monkeypatch, capsys, tmp_path: Path):
    one = found(consumer=10.0)
    samples = dict.fromkeys(("old", "new"), one.samples["consumer/uniform"])
    plans = [
        msgspec.structs.replace(one.options[0], name=name, failed=int(name == "new")) for name in samples
    ]
    measured = msgspec.structs.replace(one, options=plans, samples=samples)
    monkeypatch.setattr("fencepost.simulation.cli.plan.answer", lambda *_, **__: measured)
    files = [tmp_path / f"{name}.toml" for name in samples]
    for file in files:
        file.write_text('protocol = "consumer"\n')
    assert main(["plan", "--compare", *map(str, files)]) == 1
    said = capsys.readouterr().out
    assert said.endswith("\nnew: 1 runs failed, broke an invariant, or never settled\n")
    assert "old:" not in said


def _is_of(row, name: str) -> bool:
    return json.loads(row["parameters"])["option"] == name and row.get("cause", "all") == "all"


def counts_as_the_table(document, tables) -> None:
    """The report's tables count what the plan's table counts: since the event, and all of it."""
    for each in document["options"]:
        for table, measure in (("rebalances", "rebalance_s"), ("downtime", "downtime_s")):
            (row,) = (row for row in tables[table] if _is_of(row, each["name"]))
            mine = each[measure]
            assert (row["count"], row["median"], row["p99"]) == (mine["count"], mine["p50"], mine["p99"])
            if table == "downtime":
                assert row["run_seconds_mean"] == pytest.approx(mine["total_per_run"])


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_a_plan_ends_in_its_time_and_tells_what_is_open(spark: SparkSession, capsys):
    words = ["--members", "2", "--partitions", "4", "--no-static", "--within", "1s"]
    assert main(["plan", *words]) == 0
    said = capsys.readouterr()
    assert "Nothing can be recommended yet: no run ended in time." in said.out
    assert "The time was over within 1s, after 0 runs of each. Not known yet, as no run ended:" in said.out
    assert "within 1s it may stay open which one costs least" in said.err


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_a_plan_from_end_to_end(spark: SparkSession, tmp_path: Path, capsys):
    words = [
        "--members",
        "2",
        "--partitions",
        "4",
        "--start-up",
        "1s",
        "--runs",
        "2",
        "--no-static",
        "--json",
    ]
    out, page = tmp_path / "out", tmp_path / "plan.html"
    assert (
        main(["plan", *words, "--assignor", "range,uniform", "--out", str(out), "--report", str(page)]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert sorted(each["name"] for each in document["options"]) == [
        "classic/range",
        "consumer/range",
        "consumer/uniform",
    ]
    costs = [each["downtime_s"]["total_per_run"] for each in document["options"]]
    assert costs == sorted(costs)
    counts_as_the_table(document, analyze(out))
    text = page.read_text()
    assert "What each option costs" in text
    assert document["recommendation"]["text"].split(":")[0] in text
    assert main(["analyze", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: a plan; rows before its event, in the first 90 s")
    for each in document["options"]:
        assert each["runs"] == 2
        assert each["failed"] == 0
        assert each["rebalance_s"]["count"] > 0
        assert 0 < each["downtime_s"]["p50"] <= each["downtime_s"]["p99"]
        assert each["downtime_s"]["total_per_run"] > each["downtime_s"]["p50"]
    assert document["recommendation"]["option"] in document["recommendation"]["text"]
    assert (out / "deploy.toml").is_file()
    assert loads((out / "deploy.toml").read_text()).group.members == 2

    for name, text in (("old", 'protocol = "classic"\nassignor = "range"\n'), ("new", "")):
        (tmp_path / f"{name}.toml").write_text(f'members = 2\npartitions = 4\nstart_up = "1s"\n{text}')
    files = [str(tmp_path / "old.toml"), str(tmp_path / "new.toml")]
    assert main(["plan", "--compare", *files, "--runs", "2"]) == 0
    said = capsys.readouterr().out
    assert "\nold " in said
    assert "\nnew " in said
    assert "rebalance, median:" in said
