"""What brokers refuse for good, while an application runs, goes to its uncaught-exception handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fencepost import EmbeddedKafka, StreamsApp
from fencepost import StreamClientState as S
from fencepost import StreamThreadExceptionResponse as Response
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

PROTOCOLS = ("streams", "consumer", "classic")
QUICK = {"group.streams.initial.rebalance.delay.ms": 0, "group.initial.rebalance.delay.ms": 0}


class Application:
    """An application, and what its handler was asked about."""

    def __init__(self, kafka: Any, **settings: Any) -> None:
        self.asked: list[BaseException] = []
        self.seen = 0
        self.app = StreamsApp(
            self._process,
            topics=["orders"],
            group_id="billing",
            handler=self._handle,
            bootstrap_servers=kafka.bootstrap_servers,
            **{"commit_interval_ms": 50, **settings},
        )

    async def _process(self, partition: Any, records: Sequence[Any]) -> None:
        self.seen += len(records)

    def _handle(self, error: BaseException) -> Response:
        self.asked.append(error)
        return Response.SHUTDOWN_CLIENT

    async def runs(self) -> None:
        await until(lambda: self.app.state is S.RUNNING)

    async def fails(self, kind: str, *said: str) -> None:
        assert await asyncio.wait_for(self.app.wait_ended(), 20) is S.ERROR
        (error,) = self.asked
        assert type(error).__name__ == kind
        assert [each for each in said if each not in str(error)] == []


def take_users_away(kafka: Any) -> None:
    kafka.remove_user("alice")
    kafka.restart()


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("consumer", "SCRAM-SHA-256"),
        ("streams", "PLAIN"),
        ("classic", "PLAIN"),
    ],
)
@pytest.mark.long
async def test_credentials_that_are_revoked(protocol: str, mechanism: str) -> None:
    users = {"alice": "secret"}
    async with EmbeddedKafka(topics={"orders": 1}, users=users, config=QUICK) as kafka:
        application = Application(
            kafka,
            group_protocol=protocol,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="secret",
        )
        async with application.app:
            await application.runs()
            take_users_away(kafka)
            await application.fails("AuthenticationError", kafka.bootstrap_servers)


@pytest.mark.long
async def test_credentials_that_are_revoked_while_a_commit_is_under_way() -> None:
    async with EmbeddedKafka(topics={"orders": 1}, users={"alice": "secret"}, config=QUICK) as kafka:
        application = Application(
            kafka,
            security_protocol="SASL_PLAINTEXT",
            sasl_plain_username="alice",
            sasl_plain_password="secret",
        )
        async with application.app:
            await application.runs()
            kafka.delay("OFFSET_COMMIT", 5)
            kafka.produce("orders", b"a record", partition=0)
            await until(lambda: application.seen)
            await asyncio.sleep(0.2)
            take_users_away(kafka)
            await until(lambda: application.asked)
            await application.fails("AuthenticationError")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("api", "code", "kind"),
    [
        ("OFFSET_COMMIT", "GROUP_AUTHORIZATION_FAILED", "GroupAuthorizationFailedError"),
        ("OFFSET_COMMIT", "TOPIC_AUTHORIZATION_FAILED", "TopicAuthorizationFailedError"),
        ("FETCH", "TOPIC_AUTHORIZATION_FAILED", "TopicAuthorizationFailedError"),
    ],
)
async def test_rights_that_are_taken_away(protocol: str, api: str, code: str, kind: str) -> None:
    async with EmbeddedKafka(topics={"orders": 1}, config=QUICK) as kafka:
        application = Application(kafka, group_protocol=protocol)
        async with application.app:
            await application.runs()
            kafka.fail_next(api, code, times=1_000)
            kafka.produce("orders", b"a record", partition=0)
            await application.fails(kind)


@pytest.mark.parametrize("protocol", ["streams", "consumer"])
async def test_a_topic_that_brokers_do_not_tell_of_any_more(protocol: str) -> None:
    async with EmbeddedKafka(topics={"orders": 1}, config=QUICK) as kafka:
        application = Application(kafka, group_protocol=protocol, metadata_max_age_ms=200)
        async with application.app:
            await application.runs()
            kafka.fail_next("METADATA", "TOPIC_AUTHORIZATION_FAILED", times=1_000)
            await application.fails("TopicAuthorizationFailedError", "orders")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_log_that_may_not_be_asked_where_it_begins(protocol: str) -> None:
    async with EmbeddedKafka(topics={"orders": 1}, config=QUICK) as kafka:
        kafka.fail_next("LIST_OFFSETS", "TOPIC_AUTHORIZATION_FAILED", times=1_000)
        application = Application(kafka, group_protocol=protocol)
        async with application.app:
            await application.fails("TopicAuthorizationFailedError", "orders")


async def test_a_commit_that_fails_for_now_is_made_again() -> None:
    async with EmbeddedKafka(topics={"orders": 1}, config=QUICK) as kafka:
        application = Application(kafka)
        async with application.app:
            await application.runs()
            kafka.fail_next("OFFSET_COMMIT", "STALE_MEMBER_EPOCH", times=2)
            kafka.produce("orders", b"a record", partition=0)
            await until(lambda: kafka.group("billing").offsets() == {("orders", 0): 1})
        assert application.asked == []


# -- settings that only brokers refuse ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group_protocol": "classic", "session_timeout_ms": 7_200_000}, "group.max.session.timeout.ms"),
        ({"group_protocol": "consumer", "group_remote_assignor": "nobody's"}, "nobody's"),
    ],
)
async def test_threads_that_fail_at_once_are_replaced_with_pauses(
    settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[BaseException] = []

    def replace(error: BaseException) -> Response:
        errors.append(error)
        return Response.REPLACE_THREAD

    async with EmbeddedKafka(topics={"orders": 1}, config=QUICK) as kafka:
        application = Application(kafka, **settings)
        application.app.set_uncaught_exception_handler(replace)
        began = time.monotonic()
        async with application.app:
            await until(lambda: len(errors) >= 6)  # at 0, 0, 0.1, 0.3, 0.7 and 1.5 s, or a little less
            assert time.monotonic() - began > 0.7
    assert {type(error).__name__ for error in errors} == {type(errors[0]).__name__}
    assert said in str(errors[0])
    logged = [record.getMessage() for record in caplog.records]
    assert any(each.startswith("a stream thread failed") and said in each for each in logged)
    assert any(each.startswith("a stream thread waits before it starts") for each in logged)
