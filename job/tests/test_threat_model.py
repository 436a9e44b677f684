"""job/docs/threat-model.md against the code: its limits are the code's, and the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorwire_job.protocol import connection, encoding, listener
from tensorwire_job.service import merge, service

LIMITS = {
    "unauthenticated connections": (
        f"{listener._MAX_UNAUTHENTICATED}; {listener._MAX_UNAUTHENTICATED_PER_HOST} from one address"
    ),
    "time to show the key": f"{listener._GREETING_SECONDS:g} s",
    "first message": f"{connection._MAX_FIRST_NBYTES:,} bytes",
    "any message": f"{connection.MAX_MESSAGE_NBYTES:,} bytes",
    "bytes from one peer": f"{connection._RATE_NBYTES:,} a second, after {connection._BURST_NBYTES:,} at once",
    "messages from one peer": f"{connection._RATE_MESSAGES} a second, after {connection._BURST_MESSAGES} at once",
    "bytes for a peer that does not read": f"{connection._MAX_WAITING_NBYTES:,}",
    "connections": f"{listener._MAX_CONNECTIONS:,}",
    "nodes of a job": f"{merge.MAX_NODES:,}",
    "numbers in the reports of one node": f"{encoding.MAX_INTEGERS:,}",
    "numbers of all nodes": f"{merge.MAX_INTEGERS:,}",
    "characters of a stack": f"{service._MAX_STACK:,}",
}


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "job/docs/threat-model.md").read_text()


def test_limits_are_those_of_the_code(page: str) -> None:
    section = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE))
    assert {what: rows.get(what, "").startswith(limit) for what, limit in LIMITS.items()} == dict.fromkeys(LIMITS, True)
    assert rows.keys() - LIMITS.keys() == {"what"}


def test_seconds_in_the_text_are_those_of_the_code(page: str) -> None:
    text = " ".join(page.split())
    assert f"not heard of for {merge._SILENT_SECONDS:g} seconds" in text
    assert f"silent for {service._TAKEN_SECONDS:g} seconds" in text
    sizes = connection._KEY_NBYTES
    assert f"A key has {sizes.start} to {sizes.stop - 1:,} bytes" in text


def test_the_tests_that_are_named_exist(page: str, repository: Path) -> None:
    sources = "\n".join(path.read_text() for path in (repository / "job/tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)(?:\[(\w+)\])?`", page)
    assert len(named) > 30
    missing = [name for name, _ in named if f"def {name}(" not in sources]
    cases = [case for _, case in named if case and f'"{case}"' not in sources]
    assert (missing, cases) == ([], [])
