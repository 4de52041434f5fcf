"""A failure as a pytest test that depends on nothing but fencepost."""

from __future__ import annotations

import re
from typing import Final

from fencepost.simulation.failures.failure import Failure

_CASE: Final = '''\
"""{sentence}

It fails as long as the bug is there. Run it: python -m pytest {file}
"""

from fencepost.simulation.failures.failure import replay

FAILURE = r"""
{document}
"""


def {name}() -> None:
    assert replay(FAILURE).violations == []
'''

_NAME_LENGTH: Final = 50
"""Number of characters of a scenario's name that the test's name includes: it is also a file name."""


def test_name(failure: Failure) -> str:
    """Return a name for the test, such as test_one_owner_holds_in_swarm_17."""
    name = failure.name[:_NAME_LENGTH]
    words = re.sub(r"\W+", "_", f"{failure.invariant} holds in {name} {failure.seed}")
    return f"test_{words.strip('_').lower()}"


def pytest_case(failure: Failure) -> str:
    """Return the text of a test file."""
    entries = len(failure.plan.entries)
    disturbances = f"{entries} disturbance{'' if entries == 1 else 's'}"
    mutant = f", with the bug {failure.mutant} put back" if failure.mutant else ""
    members = failure.loaded().group.members
    sentence = (
        f"{failure.invariant} in {failure.name}, seed {failure.seed}: {members} "
        f"member{'' if members == 1 else 's'}, {disturbances}{mutant}."
    )
    sentence = sentence.replace("\\", r"\\").replace('"', r"\"")
    name = test_name(failure)
    document = failure.to_json()
    # A raw string can hold anything except its own end; JSON has another way to write a quote.
    document = document.replace('"""', '""\\u0022')
    return _CASE.format(sentence=sentence, file=f"{name}.py", document=document, name=name)
