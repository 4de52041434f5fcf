from __future__ import annotations

import itertools
import re
import tomllib

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.run import plan_of
from fencepost.simulation.scenarios.load import DEFAULT, LIBRARY, library, load, load_any, loads
from fencepost.simulation.scenarios.scenario import GrowTopic, Scenario
from fencepost.simulation.scenarios.toml_text import toml_text
from fencepost.simulation.scenarios.values import Duration

BASE = 'duration = "5m"\n[[topics]]\nname = "orders"\npartitions = 6\n'


def test_the_library_has_its_scenarios_each_with_a_summary():
    entries = library()
    assert len(entries) >= 10
    assert DEFAULT in {entry.name for entry in entries}
    for entry in entries:
        assert entry.world == "simulated"
        assert 20 < len(entry.summary) < 120
        assert "\n" not in entry.summary


@pytest.mark.parametrize("name", sorted(path.stem for path in LIBRARY.glob("*.toml")))
def test_every_scenario_of_the_library_loads_under_its_name_and_scales(name):
    assert load_any(name).name == name
    steps = enumerate(load_any(name).steps)
    grown = [f"steps.{number}.partitions=900" for number, step in steps if isinstance(step, GrowTopic)]
    large = load_any(name, members=200, partitions=900, duration="1h", overrides=grown)
    assert (large.group.members, large.partitions, large.duration) == (200, 900, Duration(3_600_000_000))


def test_a_file_is_loaded_by_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(BASE)
    assert load(path).name == "mine"
    assert load(str(path)).partitions == 6


