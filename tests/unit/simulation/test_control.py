"""The control API: the operations are those of Python's classes, and what is wrong gets clear words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.cluster import MetadataRequest, TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.control.app import ControlApp, ServedKafka
from fencepost.simulation.control.operations import NOT_OFFERED, NOT_SCOPED, PLACES, members_of, operations
from fencepost.simulation.control.serving import ControlAddress, controlled
from fencepost.simulation.embedded.controls import EmbeddedClock
from fencepost.simulation.embedded.fault_controls import Fault
from fencepost.simulation.embedded.groups import Group
from fencepost.simulation.embedded.scopes import KafkaScope
from tests.unit.simulation.wire_member import WireMember

pytestmark = pytest.mark.real


def served(kafka: EmbeddedKafka, token: str | None = None) -> httpx.AsyncClient:
    app = ControlApp(ServedKafka(kafka.thread, kafka.endpoint), token)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:9644")


@pytest.fixture
async def http(kafka: EmbeddedKafka) -> AsyncIterator[httpx.AsyncClient]:
    async with served(kafka) as client:
        yield client


async def done(request: Any) -> Any:
    response = await request
    assert response.status_code == 200, response.text
    return response.json()


async def refused(request: Any, status: int) -> str:
    response = await request
    assert response.status_code == status, response.text
    told: str = response.json()["error"]
    return told


# -- the same as in Python --------------------------------------------------------------------------------


def test_every_public_method_is_an_operation_under_its_own_name() -> None:
    offered = {(each.place.path, each.name) for each in operations()}
    classes = {"": EmbeddedKafka, "/clock": EmbeddedClock, "/groups/{group}": Group, "/faults/{fault}": Fault}
    assert {place.path for place in PLACES} == set(classes)
    for path, made_of in classes.items():
        public = {name for name, _ in members_of(made_of)} - set(NOT_OFFERED)
        assert {name for place, name in offered if place == path} == public
    names = {name for made_of in classes.values() for name, _ in members_of(made_of)}
    assert set(NOT_OFFERED) <= names, "what is left out exists"


def test_scopes_refuse_what_affects_others_and_nothing_else(kafka: EmbeddedKafka) -> None:
    calls: dict[str, Callable[[KafkaScope[Any]], object]] = {
        "add_broker": lambda scope: scope.add_broker(),
        "add_user": lambda scope: scope.add_user("a", "b"),
        "advance": lambda scope: scope.clock.advance(1),
        "elect_leaders": lambda scope: scope.elect_leaders(),
        "move_coordinator": lambda scope: scope.move_coordinator(scope.name("g")),
        "remove_broker": lambda scope: scope.remove_broker(1),
        "remove_quota": lambda scope: scope.remove_quota(user="a"),
        "remove_user": lambda scope: scope.remove_user("a"),
        "restart": lambda scope: scope.restart(),
        "set_quota": lambda scope: scope.set_quota(user="a"),
        "start_broker": lambda scope: scope.start_broker(1),
        "stop_broker": lambda scope: scope.stop_broker(1),
    }
    assert set(calls) == NOT_SCOPED
    with kafka.scope() as scope:
        for name, call in calls.items():
            with pytest.raises(Exception, match=f"^{name} would affect other scopes"):
                call(scope)


async def test_the_document_describes_every_operation(http: httpx.AsyncClient) -> None:
    document = await done(http.get("/openapi.json"))
    assert document["openapi"] == "3.1.0"
    for each in operations():
        entry = document["paths"][each.path][each.verb.lower()]
        assert entry["description"]
        said = json.dumps(entry)
        assert not [word for word in (":raises", "None", "FencepostError", "()[") if word in said], said
        assert (each.name in NOT_SCOPED) != (f"/scopes/{{scope}}{each.path}" in document["paths"])
    names = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(names) == len(set(names))
    references = set(_references(document))
    assert references <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert len(references) > 30


def _references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if "$ref" in part else []
        return own + [each for value in part.values() for each in _references(value)]
    return [each for value in part for each in _references(value)] if isinstance(part, list) else []


# -- what it does -----------------------------------------------------------------------------------------


async def test_records_of_text_and_of_bytes(http: httpx.AsyncClient) -> None:
    body = {
        "topic": "orders",
        "values": ["a", {"base64": "/w=="}, None],
        "partition": 1,
        "headers": {"h": "1"},
    }
    await done(http.post("/produce", json=body))
    found = await done(http.get("/records?topic=orders&partition=1"))
    assert [each["value"] for each in found] == ["a", {"base64": "/w=="}, None]
    assert found[0]["headers"] == [["h", "1"]]
    assert (
        await done(http.post("/delete_records", json={"topic": "orders", "partition": 1, "before": 2})) == 2
    )
    assert [each["offset"] for each in await done(http.get("/records?topic=orders"))] == [2]


async def test_a_group_is_waited_for_and_fenced(http: httpx.AsyncClient, kafka: EmbeddedKafka) -> None:
    waiting = asyncio.create_task(
        done(http.post("/groups/g/wait_stable", json={"members": 1, "timeout": 10}))
    )
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    one.join("orders")
    await asyncio.to_thread(one.confirm)
    (member,) = await waiting
    assert await done(http.get("/groups/g/offsets")) == []
    assert (member["member_id"], len(member["assignment"])) == ("m", 4)
    assert member["assignment"][0] == {"topic": "orders", "partition": 0}
    assert await done(http.get("/groups")) == {"g": "Stable"}
    await done(http.post("/groups/g/fence", json={"member": "m"}))
    assert (await asyncio.to_thread(one.heartbeat)).error_code is ErrorCode.FENCED_MEMBER_EPOCH
    assert await done(http.get("/groups/g/state")) == "Empty"
    page = await http.get("/timeline?group_id=g")
    assert page.headers["content-type"].startswith("text/html")
    assert "Group g" in page.text


async def test_a_wait_that_ends_in_vain_says_what_is_missing(http: httpx.AsyncClient) -> None:
    told = await refused(http.post("/groups/a%2Fb/wait_stable", json={"members": 1, "timeout": 0}), 504)
    assert told == "group 'a/b' is not stable after 0 s: members: 1 expected, there are 0"
    added = await done(http.post("/add_fault", json={"action": "silent", "api": "Fetch"}))
    told = await refused(http.post(f"/faults/{added['fault']}/wait_met", json={"timeout": 0}), 504)
    assert told.startswith("fault 1 has met 0 of 1 requests after 0 s, of 0 that it matched")


async def test_events_as_a_stream_that_resumes(http: httpx.AsyncClient, kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", "x")
    app = ControlApp(ServedKafka(kafka.thread, kafka.endpoint))
    stream = app._sent(ServedKafka(kafka.thread, kafka.endpoint), 1)
    first = await anext(stream)
    assert first.startswith(b"id: 2\nevent: topic\ndata: ")
    assert json.loads(first.partition(b"data: ")[2])["detail"] == "created 4"
    kafka.create_topic("later")
    endless = {"Accept": "text/event-stream", "Last-Event-ID": "9" * 5_000}
    assert "since=-1" in await refused(http.get("/events?since=-1", headers=endless), 409)
    while b"created 1" not in (sent := await anext(stream)):
        pass
    assert f"id: {kafka.last_event}\n".encode() in sent
    app.is_closing = True
    assert [each async for each in stream] == []
    assert [row["seq"] for row in await done(http.get("/events?since=1"))][:1] == [2]


async def test_steady_heartbeats_are_left_out_if_asked_for(
    http: httpx.AsyncClient, kafka: EmbeddedKafka
) -> None:
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    one.join("orders")
    one.confirm()
    for _ in range(5):
        await asyncio.to_thread(one.heartbeat)
    own = await done(http.get("/events?group_id=shipping"))
    assert {row["group"] for row in own} <= {"", "shipping"}
    assert "group ''" in await refused(http.get("/events?group_id="), 409)
    every, some = await done(http.get("/events")), await done(http.get("/events?steady=false"))
    assert len(every) > len(some)
    left_out = [row for row in every if row not in some]
    assert {(row["kind"], row["detail"].split()[0]) for row in left_out} == {("heartbeat", "keepalive")}
    app = ControlApp(ServedKafka(kafka.thread, kafka.endpoint))
    served = ServedKafka(kafka.thread, kafka.endpoint)
    sent = await anext(app._sent(served, 0, served._wanted_rows(steady=False, group_id=None)))
    assert sent.count(b"data: ") == len(some)


async def test_the_page_is_given_to_all_and_may_load_nothing_from_elsewhere(kafka: EmbeddedKafka) -> None:
    async with served(kafka, "secret") as http:
        page = await http.get("/", headers={"Sec-Fetch-Site": "cross-site"})
        policy = page.headers["content-security-policy"]
        assert (page.status_code, 'data-token="needed"' in page.text) == (200, True)
        assert policy.startswith("default-src 'none'; ")
        assert "connect-src 'self'; frame-ancestors 'none'" in policy
        assert "secret" not in page.text
        assert "http://" not in page.text.replace("http://www.w3.org", "")
        await refused(http.get("/openapi.json"), 401)


def test_rows_are_taken_from_the_nearer_end(kafka: EmbeddedKafka) -> None:
    for number in range(9):
        kafka.create_topic(f"t{number}")
    observer = kafka.endpoint.observer
    rows = kafka.events()
    for seq in range(kafka.last_event + 2):
        later = [row for row in rows if row.seq > seq]
        assert observer.rows_since(seq) == later
        for most in range(len(rows) + 2):
            assert observer.rows_since(seq, most) == later[:most]


# -- scopes -----------------------------------------------------------------------------------------------


async def test_scopes_do_not_see_each_other_and_leave_nothing(
    http: httpx.AsyncClient, kafka: EmbeddedKafka
) -> None:
    one, other = [await done(http.post("/scopes", json={"name": "t", "topics": {"in": 2}})) for _ in range(2)]
    assert (one["scope"], one["topics"], other["prefix"]) == ("t-1", {"in": "t-1-in"}, "t-2-")
    assert await done(http.get("/scopes/t-1/topics")) == {"t-1-in": 2}
    told = await refused(http.post("/scopes/t-1/produce", json={"topic": "t-2-in", "values": ["x"]}), 409)
    assert told == "topic 't-2-in' is not of this scope: expected a name like 't-1-t-2-in'"
    told = await refused(http.get("/scopes/t-1/records?topic=t-1-on"), 409)
    assert told == "there is no topic 't-1-on'; there are t-1-in"
    await refused(http.get("/scopes/t-1/groups/t-2-g/members"), 409)
    assert "would affect other scopes" in await refused(http.post("/scopes/t-1/restart"), 409)

    member = WireMember(kafka.bootstrap_servers, "t-1-g", "m")
    member.join("t-1-in")
    await asyncio.to_thread(member.confirm)
    body = {"action": "error", "api": "ConsumerGroupHeartbeat", "error": "NOT_COORDINATOR", "times": None}
    added = await done(http.post("/scopes/t-2/add_fault", json=body))
    assert (await asyncio.to_thread(member.heartbeat)).error_code is ErrorCode.NONE
    await refused(http.get(f"/scopes/t-1/faults/{added['fault']}/state"), 409)
    assert await done(http.get("/scopes/t-1/groups")) == {"t-1-g": "Stable"}
    assert await done(http.get("/scopes/t-2/groups")) == {}
    assert {row["group"] for row in await done(http.get("/scopes/t-1/events"))} == {"", "t-1-g"}
    assert {row["actor"] for row in await done(http.get("/scopes/t-2/events"))} == {"t-2-in", "add_fault"}

    await done(http.delete("/scopes/t-1"))
    await done(http.delete("/scopes/t-2"))
    assert await done(http.get("/topics")) == {"orders": 4}
    assert await done(http.get("/groups")) == {}
    assert [each["is_over"] for each in await done(http.get("/faults"))] == [True]
    assert "there is no scope 't-1'" in await refused(http.get("/scopes/t-1/topics"), 409)


def test_a_violation_is_shown_in_the_scope_of_its_group(kafka: EmbeddedKafka) -> None:
    with kafka.scope(topics=["in"]) as one, kafka.scope(topics=["in"]) as other:
        first, second = (WireMember(kafka.bootstrap_servers, one.name("g"), name) for name in ("m", "n"))
        first.join(one.name("in"))
        second.join(one.name("in"))
        second.heartbeat(topic_partitions=first.assignment)
        assert "owned-honest" in [each.invariant for each in one.check()]
        assert other.check() == []
        assert kafka.check() == one.check()


async def test_prometheus_own_parser_reads_the_metrics(http: httpx.AsyncClient, kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", *"abcde", partition=2)
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    one.join("orders")
    one.confirm()
    kafka.add_fault("error", "ConsumerGroupHeartbeat", error="COORDINATOR_NOT_AVAILABLE")
    one.heartbeat()
    one.commit(TopicPartition("orders", 2), 3)
    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        response = await http.get("/metrics", headers={"Accept": accept})
        is_open = response.headers["content-type"].startswith("application/openmetrics-text")
        assert is_open == accept.startswith("application")
        parse = openmetrics_families if is_open else text_families
        found = {
            (sample.name, *dict(sorted(sample.labels.items())).values()): sample.value
            for family in parse(response.text)
            for sample in family.samples
        }
        assert found["fencepost_requests_total", "ConsumerGroupHeartbeat"] == 3
        assert found["fencepost_fault_hits_total", "1"] == 1
        assert found["fencepost_group_members", "g"] == 1
        assert found["fencepost_group_state", "g", "Stable"] == 1
        assert found["fencepost_group_committed_offset", "g", "2", "orders"] == 3
        assert found["fencepost_group_lag", "g", "2", "orders"] == 2
        assert found["fencepost_log_end_offset", "2", "orders"] == 5
        assert found["fencepost_broker_up", "1"] == 1
        assert found["fencepost_violations_total",] == 0
    chosen = await http.get(
        "/metrics", params={"name[]": ["fencepost_group_lag", "fencepost_requests_total"]}
    )
    assert {each.name for each in text_families(chosen.text)} == {"fencepost_group_lag", "fencepost_requests"}


def test_the_end_of_a_scope_waits_for_coordinators_that_load() -> None:
    with EmbeddedKafka(brokers=2) as kafka:
        with kafka.scope(topics=["in"]) as scope:
            kafka.move_coordinator(to=1, load_seconds=0)
            WireMember(kafka.bootstrap_servers, scope.name("g"), "m").join(scope.name("in"))
            assert list(kafka.groups()) == [scope.name("g")]
            kafka.move_coordinator(load_seconds=0.1)
        assert (kafka.topics(), kafka.groups()) == ({}, {})


async def test_a_scope_that_closes_holds_nothing_else_up(
    http: httpx.AsyncClient, kafka: EmbeddedKafka
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    await done(http.post("/scopes", json={"name": "t"}))
    kafka.move_coordinator(load_seconds=60)
    closing = asyncio.create_task(done(http.delete("/scopes/t-1")))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert (await http.get("/timeline")).status_code == 200
    assert not closing.done()
    closing.cancel()


async def test_the_loop_of_the_brokers_has_its_turns_while_records_are_read(kafka: EmbeddedKafka) -> None:
    for number in (1_000, 1_000, 10_000):
        kafka.produce("orders", *["x"] * number, partition=0)
    turns = []

    async def read() -> int:
        reading = asyncio.ensure_future(kafka.endpoint.logs.records("orders", 0, in_turns=True))
        while not reading.done():
            turns.append(1)
            await asyncio.sleep(0)
        return len(reading.result())

    assert await asyncio.wrap_future(kafka.thread.submit(read())) == 12_000
    assert len(turns) > 10


def test_a_scope_sees_that_its_fault_met_a_request_without_a_group(kafka: EmbeddedKafka) -> None:
    with kafka.scope(topics=["in"]) as one, kafka.scope(topics=["in"]) as other:
        one.add_fault("error", "Metadata", error="LEADER_NOT_AVAILABLE")
        asked = MetadataRequest(topics=(TopicReference(name=one.name("in")),))
        WireMember(kafka.bootstrap_servers, "g", "m").ask(ApiKey.METADATA, asked, 12)
        states = [
            [row.state_to for row in each.events() if row.actor == "add_fault"] for each in (one, other)
        ]
        assert states == [["begin", "met", "end"], []]


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/prodce", "{}", 404, "there is nothing at /prodce; did you mean /produce?"),
        ("/topics", "{}", 405, "POST /topics: expected GET, HEAD"),
        ("/produce", '{"topc": "orders"}', 400, "unknown field `topc`; did you mean topic?"),
        (
            "/produce",
            '{"topic": "orders"}',
            400,
            "POST /produce: Object missing required field `values`; it takes topic, values, key",
        ),
        (
            "/produce",
            '{"topic": "orders", "values": "x"}',
            400,
            "Expected `array`, got `string` - at `$.values`",
        ),
        ("/produce", '{"topic":', 400, "JSON is malformed: it ends too early, or with half of a"),
        ("/produce", '{"topic": "\\ud800"}', 400, "surrogate pair; expected a JSON object with topic"),
        ("/groups/g/wait_stable", '{"members": "1"}', 400, "Expected `integer | null`, got `string`"),
        ("/produce", "[]", 400, "Expected `object`, got `array`"),
        ("/produce", '{"topic": "orders", "values": [{"base64": "?"}]}', 400, "at `$.values[0].base64`"),
        ("/fail_next", '{"api": "Comit", "error": "NOT_COORDINATOR"}', 409, "did you mean OffsetCommit or"),
        ("/add_fault", '{"action": "slow"}', 409, "action 'slow' is unknown; known are error, lose_response"),
        ("/add_fault", '{"action": "delay"}', 409, "action 'delay' needs seconds"),
        (
            "/add_fault",
            '{"action": "silent", "every": 0}',
            409,
            "every=0: expected a whole number, 1 or more",
        ),
        ("/groups/g/fence", '{"member": "m"}', 409, "group 'g' has no member 'm'; it has none"),
        ("/faults/7/remove", "", 409, "there is no fault 7; there are none"),
        (f"/faults/{'9' * 5_000}/remove", "", 409, "fault '999999999999999999': expected its number"),
        ("/faults/first/remove", "", 409, "fault 'first': expected its number, as add_fault returns it"),
        ("/scopes", '{"name": "a b"}', 409, "scope 'a b': expected 1 to 100 of a-z"),
    ],
)
async def test_wrong_requests(http: httpx.AsyncClient, path: str, body: str, status: int, told: str) -> None:
    assert told in await refused(http.post(path, content=body), status)


async def test_pages_of_other_origins_are_refused(http: httpx.AsyncClient) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example", "Host": "evil.example"},
        {"Sec-Fetch-Site": "same-origin", "Host": "evil.example:9644"},
    ):
        assert "sent this request" in await refused(http.post("/restart", headers=headers), 403)
    for headers in ({"Origin": "http://127.0.0.1:9644"}, {"Sec-Fetch-Site": "none"}, {"Host": "kafka:9644"}):
        await done(http.get("/topics", headers=headers))


async def test_reads_at_names_that_any_page_could_have_need_a_token(
    http: httpx.AsyncClient, kafka: EmbeddedKafka
) -> None:
    for host in ("evil.example:9644", "evil.example", "EVIL.example.:9644"):
        assert "any page could use" in await refused(http.get("/topics", headers={"Host": host}), 403)
    for host in ("[::1]:9644", "localhost:9644", "host.docker.internal:9644", "k.default.svc.cluster.local"):
        await done(http.get("/topics", headers={"Host": host}))
    async with served(kafka, "secret") as with_token:
        headers = {"Host": "ci.example:9644", "Authorization": "Bearer secret"}
        await done(with_token.get("/topics", headers=headers))


async def test_a_token_is_needed_if_there_is_one(kafka: EmbeddedKafka) -> None:
    async with served(kafka, "secret") as http:
        for given in ("", "Bearer wrong", "Basic secret"):
            told = await refused(http.get("/topics", headers={"Authorization": given}), 401)
            assert "secret" not in told
        await done(http.get("/topics", headers={"Authorization": "Bearer secret"}))
        await done(http.get("/health"))
    async with served(kafka, "geheimnißvoll") as http:
        await done(http.get("/topics", headers={"Authorization": "Bearer geheimnißvoll".encode()}))


async def test_a_server_that_stops_refuses_requests_that_wait(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    urls: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def serve() -> None:
        async with controlled(kafka.endpoint, ControlAddress("127.0.0.1", 0)) as url:
            loop.call_soon_threadsafe(urls.put_nowait, url)
            while not kafka.endpoint.observer.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    serving = asyncio.wrap_future(kafka.thread.submit(serve()))
    async with httpx.AsyncClient(base_url=await urls.get(), timeout=30) as http:
        told = await refused(http.post("/groups/g/wait_stable", json={"timeout": 1_000}), 503)
    assert told == "this server has stopped"
    await serving
    assert "Traceback" not in caplog.text


async def test_a_body_that_is_too_long(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.simulation.control.app.MAX_BODY_BYTES", 100)
    assert "too long" in await refused(http.post("/produce", content=b" " * 101), 413)
