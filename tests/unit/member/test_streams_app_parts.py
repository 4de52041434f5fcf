"""Stores and settings of applications."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost import GlobalThread, IllegalStreamsState, StreamsApp, StreamsError
from fencepost import StreamThreadExceptionResponse as Response
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.kafka import streams
from fencepost.member.kafka.consumer import KIP848Consumer
from fencepost.member.streams.application.changelog import changelog_topic, decode_change, encode_change
from fencepost.member.streams.application.settings import check_process
from fencepost.member.streams.application.store import StateDirectory

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def process(partition: Any, records: Any) -> None: ...


async def with_store(partition: Any, records: Any, store: Any) -> None: ...


# -- stores ------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    directory = StateDirectory(tmp_path, "group")
    directory.lock()
    yield directory
    directory.close()


def test_what_is_committed_is_there_again(directory: StateDirectory) -> None:
    store = directory.store(P0)
    for key, value in [("a", 1), (b"b", "two"), (3, b"three"), ("c", 1.5)]:
        store.put(key, value)
    store.put("a", 2)
    store.delete("c")
    store.commit(10)
    store.put("lost", 1)
    directory.release(P0)
    store = directory.store(P0)
    assert list(store.items()) == [(3, b"three"), ("a", 2), (b"b", "two")]
    assert (len(store), store.get("lost"), store.next_offset) == (3, None, 10)
    assert len(directory.store(P1)) == 0


@pytest.mark.parametrize(("committed", "kept"), [(None, 1), (9, 1), (10, 1), (11, 0)])
def test_a_store_that_another_process_has_overtaken_is_emptied(
    directory: StateDirectory, committed: int | None, kept: int
) -> None:
    directory.store(P0).put("a", 1)
    directory.store(P0).commit(10)
    directory.store(P0).follow(committed)
    assert len(directory.store(P0)) == kept


def test_what_changed_is_told_once_or_again(directory: StateDirectory) -> None:
    store = directory.store(P0)
    store.put("a", 1)
    store.put("b", 1)
    store.delete("b")
    changes = store.take_changes()
    assert changes == {"a": 1, "b": None}
    assert store.take_changes() == {}
    store.put("a", 2)
    store.put_back(changes)
    assert store.take_changes() == {"a": 2, "b": None}


def test_a_store_knows_how_much_of_its_changelog_it_has(directory: StateDirectory) -> None:
    store = directory.store(P0)
    assert store.checkpoint is None
    store.restore("a", 1)
    store.restore("b", 2)
    store.restore("a", None)
    store.restored(3)
    assert store.take_changes() == {}
    directory.release(P0)
    assert store.is_closed
    store = directory.store(P0)
    assert (list(store.items()), store.checkpoint) == ([("b", 2)], 3)
    store.put("c", 3)
    store.commit(10, 5)
    store.commit(11)
    assert (store.checkpoint, store.next_offset) == (5, 11)
    store.clear()
    assert len(store) == 0


async def test_who_waits_for_a_store_is_told_when_it_is_free(directory: StateDirectory) -> None:
    waiter = asyncio.Event()
    directory.store(P0)
    directory.tell_when_free(P0, waiter)
    directory.release(P1)
    assert not waiter.is_set()
    directory.release(P0)
    assert waiter.is_set()


@pytest.mark.parametrize("change", [("a", 1), (b"a", "x"), (3, 1.5), ("gone", None), (2**40, b"\0")])
def test_a_change_is_read_as_it_was_written(change: Any) -> None:
    assert decode_change(*encode_change(*change)) == change


@pytest.mark.parametrize(
    "record", [(b"", b"\x01"), (b"\xc0", None), (b"\x01", b"\x90"), (None, None), (b"\xff", b"!!")]
)
def test_a_record_that_is_no_change_is_refused(record: Any) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        decode_change(*record)


def test_changelogs_have_the_names_of_kafka_streams() -> None:
    assert changelog_topic("billing", "orders") == "billing-orders-changelog"


@pytest.mark.parametrize(
    ("key", "value", "error", "said"),
    [
        (1.5, 1, TypeError, "keys are text"),
        (None, 1, TypeError, "keys are text"),
        (True, 1, TypeError, "keys are text.*got bool"),
        ("a", None, TypeError, "values are text"),
        ("a", [1], TypeError, "values are text"),
        ("a", False, TypeError, "values are text.*got bool"),
        ("a", float("nan"), ValueError, "nan"),
        ("a", 2**63, ValueError, "64 bits"),
        (-(2**63) - 1, 1, ValueError, "64 bits"),
        ("\ud800", 1, ValueError, "surrogates not allowed"),
    ],
)
def test_a_store_takes_what_it_can_give_back(
    directory: StateDirectory, key: Any, value: Any, error: type[Exception], said: str
) -> None:
    store = directory.store(P0)
    with pytest.raises(error, match=said):
        store.put(key, value)
    assert (len(store), store.take_changes()) == (0, {})


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), float("inf"), -0.0, 1.0, "", b"", "k\0v", "ключ🐈"])
def test_a_store_gives_back_what_it_took(directory: StateDirectory, value: Any) -> None:
    store = directory.store(P0)
    store.put("a", value)
    assert repr(store.get("a")) == repr(value)
    assert decode_change(*encode_change("a", value)) == ("a", value)


@pytest.mark.parametrize("key", [1.0, None, True, [1]])
def test_a_key_that_can_be_none_is_not_looked_for(directory: StateDirectory, key: Any) -> None:
    """1.0 and True would be found as 1, and a changelog with such a key can't be read again."""
    store = directory.store(P0)
    store.put(1, "one")
    store.take_changes()
    with pytest.raises(TypeError, match="keys are text"):
        store.get(key)
    with pytest.raises(TypeError, match="keys are text"):
        store.delete(key)
    assert (store.get(1), store.take_changes()) == ("one", {})