MISTAKES = {
    'duration = "5m\n': "x.toml: not TOML: .*line 1",
    '\n{"fencepost": 1}': "x.toml: expected TOML, and this is JSON: `fencepost replay` and `shrink` take",
    "duration = " + "[" * 5_000 + "]" * 5_000: "x.toml: can't be read: .* nested too deeply",
    "[[topics]]\nname = 'a'\n": "x.toml: the key duration is missing",
    "duration = 5\n[[topics]]\nname = 'a'\n": "x.toml:1: duration: expected a duration such as .*, got 5",
    "duration = 2020-01-01\n[[topics]]\nname = 'a'\n": "x.toml:1: duration: expected .*, got 2020-01-01$",
    BASE + "[network]\nlatency = {p99 = true}\n": "x.toml:6: network.latency: .*, got {p99 = true}$",
    "duration = '0s'\n[[topics]]\nname = 'a'\n": "x.toml:1: duration: expected at least 1ms, got 0s",
    "duration = '5s'\ntopics = []\n": "x.toml:2: topics: expected a list of at least 1, got an empty one",
    BASE + "[[topics]]\nname = 'orders'\n": "x.toml:6: topics.1..name: .* is there twice",
    BASE + "[[topics]]\nname = 'b c'\n": "x.toml:6: topics.1..name: expected letters",
    BASE + "[[topics]]\nname = '..'\n": "x.toml:6: topics.1..name: .*neither '.' nor '..', got '..'",
    BASE + "[[topics]]\nname = 'a.b'\n[[topics]]\nname = 'a_b'\n": "x.toml:8: .* differs from 'a.b' in more",
    BASE + "[gruop]\n": "x.toml:5: gruop: unknown key; did you mean group",
    BASE + "[group]\nmembres = 3\n": "x.toml:6: group.membres: unknown key; did you mean members",
    BASE
    + "[group]\nmembers = -3\n": "x.toml:6: group.members: expected a whole number of at least 1, got -3",
    BASE
    + "[group]\nmembers = 100001\n": "x.toml:6: group.members: expected a whole number of at most 100000",
    BASE + "[group]\nmembers = 'x'\n": "x.toml:6: group.members: expected a whole number, got .x.",
    BASE + "[group]\npattern = '('\n": "x.toml:6: group.pattern: expected a regular expression",
    BASE + "[group]\nassignor = 'sticky'\n": "group.assignor: expected one of uniform, range, got",
    BASE + "[group]\ntopics = []\n": "x.toml:6: group.topics: expected at least one topic",
    BASE + "[config]\n'no.such' = 1\n": "x.toml:6: config.no.such: unknown configuration",
    BASE + "[config]\n'group.consumer.session.timeout.ms' = 5\n": "x.toml:6: config.*out of range",
    BASE
    + "[config]\n'group.consumer.max.size' = 1.5\n": "x.toml:6: config.*expected true or false .*, got 1.5",
    BASE
    + "[config]\ngroup.consumer.session.timeout.ms = 5\n": "x.toml:6: config.group.consumer.s.*: 5 is out",
    "config = 3\n" + BASE: "x.toml:1: config: expected a table, got 3",
    "group = 'g'\n" + BASE: "x.toml:1: group: expected a table, got .g.",
    BASE + "[group]\nid = ''\n": "x.toml:6: group.id: expected text of at least 1 characters, got",
    BASE + "[group]\nstatic = 1\n": "x.toml:6: group.static: expected true or false, got 1",
    BASE + "[cluster]\nload = '3s..1s'\n": "x.toml:6: cluster.load: expected the smaller end first",
    BASE + "[[faults]]\nkind = 'lossy'\nevery = '1s'\n": "faults.0..kind: expected one of member-crash",
    BASE + "[[faults]]\nevery = '1s'\n": "x.toml:5: faults.0.: the key kind is missing",
    BASE + "[[faults]]\nkind = 'loss'\n": "x.toml:5: faults.0.: expected one of at .* and every",
    BASE + "[[faults]]\nkind = 'loss'\nat = '1s'\nevery = '1s'\n": "expected one of at .* and every",
    BASE + "[[faults]]\nkind = 'loss'\nat = '1s'\nfrom = '2s'\n": "x.toml:8: .*from: has no effect: .* every",
    BASE + "[[faults]]\nkind = 'loss'\nat = '1s'\nuntil = '2s'\n": "x.toml:8: .*until: has no effect",
    BASE + "[[faults]]\nkind = 'loss'\nat = '6m'\n": "x.toml:7: faults.0..at: expected a time within",
    BASE + "[[faults]]\nkind = 'loss'\nevery = '1s'\nuntil = '6m'\n": "faults.0..until: expected a time",
    BASE
    + "[[faults]]\nkind = 'loss'\nevery = '1s'\nfrom = '50%'\nuntil = '1m'\n": "window ends before it begins",
    BASE
    + "[[faults]]\nkind = 'loss'\nevery = '1s'\nfrom = '60%'\n": "x.toml:8: .*from: .* before 150 s, .* 180",
    BASE + "[[faults]]\nkind = 'loss'\nevery = '1s'\nprobability = 1.5\n": "a number of at most 1, got 1.5",
    BASE + "[[faults]]\nkind = 'loss'\nevery = '1s'\nprobabilty = 1\n": "did you mean probability",
    BASE + "[[faults]]\nkind = 'loss'\nevery = '0s'\n": "x.toml:7: faults.0..every: expected at least 1ms",
    BASE + "[[steps]]\nkind = 'scale'\nat = '1m'\n": "x.toml:5: steps.0.: expected one of members and factor",
    BASE + "[[steps]]\nkind = 'scale'\nat = '90%'\nover = '20%'\nmembers = 2\n": "over: the step ends",
    BASE
    + "[[steps]]\nkind = 'scale'\nat = '1m'\nfactor = 100\n[group]\nmembers = 2000\n": "x.toml:8: .*most 50",
    BASE + "[[steps]]\nkind = 'subscribe'\nat = '1m'\n": "expected topics or a pattern",
    BASE + "[[steps]]\nkind = 'subscribe'\nat = '1m'\ntopics = ['orders', 'ordres']\n": "x.toml:8: steps.0."
    r".topics.1.: expected a topic of the file, or that a step creates .orders., got 'ordres'",
    BASE + "[[steps]]\nkind = 'grow-topic'\nat = '1m'\nname = 'b'\npartitions = 9\n": "a topic that exists",
    BASE
    + "[[steps]]\nkind = 'grow-topic'\nat = '1m'\nname = 'orders'\npartitions = 2\n": "expected more than",
    BASE + "[group]\ntopics = ['orders', 'ordres']\n": "x.toml:6: group.topics.1.: expected a topic of",
    BASE + "[[steps]]\nkind = 'create-topic'\nat = '1m'\nname = 'orders'\n": "expected a new name",
    BASE
    + "[[steps]]\nkind = 'create-topic'\nat = '1m'\nname = 'b c'\n": "x.toml:8: steps.0..name: .* letters",
    BASE + "[[steps]]\nkind = 'create-topic'\nat = '1m'\nname = '.'\n": "x.toml:8: steps.0..name: .*neither",
    BASE + "[[steps]]\nkind = 'create-topic'\nat = '1m'\nname = 'b.c'\n"
    "[[steps]]\nkind = 'create-topic'\nat = '2m'\nname = 'b_c'\n": "x.toml:12: .*differs from 'b.c' in more",
    BASE + "[[steps]]\nkind = 'delete-topic'\nat = '1m'\nname = 'orders'\n"
    "[[steps]]\nkind = 'grow-topic'\nat = '2m'\nname = 'orders'\npartitions = 9\n": "steps.1..name: expected",
}


