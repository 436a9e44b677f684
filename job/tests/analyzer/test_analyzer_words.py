"""The analyzer on ranks that fail with words which name another rank."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from job.tests.support.analyzed import at_once, only
from job.tests.support.observations import WORLD, dead, member, rank
from job.tests.support.observed_jobs import every_rank, others

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Finding

CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"
COUNTS = (
    "RuntimeError: DDP expects same model across all ranks, but Rank {0} has {1} params, "
    "while rank {2} has inconsistent {3} params."
)
SIZES = "RuntimeError: [{0}]: params[2] in this process with sizes [16] does not match those of the param in process 0."
REFERENCE = "ValueError: rank {0}: vocabulary of {1} entries, rank 0 has {2}"
MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {0} runs ALLREDUCE, but Rank {2} runs BROADCAST"
)
TOLD_ALL = [
    "CheckpointException: CheckpointException ranks:dict_keys([{0}]) Traceback: missing key (RANK {0})",
    "ExchangeError: rank {0} sends another tensor, or has another codec for it",
    "ExchangeError: rank {0} could not do its part: ValueError: no rows",
]


def found(said: dict[int, str], world: int = WORLD) -> list[Finding]:
    """What is found where these ranks fail of this within a moment, and the others lose their connections."""
    ends = {n: dead(60.0 - 0.01 * (n * 7 % world), said.get(n, CLOSED)) for n in range(world)}
    return at_once([rank(n, member(31, waits=None), world=world, **ends[n]) for n in ends], world=world)


def told(findings: list[Finding]) -> tuple[list[int], list[list[int]], str]:
    finding = only(findings)
    assert finding.code == "TW-LOST"
    return finding.suspects, finding.sides, finding.confidence


@every_rank
@pytest.mark.parametrize("text", [COUNTS, MISMATCH])
def test_who_most_others_compare_themselves_with(culprit: int, text: str) -> None:
    first = {n: 0 if n == culprit != 0 else min(others(culprit)) if n == culprit else culprit for n in range(WORLD)}
    assert told(found({n: text.format(n, 10 + n, first[n], 20) for n in range(WORLD)})) == ([culprit], [], "medium")


@every_rank
@pytest.mark.parametrize("text", TOLD_ALL)
def test_who_is_named_by_all_and_itself(culprit: int, text: str) -> None:
    finding = only(found(dict.fromkeys(range(WORLD), text.format(culprit))))
    assert (finding.suspects, finding.confidence) == ([culprit], "medium")
    assert f"rank {culprit} is named by others: ranks " in finding.summary
    assert text.format(culprit) in finding.summary


@pytest.mark.parametrize("text", [REFERENCE, SIZES])
def test_a_reference_that_most_differ_from_is_the_odd_one(text: str) -> None:
    said = {n: text.format(n, 32000, 32064) for n in (1, 2, 3)}
    assert told(found(said)) == ([0], [], "medium")
    assert "rank 2" in only(found(said)).summary, "words that differ in digits are quoted beside the first"
    assert told(found({3: said[3]})) == ([3], [], "medium"), "one alone that differs from the reference"
    assert told(found({2: said[2], 3: said[3]})) == ([], [[2, 3], [0, 1]], "medium")
    assert told(found({1: said[1]}, 2)) == ([], [[1], [0]], "medium")


def test_two_that_name_each_other_are_sides() -> None:
    said = {n: COUNTS.format(n, 10 + n, 1 - n, 11 - n) for n in range(2)}
    assert told(found(said, 2)) == ([], [[0], [1]], "medium")
    halves = {n: COUNTS.format(n, n // 2, 2 - 2 * (n // 2), 2) for n in range(WORLD)}
    assert [set(map(tuple, told(found(halves))[1]))] == [{(0, 1), (2, 3)}]


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: rank {0}: no sample",
        "ValueError: local rank 1 has no device",
        "ValueError: lora rank 1 is too small",
        "RuntimeError: expected a rank 1 tensor",
        "RuntimeError: expected 1 rank, got 2",
        "FileNotFoundError: shard_1/rank.pt",
        "ValueError: rank 4711 is out of range",
        "ValueError: codec: a on rank 0, b on rank 1",
    ],
)
def test_words_that_name_no_other_rank_single_none_out(text: str) -> None:
    assert told(found({n: text.format(n) for n in (1, 2, 3)})) == ([1, 2, 3], [], "medium")


def test_what_is_said_later_names_none() -> None:
    ends = {n: dead(50.0, COUNTS.format(n, 1, 0, 2)) for n in (1, 2, 3)} | {0: dead(50.0, CLOSED)}
    ends[3] = dead(60.0, "ValueError: loss is NaN")
    finding = only(at_once([rank(n, member(31, waits=None), **ends[n]) for n in range(WORLD)]))
    assert (finding.suspects, finding.confidence) == ([3], "high")


CHECKS = ["ValueError: expected 32 rows, got 31", "AssertionError: loss is not finite", "ValueError: {} sums differ"]
OF_ITS_OWN = ["OutOfMemoryError: tried to allocate 2 GiB", "ImportError: no module named apex", "OSError: disk is full"]


@every_rank
@pytest.mark.parametrize("text", [*CHECKS, *OF_ITS_OWN])
def test_a_check_of_one_alone_may_have_failed_of_what_another_one_sent(culprit: int, text: str) -> None:
    confidence = "medium" if text in CHECKS else "high"
    assert told(found({culprit: text.format(culprit)})) == ([culprit], [], confidence)


@every_rank
def test_one_error_alone_is_less_sure_while_ranks_that_may_have_failed_alike_are_out_of_view(culprit: int) -> None:
    ends = {n: dead(60.0, "OSError: disk is full" if n == culprit else CLOSED) for n in range(WORLD)}
    seen = [rank(n, member(31, waits=None), **ends[n]) for n in range(WORLD) if n != (culprit + 1) % WORLD]
    assert told(at_once(seen)) == ([culprit], [], "medium")


def drawn_job(source: random.Random) -> tuple[int, dict[int, str], int]:
    """A culprit, the words of those that fail, and the number of ranks."""
    world = source.choice([2, 3, 4, 4, 8])
    culprit, digits = source.randrange(world), source.randrange(10, 99)
    honest = [n for n in range(world) if n != culprit]
    reach = [n for n in honest if source.random() < 0.8] or honest[:1]  # the launcher ends some before they speak
    prefix = source.choice(["", "[rank {own}] ", "step {digits}: ", "on host-{digits} "])

    def spoken(number: int, text: str) -> str:
        return "RuntimeError: " + prefix.format(own=number, digits=digits) + text

    compares: list[Callable[[int], str]] = [
        lambda n: COUNTS.format(n, digits, culprit if n != culprit else honest[0], digits + 1),
        lambda n: MISMATCH.format(n, digits, culprit if n != culprit else honest[0]),
        lambda _: source.choice(TOLD_ALL[:1]).format(culprit),
        lambda _: TOLD_ALL[1].format(culprit),
        lambda n: f"AssertionError: weights of {digits + n} bytes differ",
        lambda n: f"ValueError: lora rank {n % 2} is too small",
    ]
    kind = source.randrange(len(compares) + 1)
    if kind == len(compares):  # a check against rank 0
        said = reach if culprit == 0 else [culprit]
        return culprit, {n: spoken(n, REFERENCE.format(n, 1, 2)) for n in said}, world
    names_none = kind >= len(compares) - 2  # where one alone speaks, it is the culprit
    said = sorted({*reach, culprit}) if names_none or source.random() < 0.8 else reach
    return culprit, {n: spoken(n, compares[kind](n)) for n in said}, world


def test_of_drawn_jobs_an_innocent_rank_is_never_named_at_high_confidence() -> None:
    source = random.Random(20261130)
    named = right = 0
    for _ in range(600):
        culprit, said, world = drawn_job(source)
        suspects, _, confidence = told(found(said, world))
        assert confidence != "high" or suspects == [culprit], (culprit, said)
        named += len(suspects) == 1
        right += suspects == [culprit]
    assert named > 300, named
    assert right > 0.9 * named, (right, named)
