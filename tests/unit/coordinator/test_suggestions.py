"""Which name was meant where one is unknown."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.suggestions import nearest, suggestion
from fencepost.simulation.embedded.settings import _USUAL_ERRORS
from fencepost.simulation.scenarios.load import library_names

ERRORS = list(ErrorCode.__members__)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("FENCED", "FENCED_MEMBER_EPOCH"),
        ("fenced", "FENCED_MEMBER_EPOCH"),
        ("FENCED_EPOCH", "FENCED_MEMBER_EPOCH"),
        ("FencedMemberEpoch", "FENCED_MEMBER_EPOCH"),
        ("UNKNOWN_MEMBER", "UNKNOWN_MEMBER_ID"),
        ("UNKOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID"),
        ("UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("COORDINATOR_LOADING", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("NOT_A_COORDINATOR", "NOT_COORDINATOR"),
        ("NOT_LEADER", "NOT_LEADER_OR_FOLLOWER"),
        ("TIMEOUT", "REQUEST_TIMED_OUT"),
        ("REBALANCE", "REBALANCE_IN_PROGRESS"),
        ("GENERATION", "ILLEGAL_GENERATION"),
        ("AUTH", "GROUP_AUTHORIZATION_FAILED"),
    ],
)
def test_the_error_that_a_person_means_comes_first(given, meant):
    assert nearest(given, ERRORS, usual=_USUAL_ERRORS)[0] == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("stedy", ["steady"]),
        ("rolling_deploy", ["rolling-deploy"]),
        ("streams-stanby", ["streams-standby-tasks"]),
        ("failover", ["static-failover", "coordinator-failover"]),
        ("zzz", []),
        ("###", []),
        ("", []),
        (7, []),
    ],
)
def test_scenarios_are_suggested_by_their_words(given, meant):
    assert nearest(given, library_names()) == meant


def test_at_most_three_names_are_suggested_and_the_usual_ones_first():
    assert nearest("deploy", ["a-deploy", "b-deploy-x", "deploys", "c-deploy"], usual=["c-deploy"]) == [
        "c-deploy",
        "a-deploy",
        "b-deploy-x",
    ]
    assert nearest("run", ["runs", "a-run-of-many"]) == ["runs"]


def test_a_suggestion_is_a_question_or_what_else_there_is_to_say():
    assert suggestion("stedy", ["steady"], "there are two") == "did you mean steady?"
    assert suggestion("FENCED", ["FENCED_AXE", "B", "FENCED_CAP"], "") == (
        "did you mean FENCED_AXE or FENCED_CAP?"
    )
    assert suggestion("xyz", ["steady"], "there are two") == "there are two"
    assert suggestion("xyz", [], "there is none") == "there is none"
