"""The screen of watch, and what a terminal gets: it fits, says what it leaves out, and only trouble is red."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from job.tests.support.fake_job import FakeJob
from job.tests.support.hung_job import hang, not_entered
from job.tests.support.observations import WORLD, dead, member, observed, rank
from tensorwire.cli import output
from tensorwire_job import model
from tensorwire_job.cli.screen import draw, fit
from tensorwire_job.report import History

if TYPE_CHECKING:
    from tests.support.command_line import Run

STACK = "\n".join(f'  File "train.py", line {n} in f{n}' for n in range(30))
RED = re.compile("\x1b\\[[0-9;]*31[;m]")
COLOURED_INK = re.compile("\x1b\\[([0-9;]*)m")


def history_of(observations: Sequence[model.Observation], *findings: model.Finding) -> History:
    history = History()
    for observation in observations:
        history.add(observation, findings if observation is observations[-1] else [])
    return history


def screen(
    history: History, *findings: model.Finding, width: int = 78, height: int = 24, colours: bool = False, **more: Any
) -> str:
    system: Any = "standard" if colours else None
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=colours, color_system=system)
    more = {"thresholds": model.Thresholds()} | more
    drawn = draw(history, findings, Path("a-job"), width=width, height=height, **more)
    console.print(fit(console, drawn, height), end="")
    return console.file.getvalue()


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize("height", [8, 24, 60])
def test_what_does_not_fit_is_counted_and_how_to_leave_is_always_there(height: int) -> None:
    finding = dataclasses.replace(not_entered(), stacks={2: STACK}, evidence=[f"fact {n}" for n in range(9)])
    history = history_of(hang(), finding)
    whole = screen(history, finding, height=200).splitlines()
    shown = screen(history, finding, height=height).splitlines()
    assert len(shown) <= height
    assert shown[-1].startswith("Ctrl-C leaves; the job goes on")
    cut = re.search(r"(\d+) lines? more below", shown[-1])
    if height == 60:
        assert cut is None
    else:
        # A low screen has fewer lines of the stack to begin with.
        assert cut is not None
        assert 0 < int(cut[1]) <= len(whole) - len(shown)
    assert any(line.strip() == "and 5 facts more: tensorwire-job diagnose" for line in whole)


def test_on_a_low_screen_the_status_of_ranks_is_seen_below_a_long_stack() -> None:
    finding = dataclasses.replace(not_entered(), stacks={2: STACK})
    shown = lines_of(screen(history_of(hang(), finding), finding))
    assert "and 25 lines more: tensorwire-job diagnose" in shown
    assert "3 waits in all_reduce #121 of default_pg 27 s 0-1, 3" in shown


def test_red_is_what_a_finding_names() -> None:
    """The same ranks stand at the same place in both; only one of the two is told to be trouble."""
    alone = screen(history_of(hang()), colours=True)
    assert "not in all_reduce #121" in alone
    assert not RED.search(alone)
    named = screen(history_of(hang(), not_entered()), not_entered(), colours=True)
    table = named[named.index("where they stand") :].splitlines()
    absent = next(line for line in table if "not in all_reduce #121" in line)
    waiting = next(line for line in table if "waits in all_reduce #121" in line)
    assert RED.search(absent)
    assert not RED.search(waiting)


def test_colours_that_some_terminals_cannot_show_are_not_used_for_text() -> None:
    """Yellow, green and cyan cannot be read on white, nor blue on black: they are grounds of black text at most."""
    notice = dataclasses.replace(not_entered(), level="notice")
    for findings in ([], [not_entered()], [notice]):
        history = history_of(hang(), *findings)
        text = screen(history, *findings, colours=True)
        for codes in (match.split(";") for match in COLOURED_INK.findall(text)):
            assert not {"32", "33", "34", "36"} & set(codes), codes
            assert not {"42", "43", "46"} & set(codes) or "30" in codes, "black on a bright ground"


def test_a_notice_is_called_so() -> None:
    notice = dataclasses.replace(not_entered(), level="notice")
    text = screen(history_of(hang(), notice), notice)
    assert "TW-H1 notice not-entered hang" in text
    assert "no finding" in text


def test_of_a_job_that_is_well_nobody_is_called_slow() -> None:
    """Counts are read one rank after the other: in a fast job they differ."""
    polls = [
        observed(float(time), [rank(n, member(1000 * time + 7 * n, idle=0.01)) for n in range(WORLD)])
        for time in range(1, 50)
    ]
    early, late = lines_of(screen(history_of(polls[:10]))), lines_of(screen(history_of(polls)))
    assert not any("behind" in line for line in early + late)
    assert early[early.index("slowest by how much") + 1] == "- known after 40 polls; 9 so far"
    assert late[late.index("slowest by how much") + 1] == "- all ranks wait alike"


def test_the_slowest_ranks_are_told_with_how_much() -> None:
    """Rank 2 never waits, the others wait in nine polls of ten."""
    polls = [
        observed(
            float(time),
            [rank(n, member(10 * time, waits=0.1 if n != 2 and time % 10 else None)) for n in range(WORLD)],
        )
        for time in range(1, 62)
    ]
    lines = lines_of(screen(history_of(polls)))
    assert lines[lines.index("slowest by how much") + 1] == "2 waits 90 % of the time less than the median rank"


def test_times_of_rounds_say_by_how_much() -> None:
    timings = {n: model.Timing(1, 10, 0.05 if n == 3 else 2.0, 0.0, 0.3, 1024, 0) for n in range(WORLD)}
    polls = [
        observed(float(time), [rank(n, member(10 * time, timing=timings[n])) for n in range(WORLD)]) for time in (1, 2)
    ]
    lines = lines_of(screen(history_of(polls)))
    at = lines.index("slowest by how much")
    assert lines[at + 1 : at + 2] == ["3 waits 5 ms in an operation, the median rank 200 ms"]


def test_no_finding_while_ranks_have_just_ended_is_no_all_clear() -> None:
    ranks = [rank(n, member(30), **dead(4.0)) if n == 1 else rank(n, member(30)) for n in range(WORLD)]
    text = " ".join(screen(history_of([observed(50.0, ranks)])).split())
    assert "no finding yet 1 rank ended up to 4.0 s ago" in text
    assert "counts as lost after 10 s (--lost-seconds)" in text


def test_many_nodes_that_are_silent_take_one_line() -> None:
    job = hang()[-1]
    job.silent_nodes += [f"node{n:04d}" for n in range(500)]
    assert "no reports from node0000, node0001, node0002, node0003 and 496 more" in screen(history_of([job]), width=200)


def test_many_operations_per_second_are_written_out() -> None:
    polls = [observed(float(t), [rank(n, member(5390 * t)) for n in range(WORLD)]) for t in (1, 2, 3)]
    assert "world 4 5,390" in lines_of(screen(history_of(polls)))


def test_lines_on_a_terminal_are_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "  evidence: " + "long-words and\x1b[2J others " * 6 + "x" * 90
    output.print_wrapped(text)
    whole = capsys.readouterr().out
    assert whole.count("\n") == 1
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    output.print_wrapped(text)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert all(len(line) <= 60 for line in lines[:-1])
    assert all(line.startswith("    ") for line in lines[1:])
    assert " ".join(whole.split()) == " ".join(" ".join(lines).split()), "nothing is lost, no word is broken"


def test_the_screen_fits_any_width() -> None:
    history, findings = history_of(hang(1024, 17, seconds=26)[-2:]), not_entered(1024, 17)
    for width in (24, 40, 80, 200):
        lines = screen(history, findings, width=width, height=200).splitlines()
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        assert "TW-H1" in text
        assert "17" in text
        assert "1,023" in text
        assert len(lines) <= 60


@pytest.mark.parametrize("width", [78, 200])
def test_the_screen_of_a_healthy_job_says_how_it_goes(width: int) -> None:
    thresholds = model.Thresholds(hang_seconds=60.0)
    lines = screen(history_of(hang(seconds=12)), width=width, height=50, thresholds=thresholds).splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("up 11 s; thresholds: hang 60 s, slow 60 s, factor 3, lost 10 s") for line in lines)
    (rates,) = [line.split() for line in lines if line.startswith("default_pg")]
    assert rates[:2] == ["default_pg", "4"]
    assert float(rates[2]) > 0


def test_the_last_trouble_of_the_watch_is_seen() -> None:
    shown = screen(history_of(hang()), width=100, troubles=["the first", "it failed: \x1b[2J exit code 5"])
    assert "it failed: \\x1b[2J exit code 5" in shown
    assert "the first" not in shown


def test_texts_of_a_job_cannot_drive_the_terminal(opened: list[FakeJob], run: Run) -> None:
    evil = "a\x1b[2J\n__b\u202ec[bold]"
    finding = dataclasses.replace(
        not_entered(), summary=evil, evidence=[evil], process_group=evil, stacks={2: evil}, sides=[[0], [1]]
    )
    observations = hang()[24:]
    for observation in observations:
        observation.silent_nodes.append(evil)
        for each in observation.ranks.values():
            each.node = each.phase = each.process_groups[0].name = evil
            assert each.process_groups[0].operation is not None
            each.process_groups[0].operation.name = evil
    opened.append(FakeJob(observations, [finding]))
    _, out, err = run("diagnose")
    assert not set(out + err) & {"\x1b", "\u202e"}
    assert out.count("\\x1b[2J") >= 6
    drawn = screen(history_of(observations[-1:], finding), finding, width=100, height=200)
    assert not set(drawn) & {"\x1b", "\u202e"}
    assert drawn.count("c[bold]") >= 6, "names are no markup"
