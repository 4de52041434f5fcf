"""What is merged keeps what caused what, however late members and the journal are heard."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from fencepost.simulation.lab.chaos.merge import LOG, Merge

MEMBERS_DELAY_US = 1_000
MEMBERS = ("one", "two", "three")


class Item(NamedTuple):
    """What happened: `kind` is local, request, record or answer; `true_us` is when."""

    source: str
    kind: str
    exchange: int
    true_us: int


class Heard(NamedTuple):
    at_us: int
    t_us: int
    item: Item


@st.composite
def histories(draw: st.DrawFn) -> list[Item]:
    """Members each do one thing after the other; each request becomes a record, and is answered then."""
    free_at = dict.fromkeys(MEMBERS, 0)
    log_at = 0
    items: list[Item] = []
    for exchange in range(draw(st.integers(1, 12))):
        member = draw(st.sampled_from(MEMBERS))
        gap = st.integers(1, 3_000)
        asked = free_at[member] + draw(gap)
        if draw(st.booleans()):
            items.append(Item(member, "local", exchange, asked))
            free_at[member] = asked
            continue
        logged = log_at = max(asked + draw(st.integers(1, 800)), log_at + 1)
        answered = logged + draw(st.integers(1, 800))
        items += [
            Item(member, "request", exchange, asked),
            Item(LOG, "record", exchange, logged),
            Item(member, "answer", exchange, answered),
        ]
        free_at[member] = answered
    return items


@st.composite
def hearings(draw: st.DrawFn, log_delay_us: int) -> list[Heard]:
    """Each source is heard in its order; members' events soon, the journal's any time later."""
    heard: list[Heard] = []
    latest: dict[str, int] = {}
    for item in sorted(draw(histories()), key=lambda each: each.true_us):
        limit = log_delay_us if item.source == LOG else MEMBERS_DELAY_US
        at = max(item.true_us + draw(st.integers(0, limit)), latest.get(item.source, 0))
        latest[item.source] = at
        # A broker's clock shows milliseconds, of which the end is taken.
        t_us = item.true_us // 1_000 * 1_000 + 999 if item.source == LOG else item.true_us
        heard.append(Heard(at, t_us, item))
    return sorted(heard, key=lambda each: each.at_us)


def push(merge: Merge[Item], heard: Heard) -> None:
    item = heard.item
    merge.push(
        item.source,
        heard.t_us,
        item,
        after=item.exchange if item.kind == "answer" else None,
        marks=(item.exchange,) if item.kind == "record" else (),
    )


def push_told(merge: Merge[Item], heard: Heard) -> None:
    """As `push`, where members tell what they ask for, as they do of commits."""
    item = heard.item
    merge.push(
        item.source,
        heard.t_us,
        item,
        after={"answer": item.exchange, "record": ("asked", item.exchange)}.get(item.kind),
        marks={"record": (item.exchange,), "request": (("asked", item.exchange),)}.get(item.kind, ()),
    )


def check(merged: list[tuple[int, Item]], heard: list[Heard]) -> None:
    items = [item for _, item in merged]
    assert sorted(items) == sorted(each.item for each in heard)
    assert [t_us for t_us, _ in merged] == sorted(t_us for t_us, _ in merged)
    for source in (LOG, *MEMBERS):
        own = [item.true_us for item in items if item.source == source]
        assert own == sorted(own)
    place = {(item.kind, item.exchange): at for at, item in enumerate(items)}
    for kind, exchange in place:
        if kind == "answer":
            assert place["request", exchange] < place["record", exchange] < place["answer", exchange]


@given(hearings(log_delay_us=50_000))
def test_what_is_drained_is_in_causal_order(heard: list[Heard]) -> None:
    merge: Merge[Item] = Merge(patience_us=10_000_000)
    for each in heard:
        push(merge, each)
    check(list(merge.drain()), heard)


@given(hearings(log_delay_us=50_000), st.integers(-20_000, 20_000))
def test_clocks_that_differ_do_not_bring_causes_out_of_order(heard: list[Heard], skew_us: int) -> None:
    merge: Merge[Item] = Merge(patience_us=10_000_000)
    for each in heard:
        skewed = max(each.t_us + skew_us, 0) if each.item.source == LOG else each.t_us
        push_told(merge, each._replace(t_us=skewed))
    check(list(merge.drain()), heard)


def test_what_waits_in_vain_goes_after_its_time() -> None:
    merge: Merge[str] = Merge(patience_us=1_000)
    merge.push("one", 10, "answer", after="never")
    merge.push("one", 20, "next")
    merge.push("two", 500, "other")
    merge.push("two", 2_000, "later")
    told = [(500, "other"), (500, "answer"), (500, "next"), (2_000, "later")]
    assert list(merge.drain()) == told


def test_records_come_first_at_one_time() -> None:
    merge: Merge[str] = Merge()
    merge.push("one", 1_999, "member's")
    merge.push(LOG, 1_999, "journal's")
    assert [item for _, item in merge.drain()] == ["journal's", "member's"]