SAC = 'protocol = "sac"\nduration = "5m"\n[[streams]]\nname = "invoices"\n'
STREAMS = 'protocol = "streams"\nduration = "5m"\n[[topics]]\nname = "orders"\n'
OTHER_MISTAKES = {
    STREAMS
    + "[[steps]]\nkind = 'scale'\nat = '1m'\nmembers = 3\n": "x.toml:5: steps: unknown key; expected one",
    STREAMS + "[[streams]]\nname = 'a'\n": "x.toml:5: streams: unknown key",
    STREAMS + "[[faults]]\nkind = 'thread-exception'\nevery = '20s'\nwhere = 'global'\n": (
        "x.toml:8: faults.0..where: has no effect without a global_topic"
    ),
    STREAMS
    + "[[faults]]\nkind = 'other-application'\nevery = '20s'\n": "x.toml:6: faults.0..kind: expected two",
    STREAMS + "[[topics]]\nname = 'a'\npartitions = 2\n[group]\nprotocol = 'classic'\n"
    "[[faults]]\nkind = 'other-application'\nevery = '20s'\n": "faults.0..kind: other applications speak",
    STREAMS + "[[group]]\nmembers = 3\n": "x.toml:5: group: expected a table, got a list",
    STREAMS
    + "[cluster]\nregex = '1s'\n": 'x.toml:6: cluster.regex: has no effect where protocol is "streams"',
    STREAMS + "[global_topic]\nname = 'a b'\n": "x.toml:6: global_topic.name: expected letters",
    STREAMS + "[global_topic]\nname = 'orders'\n": "x.toml:6: global_topic.name: .* 'orders' is there twice",
    STREAMS
    + "[group]\nprotocol = 'classic'\nsession_timeout = '4s'\n": "x.toml:7: group.session_timeout: .* got 4s",
    STREAMS
    + "[group]\nprotocol = 'classic'\nsession_timeout = '6s'\nheartbeat_interval = '6s'\n": ":8: .*less",
    SAC + "[[topics]]\nname = 'a'\n": "x.toml:5: topics: unknown key",
    SAC + "[config]\na = 1\n": "x.toml:5: config: unknown key",
    SAC + "[[streams]]\nname = 'invoices'\n": "x.toml:6: streams.1..name: .* 'invoices' is there twice",
    SAC
    + "[[streams]]\nname = 'a-1'\n[[streams]]\nname = 'a'\npartitions = 2\n": "x.toml:8: streams.2..name: "
    "expected partitions .* 'a-1' is there twice",
    SAC
    + "[[streams]]\nname = 'a'\npartitions = 2\n[[streams]]\nname = 'a-1'\n": "x.toml:9: streams.2..name: "
    "expected partitions .* 'a-1' is there twice",
    SAC
    + "[[steps]]\nkind = 'create-topic'\nat = '1m'\nname = 'a'\n": "x.toml:6: steps.0..kind: expected one of",
    SAC
    + "[[steps]]\nkind = 'rolling-restart'\nat = '1m'\nprotocol = 'classic'\n": "x.toml:8: .*protocol: has",
    BASE
    + "[[steps]]\nkind = 'rolling-restart'\nat = '1s'\nover = '1s'\n"
    + "partition_assignment_strategy = ['range']\n": "partition_assignment_strategy: has no effect",
    BASE
    + "[group]\nprotocol = 'classic'\n[[steps]]\nkind = 'rolling-restart'\nat = '1s'\nover = '1s'\n"
    + "partition_assignment_strategy = ['range', 'cooperative-sticky']\n": "all eager or all cooperative",
} | {
    STREAMS
    + f"[[faults]]\nkind = '{kind}'\nat = '1m'\n{key} = {value}\n": f"x.toml:8: faults.0..{key}: has no eff"
    for kind, key, value in (
        ("member-crash", "lasts", "'1s'"),
        ("member-crash", "returns", 0.5),
        ("partition", "brokers", 0.5),
        ("lost-response", "epoch_moved", "false"),
    )
}


