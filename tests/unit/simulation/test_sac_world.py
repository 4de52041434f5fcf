"""Single active consumers in the simulated cluster: runs repeat, nobody is active twice, figures are told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.member.sac.states import SacMemberState
from fencepost.simulation.faults.plan import FaultPlan
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.rng import Draws, constant
from fencepost.simulation.run import run
from fencepost.simulation.sac.links import Links
from fencepost.simulation.sac.world import SacWorld, prepare
from fencepost.simulation.scenarios.load import library, load, load_any, loads
from fencepost.simulation.scenarios.sac import SacScenario
from fencepost.simulation.trace.rows import TraceRows
from tests.unit.simulation.kept_rows import KeptRows

SECOND = 1_000_000
NAMES = [entry.name for entry in library() if entry.protocol == "sac"]


def scenario(name: str, **changes: object) -> SacScenario:
    loaded = load_any(name)
    assert isinstance(loaded, SacScenario)
    return msgspec.structs.replace(loaded, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_of_the_library_breaks_nothing_and_settles(name: str) -> None:
    result = run(load_any(name), 3)
    assert result.violations == []
    assert result.converged
    assert result.figures["activations"] == result.rebalances > 0
    assert result.heartbeats == result.figures["commands"] > 0


def test_a_seed_gives_the_same_run_again() -> None:
    first, again, other = (run(load_any("sac-node-failures"), seed) for seed in (5, 5, 6))
    assert (first.digest, first.figures) == (again.digest, again.figures)
    assert first.digest != other.digest


class Scene:
    """A cluster of three nodes with two clients of one super stream, and time in the test's hands."""

    def __init__(self) -> None:
        chosen = scenario(
            "sac-churn",
            steps=(),
            faults=(),
            streams=load_any("sac-churn").streams[:1],  # type: ignore[union-attr]
        )
        chosen = msgspec.structs.replace(
            chosen,
            group=msgspec.structs.replace(chosen.group, members=2),
            streams=(msgspec.structs.replace(chosen.streams[0], partitions=2),),
        )
        self.loop = VirtualLoop()
        recorder = TraceRows(world="simulated", group="billing")
        plan = FaultPlan(entries=(), faults_end_us=900 * SECOND, end_us=1_000 * SECOND, members=2)
        self.run = prepare(chosen, 1, plan, self.loop, recorder)
        assert isinstance(self.run.world, SacWorld)
        self.world = self.run.world
        self.world.begin()
        self.until(30)

    def until(self, seconds: int) -> None:
        self.loop.run_until(seconds * SECOND)

    def do(self, action: Callable[[], object]) -> None:
        """Let it happen inside of the loop, as everything does."""
        self.loop.schedule(self.loop.now_us, lambda _: action(), None)
        self.loop.run_until(self.loop.now_us)

    def active(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {each.stream: [] for each in self.world.subscriptions}
        for client in self.world.clients.values():
            for subscriber in client.subscribers:
                if subscriber.consumer.state is SacMemberState.ACTIVE:
                    found[subscriber.subscription.stream].append(client.name)
        return found

    def statuses(self) -> list[str]:
        assert self.world.cluster.host is not None
        groups = self.world.cluster.host.coordinator.state.groups.values()
        return sorted(str(one.status) for group in groups for one in group.consumers)

    def close(self) -> None:
        self.do(self.world.vanish)
        self.loop.close()


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.close()
    assert made.world.violations == []


class Kept(KeptRows):
    """A run's trace."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.result = run(loads(HOSTS + text), 1, trace=self)
        assert self.result.violations == []
        assert self.result.converged

    def hosts(self, detail: str) -> list[tuple[str, int]]:
        found = [row for row in self if (row.kind, row.detail) == ("host", detail)]
        return [(row.actor, row.t_us // SECOND) for row in found]


HOSTS = """
protocol = "sac"
duration = "8m"
quiet = "3m"
[group]
members = 2
[application]
restart = "4s"
[[streams]]
name = "invoices"
partitions = 2
"""


def fault(kind: str, at_s: int, lasts_s: int, more: str = "") -> str:
    """Of both clients."""
    return f'[[faults]]\nkind = "{kind}"\nat = "{at_s}s"\nlasts = "{lasts_s}s"\n{more}' * 2


def step(kind: str, at_s: int, more: str = "") -> str:
    return f'[[steps]]\nkind = "{kind}"\nat = "{at_s}s"\nover = "0s"\n{more}'


BOTH = ["client-1", "client-2"]


@pytest.mark.parametrize("graceful", ["true", "false"])
@pytest.mark.parametrize("returns", ["0.0", "1.0"])
def test_a_restart_starts_a_client_that_is_down(graceful: str, returns: str) -> None:
    deploy = step("rolling-restart", 50, f"graceful = {graceful}\n")
    trace = Kept(fault("member-crash", 40, 100, f"returns = {returns}\n") + deploy)
    assert trace.hosts("start")[2:] == [(name, 54) for name in BOTH]


def test_a_client_that_is_down_for_another_time_is_down_until_that_is_over() -> None:
    crashes = fault("member-crash", 40, 60) + fault("member-crash", 60, 100)
    trace = Kept(crashes + step("rolling-restart", 50))
    assert sorted(trace.hosts("start")[2:]) == sorted((name, at) for name in BOTH for at in (54, 160))


def test_a_client_that_was_scaled_away_while_it_was_down_stays_away() -> None:
    crashes = fault("member-crash", 40, 60)
    trace = Kept(crashes + step("scale", 50, "members = 1\n") + step("rolling-restart", 49))
    assert trace.hosts("start")[2:] == [("client-1", 53)]


def test_a_client_that_no_step_has_started_yet_is_not_started_by_a_restart() -> None:
    scaled = '[[steps]]\nkind = "scale"\nat = "40s"\nover = "60s"\nmembers = 4\n'
    trace = Kept(scaled + step("rolling-restart", 50))
    assert ("client-4", 70) in trace.hosts("start")
    assert [at for name, at in trace.hosts("start") if name == "client-4"] == [70]


def test_a_client_that_stands_still_is_restarted_when_it_goes_on() -> None:
    trace = Kept(fault("member-freeze", 40, 20) + step("rolling-restart", 50))
    assert sorted(trace.hosts("stop")) == [(name, 60) for name in BOTH]
    assert sorted(trace.hosts("start")[2:]) == [(name, 64) for name in BOTH]


def test_a_client_comes_back_however_long_it_takes_to_stop() -> None:
    slow = fault("slow-callback", 40, 30) * 4
    trace = Kept(slow + step("rolling-restart", 50))
    stopped, started = dict(trace.hosts("stopped")), dict(trace.hosts("start")[2:])
    assert max(stopped.values()) > 54
    assert all(4 <= started[name] - stopped[name] <= 5 for name in BOTH)


def test_partitions_of_a_super_stream_are_spread_over_clients(scene: Scene) -> None:
    assert sorted(name for names in scene.active().values() for name in names) == ["client-1", "client-2"]


def test_time_without_an_active_consumer_begins_with_the_end_of_a_connection_that_nobody_notices(
    scene: Scene,
) -> None:
    clients = scene.world.clients.values()
    connections = [each for node in scene.world.cluster.nodes.values() for each in node.connections.values()]
    before = scene.active()
    for act in [each.freeze_process for each in clients] + [
        partial(each.end, "lost") for each in connections
    ]:
        scene.do(act)
    scene.until(90)
    assert scene.active() == before, "in their own eyes, which is what a trace has"
    for client in clients:
        scene.do(client.thaw_process)
    scene.until(120)
    gaps = scene.run.counts().figures
    assert gaps["without_active_count"] >= 2
    assert 60 <= gaps["without_active_longest_seconds"] < 90


def test_a_client_that_dies_is_replaced(scene: Scene) -> None:
    scene.do(scene.world.clients["client-1"].crash)
    scene.until(60)
    assert set(map(tuple, scene.active().values())) == {("client-2",)}
    scene.do(scene.world.clients["client-1"].start)
    scene.until(120)
    assert sorted(name for names in scene.active().values() for name in names) == ["client-1", "client-2"]


def test_a_node_that_is_lost_blocks_its_groups_until_it_is_forgotten(scene: Scene) -> None:
    cluster = scene.world.cluster
    assert cluster.leader is not None
    nodes = [node for node in cluster.nodes.values() if node.connections and node is not cluster.leader]
    victim = frozenset({nodes[0].name})
    scene.do(lambda: cluster.split(victim))
    scene.until(50)
    assert any(status.startswith("DISCONNECTED") for status in scene.statuses())
    scene.until(120)
    assert any(status.startswith("FORGOTTEN") for status in scene.statuses())
    scene.do(lambda: cluster.mend(victim))
    scene.until(200)
    assert set(scene.statuses()) == {"CONNECTED_ACTIVE", "CONNECTED_WAITING"}
    assert all(len(names) == 1 for names in scene.active().values())


def test_a_node_that_leaves_is_purged_by_the_tick(scene: Scene) -> None:
    cluster = scene.world.cluster
    node = next(node for node in cluster.nodes.values() if node.connections)
    scene.do(lambda: cluster.leave(node))
    scene.until(130)
    assert cluster.host is not None
    assert node.name not in cluster.host.coordinator.state.nodes
    assert all(len(names) == 1 for names in scene.active().values())


def test_another_leader_goes_on_where_the_one_before_stopped(scene: Scene) -> None:
    before, leader = scene.statuses(), scene.world.cluster.leader
    scene.do(scene.world.cluster.move)
    assert scene.world.cluster.host is None
    scene.until(60)
    assert scene.world.cluster.leader is not leader
    assert scene.statuses() == before


def test_a_client_that_stands_still_is_cut_off(scene: Scene) -> None:
    frozen = scene.world.clients["client-1"]
    scene.do(frozen.freeze_process)
    scene.do(scene.world.clients["client-2"].crash)
    scene.do(scene.world.clients["client-2"].start)
    scene.until(260)
    host = scene.world.cluster.host
    assert host is not None
    owed = scene.world.subscriptions[1].stream
    members = {key.stream: len(group.consumers) for key, group in host.coordinator.state.groups.items()}
    assert members[owed] == 1
    scene.do(frozen.thaw_process)
    scene.until(300)
    assert all(len(names) == 1 for names in scene.active().values())


def test_the_one_that_answers_too_early_is_found() -> None:
    made = Scene()
    stream, names = next((stream, names) for stream, names in made.active().items() if names)
    owner = next(
        each.connection.owner
        for each in made.world.clients[names[0]].subscribers
        if each.subscription.stream == stream and each.connection is not None
    )
    made.world.tell("on_let_go", "k1@n1", owner)
    assert [violation.invariant for violation in made.world.violations] == ["sac-exclusive"]
    made.close()


class TestLinks:
    def make(self) -> tuple[VirtualLoop, Links, list[str]]:
        loop = VirtualLoop()
        links = Links(loop, Draws(1), constant(1_000), constant(5 * SECOND))
        return loop, links, []

    def test_a_short_cut_only_delays(self) -> None:
        loop, links, seen = self.make()
        links.between("a", "b").cut()
        links.send("a", "b", seen.append, "held", lambda: seen.append("lost"))
        loop.run_until(SECOND)
        assert seen == []
        assert links.know("a", "b")
        assert not links.reach("a", "b")
        links.between("a", "b").mend()
        loop.run_until(2 * SECOND)
        assert seen == ["held"]
        loop.close()

    def test_a_long_one_is_noticed_and_loses_what_was_sent(self) -> None:
        loop, links, seen = self.make()
        changes: list[tuple[str, str, bool]] = []
        links.on_change = lambda one, other, link: changes.append((one, other, link.is_lost))
        links.between("b", "a").cut()
        links.send("a", "b", seen.append, "held", lambda: seen.append("lost"))
        loop.run_until(6 * SECOND)
        links.send("a", "b", seen.append, "late", lambda: seen.append("lost too"))
        links.between("a", "b").mend()
        loop.run_until(7 * SECOND)
        assert seen == ["lost", "lost too"]
        assert changes == [("a", "b", True), ("a", "b", False)]
        loop.close()

    def test_messages_keep_their_order(self) -> None:
        loop, links, seen = self.make()
        for number in range(5):
            links.send("a", "b", seen.append, str(number))
        links.send("a", "a", seen.append, "at once")
        loop.run_until(SECOND)
        assert seen == ["at once", "0", "1", "2", "3", "4"]
        loop.close()


def test_scenarios_of_single_active_consumers_are_none_of_consumer_groups() -> None:
    with pytest.raises(FencepostError, match="single active consumers"):
        load("sac-churn")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("cluster.tick=0s",), "expected at least 1ms"),
        (("cluster.brokers=3",), "unknown key"),
        (("faults.0.kind=append-failure",), "expected one of member-crash"),
        (("streams.0.partitions=-1",), "a whole number of at least 0"),
        (("protocol=amqp",), "expected one of sac"),
        (("protocol=3",), "expected one of sac"),
    ],
)
def test_a_mistake_is_told_with_its_place(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(FencepostError, match=message):
        load_any("sac-churn", overrides=overrides)


def test_partitions_are_shared_among_super_streams() -> None:
    loaded = load_any("sac-churn", partitions=6, members=2, duration="20m")
    assert isinstance(loaded, SacScenario)
    assert [stream.partitions for stream in loaded.streams] == [6]
    assert loaded.partitions == 6
    assert loaded.group.members == 2
    with pytest.raises(FencepostError, match="no super stream"):
        load_any("sac-churn", partitions=6, overrides=("streams.0.partitions=0",))


def test_what_is_refused_is_told(scene: Scene) -> None:
    """A group keeps its partition index: the coordinator's own answer."""
    cluster = scene.world.cluster
    command = sac.RegisterConsumer(
        stream=scene.world.subscriptions[0].stream,
        consumer_name="billing",
        connection="k99@n1",
        subscription_id=0,
        partition_index=7,
    )
    reply = cluster.process(command)
    assert reply == sac.SacReply(error=sac.SacError.PARTITION_INDEX_CONFLICT)


@pytest.mark.parametrize(("slow", "seed"), [("callback=90s", 2), ("processing=2m", 3)])
def test_clients_that_are_cut_off_before_they_step_down_break_nothing(slow: str, seed: int) -> None:
    result = run(load_any("sac-churn", overrides=[f"application.{slow}"]), seed)
    assert result.violations == []
    assert not result.converged


def test_the_clients_of_the_library_keep_up() -> None:
    scenarios = [load_any(entry.name) for entry in library() if entry.protocol == "sac"]
    assert all(isinstance(each, SacScenario) and each.keeps_up for each in scenarios)


def test_groups_that_have_no_time_to_settle_break_nothing() -> None:
    result = run(load_any("sac-node-failures", overrides=["quiet=0s"]), 2)
    assert result.violations == []
