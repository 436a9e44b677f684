"""Properties of findings: none names a rank that its own evidence shows waiting for another, no headline contradicts
its evidence, and what has nothing to do with the trouble changes nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job.tests.analyzer.test_analyzer_meshes import left_the_loop
from job.tests.analyzer.test_analyzer_properties import edges, essence, found_under_both, rank_states, renamed
from job.tests.support.analyzed import SECONDS, at_once, only
from job.tests.support.observations import WORLD, dead, member, observed, rank, ring, set_process
from job.tests.support.observed_jobs import every_rank, hung, not_entering
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.model import Call, Operation
from tests.support.drawn import drawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Finding, Observation

quick = drawn(60, 150)

_RANKS = r"ranks? ((?:\d+(?:-\d+)?)(?:, \d+(?:-\d+)?)*)"
_WAITS_ELSEWHERE = re.compile(_RANKS + r" (?:has|have) not entered it either, but waits? in another operation")


def numbers(text: str) -> set[int]:
    """ "0-2, 4" is 0, 1, 2 and 4."""
    found: set[int] = set()
    for part in text.split(", "):
        first, _, end = part.partition("-")
        found.update(range(int(first), int(end or first) + 1))
    return found


def shown_waiting_for_another(finding: Finding) -> set[int]:
    return {
        number for fact in finding.evidence for match in _WAITS_ELSEWHERE.finditer(fact) for number in numbers(match[1])
    }


def check(finding: Finding, observation: Observation) -> None:
    """What holds of each finding."""
    text = " ".join([finding.summary, *finding.evidence])
    assert not shown_waiting_for_another(finding) & set(finding.suspects), text
    if "not in view" in text or "not known which other ranks" in text:
        assert "all members" not in text, text
    if (
        re.search(r"\brank is unknown|cause is unknown|unknown which are wrong", finding.summary)
        and finding.level == "finding"
    ):
        assert not finding.suspects or "not in view" in finding.summary, text
        assert finding.confidence == "low" or finding.sides, text
    if finding.code != "TW-UNKNOWN":
        for number in finding.suspects:
            assert number in observation.ranks, "a rank that is not in view is not accused"
    if finding.suspects and finding.level == "finding":
        every_rank = f"all {len(finding.suspects)} ranks "
        assert re.search(_RANKS, finding.summary) or finding.summary.startswith(every_rank), finding.summary
    for match in re.finditer(r"(\d+(?:\.\d+)?) %", text):
        assert float(match[1]) <= 100, text
    assert not set(finding.suspects) & {number for side in finding.sides for number in side}


@st.composite
def ends(draw: st.DrawFn) -> dict[str, Any]:
    """How a rank ended, or what it said, or nothing."""
    said = draw(
        st.sampled_from(
            ["", "", "KeyboardInterrupt", "ValueError: x", "RuntimeError: Connection closed by peer", "exit 1"]
        )
    )
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return dead(draw(st.sampled_from([3.0, 3.04, 5.0])), said)
    if kind == 1 and said:
        return {"exit_reason": said, "exit_seconds": draw(st.sampled_from([None, 3.0]))}
    if kind == 2:
        return {"signal": "SIGTERM", "signal_seconds": 3.0, **dead(2.9)}
    return {}


@quick
@given(rank_states(), edges, st.lists(ends(), min_size=WORLD, max_size=WORLD))
def test_no_finding_contradicts_itself(ranks: list[Any], connections: list[Any], said: list[dict[str, Any]]) -> None:
    for one, more in zip(ranks, said, strict=False):
        set_process(one, more)
    observation = observed(50.0, ranks, connections)
    for finding in Analyzer(SECONDS).update(observation).findings:
        check(finding, observation)


@quick
@given(rank_states(), st.lists(ends(), min_size=WORLD, max_size=WORLD), st.permutations(range(WORLD)))
def test_names_of_ranks_do_not_matter_at_the_end_of_a_job(
    ranks: list[Any], said: list[dict[str, Any]], names: list[int]
) -> None:
    for one, more in zip(ranks, said, strict=False):
        set_process(one, more)
    found, again = found_under_both(observed(50.0, ranks), names)
    assert found == again


FAULTS: dict[str, Callable[[int], Callable[[float], Observation]]] = {
    "not entered": lambda c: hung(not_entering(c)),
    "another call": lambda c: hung(lambda n, age: [member(31, waits=age, numel=7 if n == c else 8)]),
    "stopped inside": lambda c: hung(lambda n, age: [member(31, waits=age)], states={c: {"state": "T"}}),
    "left a loop": lambda c: hung(left_the_loop(c, dp_is_known=True)),
    "a group not in view": lambda c: hung(left_the_loop(c, dp_is_known=False)),
    "a link": lambda c: hung(
        lambda n, age: [member(31, waits=age)],
        edges=lambda time: ring(backoff=lambda a, b: 3 * (c in (a, b)), send_queue=lambda a, b: 9000 * (c in (a, b))),
    ),
    "died": lambda c: hung(
        lambda n, age: [member(30) if n == c else member(31, waits=age)], states={c: dead(30.0, "ValueError: x")}
    ),
    "ended": lambda c: hung(
        lambda n, age: [member(30, idle=age + 20.0) if n == c else member(31, waits=age + 20.0)],
        states={n: dead(2.5, "KeyboardInterrupt") for n in range(WORLD)},
    ),
}


def told(
    at: Callable[[float], Observation], change: Callable[[Observation], None] = lambda seen: None
) -> list[list[Finding]]:
    analyzer, found = Analyzer(SECONDS), []
    for time in range(16):
        observation = at(float(time))
        change(observation)
        findings = analyzer.update(observation).findings
        for finding in findings:
            check(finding, observation)
        found.append(findings)
    return found


@every_rank
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_process_group_that_is_well_changes_nothing(
    fault: Callable[[int], Callable[[float], Observation]], culprit: int
) -> None:
    """One in which all ranks were in step before the trouble, and that no rank has used since."""
    plain = told(fault(culprit))
    assert plain[-1]

    def add(observation: Observation) -> None:
        done = int(10 * min(observation.time, 3.0)) + 1
        for one in observation.ranks.values():
            one.process_groups.append(member(done, idle=max(observation.time - 3.0, 0.1) + 20.0, group="idle"))

    assert [essence(found) for found in told(fault(culprit), add)] == [essence(found) for found in plain]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@drawn(3, 8)
@given(names=st.permutations(range(WORLD)), culprit=st.integers(0, WORLD - 1))
def test_permuted_ranks_permute_suspects(
    fault: Callable[[int], Callable[[float], Observation]], names: list[int], culprit: int
) -> None:
    plain, analyzer = told(fault(culprit)), Analyzer(SECONDS)
    for time, found in enumerate(plain):
        again = analyzer.update(renamed(fault(culprit)(float(time)), names)).findings
        assert essence(found, names) == essence(again)


@pytest.mark.parametrize("last", [1, 2])
def test_who_waits_alone_after_a_call_out_of_its_habit_leaves_the_other_at_medium_confidence(last: int) -> None:
    """The other may be in what no group counts, such as a loop that polls a store."""

    def calls(lines: list[int]) -> list[Call]:
        operations = (Operation(n, "barrier", "", 0, signature=9) for n in range(1, 1 + len(lines)))
        return [Call("default_pg", each, line) for each, line in zip(operations, lines, strict=True)]

    usual = [1, 2, 3] * 4 + [1]
    waits = rank(0, member(14, waits=60.0, size=2), world=2, calls=calls([*usual, last]))
    finding = only(at_once([waits, rank(1, member(13, idle=60.0, size=2), world=2, calls=calls(usual))], world=2))
    assert (finding.code, finding.suspects) == ("TW-H1", [1])
    assert finding.confidence == ("medium" if last == 1 else "high")
    assert any("may be in the wrong place" in fact for fact in finding.evidence) == (last == 1)