@pytest.mark.parametrize(("kind", "nodes"), [("node-crash", 3), ("node-leave", 3), ("node-split", 2)])
def test_faults_of_nodes_are_refused_where_there_are_too_few_for_them(kind, nodes):
    text = f"{SAC}[[faults]]\nkind = '{kind}'\nevery = '20s'\n"
    assert loads(text, overrides=[f"cluster.nodes={nodes}"]).faults
    too_few = rf"x.toml:6: faults.0..kind: has no effect with fewer than {nodes} nodes, .* {nodes - 1}$"
    with pytest.raises(FencepostError, match=too_few):
        loads(text, source="x.toml", overrides=[f"cluster.nodes={nodes - 1}"])


def test_a_super_stream_may_be_called_as_a_partition_of_another_one():
    beside = "[[streams]]\nname = 'a'\npartitions = 2\n[[streams]]\nname = 'a-1'\npartitions = 2\n"
    assert loads(SAC + beside).partitions == 5


def test_members_may_subscribe_to_topics_that_come_later_or_were_there_before():
    steps = (
        "[[steps]]\nkind = 'subscribe'\nat = '1m'\ntopics = ['refunds']\n"
        "[[steps]]\nkind = 'create-topic'\nat = '2m'\nname = 'refunds'\n"
        "[[steps]]\nkind = 'delete-topic'\nat = '3m'\nname = 'orders'\n"
        "[[steps]]\nkind = 'subscribe'\nat = '4m'\ntopics = ['orders']\n"
    )
    assert len(loads(BASE + steps).steps) == 4


@pytest.mark.parametrize(("text", "told"), [*MISTAKES.items(), *OTHER_MISTAKES.items()])
def test_a_mistake_is_told_with_its_place(text, told):
    with pytest.raises(FencepostError, match=told):
        loads(text, source="x.toml")


@pytest.mark.parametrize("name", sorted(path.stem for path in LIBRARY.glob("*.toml")))
def test_the_library_takes_any_length_and_size_and_every_fault_at_its_moment(name):
    for duration, members in itertools.product(("2m", "5m", "1h"), (None, 1, 200)):
        scenario = load_any(name, members=members, duration=duration, overrides=["swarm=false"])
        for seed in range(3):
            at = {entry.at_us for entry in plan_of(scenario, seed).entries}
            for fault in scenario.faults:
                if fault.at is not None and fault.likely == 1:
                    assert fault.at.within(scenario.duration.us) in at, (duration, members, seed)


def test_faults_may_come_again_and_again_while_a_late_step_is_under_way():
    late = "[[steps]]\nkind = 'scale'\nmembers = 9\nat = '90%'\n"
    often = "[[faults]]\nkind = 'loss'\nevery = '1s'\nfrom = '60%'\n"
    assert loads(BASE + late + often).faults
    with pytest.raises(FencepostError, match=r"from: expected a time before 30 s, .* got 40 s"):
        loads(BASE + often.replace("60%", "40s"), overrides=["duration=1m"])