def test_a_directory_is_one_clients(directory: StateDirectory, tmp_path: Path) -> None:
    with pytest.raises(StreamsError, match="in use by another client"):
        StateDirectory(tmp_path, "group").lock()
    other = StateDirectory(tmp_path, "another/group")
    other.lock()
    other.close()
    directory.close()
    directory.lock()


def test_a_temporary_directory_goes_with_its_client() -> None:
    directory = StateDirectory(None, "group")
    directory.lock()
    path = directory.path
    assert path is not None
    directory.store(P0).put("a", 1)
    assert path.is_dir()
    directory.close()
    assert not path.parent.exists()


def test_the_cleaner_removes_what_nobody_had_open_for_long(directory: StateDirectory) -> None:
    for partition in (P0, P1):
        directory.store(partition).put("a", 1)
        directory.store(partition).commit(1)
    directory.release(P0)
    assert directory.clean(600) == []
    assert directory.path is not None
    os.utime(directory.path / "t-0" / "store.sqlite", (1, 1))
    os.utime(directory.path / "t-1" / "store.sqlite", (1, 1))
    assert directory.clean(600) == ["t-0"]
    assert directory.store(P1).get("a") == 1
    assert directory.size() > 0


def test_a_file_that_is_no_store_is_named(directory: StateDirectory) -> None:
    assert directory.path is not None
    folder = directory.path / "t-0"
    folder.mkdir()
    (folder / "store.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StreamsError, match="t-0"):
        directory.store(P0)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match="state_dir should be a directory"):
        StateDirectory(file, "group")
    with pytest.raises(StreamsError, match=r"below/group can't be made: .*; give another state_dir"):
        StateDirectory(file / "below", "group").lock()