def test_overrides_are_typed_like_the_file():
    scenario = loads(
        BASE,
        overrides=[
            "group.members=9",
            "group.id=billing",
            "config.group.consumer.session.timeout.ms=50000",
            "config.release.version=4.4",
            "topics.0.partitions=7",
            'network.latency={median = "1ms", p99 = "9ms"}',
        ],
    )
    assert (scenario.group.members, scenario.group.id, scenario.partitions) == (9, "billing", 7)
    assert scenario.config == {"group.consumer.session.timeout.ms": 50000, "release.version": "4.4"}
    assert scenario.network.latency.kind == "lognormal"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("group.members=x", 'overrides: group.members=x: expected a whole number, got "x"'),
        ("group.memberz=1", "overrides: group.memberz=1: unknown key; did you mean members"),
        ("group.members", "expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("topics.5.partitions=3", "there is no topics.5; topics has 0 to 0"),
        ("config.nope=1", "overrides: config.nope=1: unknown configuration"),
        (
            "group.static.x=1",
            "overrides: group.static.x=1: group.static: expected true or false, got a table",
        ),
        ("group.config.x=1", "overrides: group.config.x=1: group.config: unknown key"),
        ("duration=0s", "overrides: duration=0s: expected at least 1ms"),
    ],
)
def test_a_wrong_override_is_told_as_such(override, told):
    with pytest.raises(FencepostError, match=told.replace(".", r"\.")):
        loads(BASE, overrides=[override])


@pytest.mark.parametrize(
    "value",
    [
        '"a \\"b\\" é"',
        "true",
        "-0.5",
        "2020-01-01",
        "10:00:00",
        "2020-01-01T10:00:00+00:00",
        '{a = [1, "x"], "b c" = {d = false}}',
    ],
)
def test_a_value_is_told_as_toml_has_it(value):
    assert toml_text(tomllib.loads(f"value = {value}")["value"]) == value


@pytest.mark.parametrize(
    ("name", "override", "told"),
    [
        ("steady", "group.session_timeout=10s", "config.group.consumer.session.timeout.ms"),
        ("steady", "group.partition_assignment_strategy=sticky", "group.assignor"),
        ("steady", "config.group.max.size=3", "members of the classic protocol, and these speak consumer"),
        ("classic-rolling-deploy", "group.assignor=range", "group.partition_assignment_strategy"),
        ("classic-rolling-deploy", "config.group.consumer.max.size=3", "these speak classic"),
        ("streams-failures", "group.session_timeout=9s", "config.group.streams.session.timeout.ms"),
        ("streams-classic", "config.group.streams.max.size=3", "these speak classic"),
    ],
)
def test_a_setting_of_a_protocol_that_nobody_speaks_is_refused(name, override, told):
    with pytest.raises(FencepostError, match=f"^overrides: {override}: has no effect: .*{told}$"):
        load_any(name, overrides=[override])


def test_a_setting_is_taken_where_some_members_speak_its_protocol():
    both = ["group.session_timeout=20s", "group.assignor=range", "config.group.max.size=30"]
    assert load("rolling-migration", overrides=both).group.session_timeout.ms == 20_000
    assert load("steady", overrides=["group.session_timeout=20s", "group.protocol=classic"])
    assert loads(BASE + '[group]\nsession_timeout = "20s"\n').group.protocol == "consumer"


def test_names_of_settings_need_no_quotes():
    scenario = loads(BASE + "[config]\ngroup.consumer.session.timeout.ms = 50000\n")
    assert scenario.config == {"group.consumer.session.timeout.ms": 50000}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"members": 100_001}, "members=100001: expected a whole number of at most 100000, got 100001"),
        ({"members": "3"}, "members='3': expected a whole number, got \"3\""),
        ({"members": True}, "members=True: expected a whole number, got true"),
        ({"duration": 5}, "duration=5: expected a duration"),
        ({"partitions": 1}, "partitions=1: expected at least 2, one for each topic"),
        ({"partitions": "3"}, "partitions='3': expected a whole number"),
        ({"partitions": 2.0}, "partitions=2.0: expected a whole number"),
        ({"overrides": ["group.members=x"]}, "overrides: group.members=x: expected a whole number, got"),
        ({"overrides": "group.members=3"}, "overrides='group.members=3': expected a list of texts"),
        ({"overrides": [3]}, "overrides: expected texts such as 'group.members=12', got 3"),
        ({"members": 100_001, "option": "--set"}, "--members 100001: expected a whole number of at most"),
        ({"duration": "5", "option": "--set"}, "--duration 5: expected a duration"),
        ({"partitions": 1, "option": "--set"}, "--partitions 1: expected at least 2, one for each topic"),
        (
            {"partitions": 900_000, "overrides": ["steps.0.partitions=200000"]},
            "partitions=900000: topics[0].partitions: expected a whole number of at most 200000, got 599999",
        ),
        (
            {"members": 0, "option": "--grid"},
            "--grid members=0: expected a whole number of at",
        ),
        (
            {"overrides": ["group.members=x"], "option": "--grid"},
            "--grid group.members=x: expected",
        ),
    ],
)
def test_mistakes_are_told_by_the_option_that_brought_them(given, told):
    with pytest.raises(FencepostError, match=f"^{re.escape(told)}"):
        load("growing-topics", **given)


def test_topics_grow_in_proportion_where_a_total_of_partitions_is_beyond_their_steps():
    large = load("growing-topics", partitions=900)
    assert [step.partitions for step in large.steps if isinstance(step, GrowTopic)] == [899, 502]
    assert large.topics[0].partitions == 599
    kept = load("growing-topics", partitions=900, overrides=["steps.0.partitions=600"])
    assert kept.steps[0].partitions == 600
    twice = "".join(
        f"[[steps]]\nkind = 'grow-topic'\nat = '{at}'\nname = 'orders'\npartitions = {count}\n"
        for at, count in (("2m", 8), ("1m", 7))
    )
    assert [step.partitions for step in loads(BASE + twice).steps] == [8, 7]
    assert [step.partitions for step in loads(BASE + twice, partitions=40).steps] == [54, 47]


def test_a_total_of_partitions_is_judged_as_if_the_file_had_it():
    grown = "[[steps]]\nkind = 'grow-topic'\nat = '1m'\nname = 'orders'\npartitions = 5\n"
    assert loads(BASE + grown, partitions=4).partitions == 4
    late = "[[steps]]\nkind = 'grow-topic'\nat = '9m'\nname = 'orders'\npartitions = 9\n"
    with pytest.raises(FencepostError, match=r"^x\.toml:7: steps\[0\]\.at: expected a time within"):
        loads(BASE + late, source="x.toml", partitions=4)
    streams = SAC + "[[streams]]\nname = 'a'\npartitions = 1\n[[streams]]\nname = 'a-1'\n"
    assert loads(streams).partitions == 3
    with pytest.raises(FencepostError, match=r"^partitions=4: streams\[2\]\.name: .* 'a-1' is there twice"):
        loads(streams, partitions=4)


def test_partitions_are_shared_in_proportion():
    scenario = loads(BASE + "[[topics]]\nname = 'payments'\npartitions = 3\n", partitions=902)
    assert [topic.partitions for topic in scenario.topics] == [601, 301]
    with pytest.raises(FencepostError, match=r"^partitions=1: expected at least 2"):
        loads(BASE + "[[topics]]\nname = 'payments'\npartitions = 3\n", partitions=1)


def test_a_scenario_that_is_not_there_is_told_with_the_nearest_name(tmp_path):
    with pytest.raises(FencepostError, match="did you mean rolling-deploy"):
        load("rolling-deply")
    with pytest.raises(FencepostError, match="can't be read"):
        load(tmp_path / "no.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(FencepostError, match="can't be read"):
        load(tmp_path / "latin.toml")


def test_scenarios_are_values():
    assert loads(BASE) == loads(BASE)
    assert isinstance(loads(BASE), Scenario)
    assert hash(loads(BASE).duration) == hash(Duration(300_000_000))