def test_a_lock_that_is_none_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "group" / "lock.sqlite"
    lock.mkdir(parents=True)
    with pytest.raises(
        StreamsError, match=r"lock\.sqlite can't be used: unable to open.*; remove it, or give"
    ):
        StateDirectory(tmp_path, "group").lock()
    lock.rmdir()
    lock.write_bytes(b"no database" * 100)
    with pytest.raises(StreamsError, match=r"lock\.sqlite can't be used: file is not a database; remove it"):
        StateDirectory(tmp_path, "group").lock()
    lock.unlink()
    directory = StateDirectory(tmp_path, "group")
    directory.lock()
    directory.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_directory_that_is_read_only_is_not_in_use(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group").chmod(0o500)
    with pytest.raises(StreamsError, match=r"lock\.sqlite can't be used: unable to open"):
        StateDirectory(tmp_path, "group").lock()


@pytest.mark.parametrize("given", [True, False])
def test_a_group_whose_name_is_too_long_leaves_nothing_behind(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(StreamsError, match=r"ggg can't be made: File name too long; give a shorter group_id"):
        StateDirectory(tmp_path if given else None, "g" * 300).lock()
    assert list(tmp_path.iterdir()) == []


def test_no_connection_is_left_behind(directory: StateDirectory, tmp_path: Path) -> None:
    directory.store(P0)
    directory.close()
    with sqlite3.connect(tmp_path / "group" / "lock.sqlite", timeout=0) as free:
        free.execute("BEGIN EXCLUSIVE")
    free.close()


# -- settings ----------------------------------------------------------------------------------------------


def app(**settings: Any) -> StreamsApp:
    return StreamsApp(**{"process": process, "topics": ["t"], "group_id": "g", **settings})


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"process": lambda partition, records: None}, TypeError, "async function"),
        ({"process": None}, TypeError, "async function"),
        ({"process": functools.partial(process, 1, 2, 3)}, TypeError, "can't be called"),  # type: ignore[call-arg]
        ({"process": functools.partial(process, 1)}, TypeError, "should take a partition"),
        ({"topics": "t"}, TypeError, "list of names"),
        ({"topics": [1]}, TypeError, "list of names"),
        ({"topics": []}, ValueError, "at least one topic"),
        ({"topics": ["t", " "]}, ValueError, "no blank one"),
        ({"topics": ["t", "t"]}, ValueError, "twice"),
        ({"group_id": ""}, ValueError, "group_id is needed"),
        ({"threads": -1}, ValueError, "0 or more, got -1"),
        ({"threads": 0}, ValueError, "at least 1"),
        ({"threads": True}, TypeError, "whole number"),
        ({"threads": 1.5}, TypeError, "whole number"),
        ({"handler": 3}, TypeError, "handler should be a function"),
        ({"handler": process}, TypeError, "plain function"),
        ({"global_thread": process}, TypeError, "GlobalThread"),
        ({"key_deserializer": 3}, TypeError, "key_deserializer should be a plain function, got 3"),
        ({"global_thread": GlobalThread(["t"], with_store)}, TypeError, "should take a partition"),
        ({"global_thread": GlobalThread([], process)}, ValueError, "at least one topic"),
        ({"group_protocol": "streams-v2"}, ValueError, "group_protocol should be one of"),
        ({"commit_interval_ms": -1}, ValueError, "commit_interval_ms should be 0 ms or more"),
        ({"poll_ms": 0}, ValueError, "poll_ms should be 1 ms or more"),
        ({"poll_ms": "x"}, TypeError, "poll_ms should be a number of milliseconds"),
        ({"commit_interval_ms": "x"}, TypeError, "commit_interval_ms should be a number of milliseconds"),
        ({"metrics_interval_ms": 0}, ValueError, "metrics_interval_ms should be 1 ms or more"),
        ({"state_cleanup_delay_ms": 0}, ValueError, "state_cleanup_delay_ms should be 1 ms or more"),
        ({"max_poll_records": 0}, ValueError, "max_poll_records"),
        ({"max_poll_interval_ms": "x"}, ValueError, "max_poll_interval_ms: expected at least 1 ms, got 'x'"),
        ({"auto_offset_reset": "nowhere"}, ValueError, "auto_offset_reset should be one of"),
        (
            {"auto_offset_reset": "by_duration:1D"},
            ValueError,
            "auto_offset_reset: '1D' is not an ISO-8601 duration",
        ),
        ({"isolation_level": "x"}, ValueError, "isolation_level should be one of"),
        ({"bootstrap_servers": 3}, ValueError, "bootstrap_servers should be host:port.*, got 3"),
        ({"bootstrap_servers": "::::"}, ValueError, "bootstrap_servers should be host:port"),
        ({"bootstrap_servers": ""}, ValueError, "bootstrap_servers should be host:port"),
        ({"bootstrap_servers": "localhost:99999"}, ValueError, "bootstrap_servers should be host:port"),
        ({"security_protocol": "SSL"}, ValueError, "ssl_context"),
        ({"rebalance_timeout_ms": 10}, ValueError, "with the streams group protocol.*max_poll_interval_ms"),
        ({"session_timeout_ms": 3000}, ValueError, "group.streams.session.timeout.ms"),
        (
            {"group_instance_id": "i"},
            ValueError,
            "with the streams group protocol: its groups have no static",
        ),
        ({"group_remote_assignor": "range"}, ValueError, "with the streams group protocol"),
        (
            {"group_protocol": "consumer", "heartbeat_interval_ms": 10},
            ValueError,
            "with the consumer group protocol.*group.consumer.heartbeat.interval.ms",
        ),
        (
            {"group_protocol": "classic", "session_timeout_ms": 3000, "heartbeat_interval_ms": 4000},
            ValueError,
            "heartbeat_interval_ms: expected less than session_timeout_ms",
        ),
        (
            {"group_protocol": "classic", "session_timeout_ms": "3"},
            ValueError,
            "session_timeout_ms: expected at least 1 ms, got '3'",
        ),
        ({"enable_auto_commit": True}, TypeError, "no setting 'enable_auto_commit'"),
        ({"num_threads": 3}, TypeError, "no setting 'num_threads'"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        app(**settings)


@pytest.mark.parametrize("protocol", ["streams", "consumer", "classic"])
async def test_settings_are_checked_in_an_event_loop_as_well(protocol: str) -> None:
    with pytest.raises(ValueError, match="max_poll_records"):
        app(group_protocol=protocol, max_poll_records=0)
    assert app(group_protocol=protocol).threads


def test_a_function_that_takes_a_store_gets_one() -> None:
    assert check_process(with_store).wants_store
    assert not check_process(process).wants_store
    assert check_process(functools.partial(with_store, store=None)).wants_store is False


def test_an_old_handler_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="KIP-671"):
        app(handler=lambda thread, error: None)


async def test_nothing_is_set_after_the_end() -> None:
    one = app()
    one.set_uncaught_exception_handler(lambda error: Response.REPLACE_THREAD)
    one.set_uncaught_exception_handler(None)
    one.set_state_listener(lambda new, old: None)
    with pytest.raises(TypeError, match="plain function"):
        one.set_state_listener(process)
    assert await one.close()
    for setter in (one.set_uncaught_exception_handler, one.set_state_listener):
        with pytest.raises(IllegalStreamsState, match="before the start"):
            setter(None)
    with pytest.raises(IllegalStreamsState, match="starts once"):
        await one.start()


@pytest.mark.parametrize("seconds", [-1, float("nan")])
async def test_times_are_checked(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout should be"):
        await app().close(seconds)
    with pytest.raises(TypeError, match="number of seconds"):
        await app().remove_thread("soon")  # type: ignore[arg-type]


def test_every_setting_that_is_the_apps_own_is_one_of_the_consumers() -> None:
    known = inspect.signature(KIP848Consumer).parameters
    assert set(streams._OWN) <= set(known)
    assert set(streams._CONNECTING) <= set(known)
