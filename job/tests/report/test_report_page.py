"""How the page is drawn and worded: for any width, for who cannot see colours or pictures, and in good order."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import pytest

from job.tests.report.test_report import Page, percent, render, told
from job.tests.support.hung_job import hang, not_entered
from job.tests.support.observations import WORLD, member, observed, rank
from tensorwire_job import model, report
from tensorwire_job.report import rank_status
from tensorwire_job.report.history import Rate


def well(seconds: int = 60, *, behind: int = 0) -> list[model.Observation]:
    return [observed(float(t), [rank(n, member(100 * t - behind * n)) for n in range(WORLD)]) for t in range(seconds)]


def history_of(
    observations: list[model.Observation], *spans: tuple[model.Finding, float, float], **settings: bool
) -> report.History:
    """Each finding is told from its first time to its last."""
    history = report.History(**settings)
    for one in observations:
        history.add(one, [finding for finding, first, last in spans if first <= one.time <= last])
    return history


SLOW = dataclasses.replace(not_entered(culprit=1, time=10.0), code="TW-S1", since=5.0, summary="rank 1 is slow")
HUNG = dataclasses.replace(not_entered(culprit=2, time=50.0), since=45.0)


@pytest.mark.parametrize(
    ("spans", "recorded", "headline"),
    [
        ([(SLOW, 10.0, 30.0)], False, "TW-S1 high confidence, for 25 s, until 29 s ago: rank 1 is slow"),
        (
            [(SLOW, 10.0, 30.0)],
            True,
            "TW-S1 high confidence, for 25 s, until 29 s before the recording ended: rank 1 is slow",
        ),
        (
            [(SLOW, 10.0, 30.0), (HUNG, 50.0, 59.0)],
            False,
            f"TW-H1 high confidence, for 14 s: {HUNG.summary}; and 1 more finding",
        ),
        ([(HUNG, 50.0, 59.0)], True, f"TW-H1 high confidence, for 14 s when the recording ended: {HUNG.summary}"),
        ([(dataclasses.replace(HUNG, level="notice"), 50.0, 59.0)], False, "No finding, 1 notice in 59 s"),
        ([], False, "No finding in 59 s"),
    ],
)
def test_headlines(spans: list[tuple[model.Finding, float, float]], recorded: bool, headline: str) -> None:
    text = render(history_of(well(), *spans, recorded=recorded))
    page = Page(text)
    assert page.text_of("h1") == [headline]
    assert re.sub(r"<[^>]*>", "", text.partition("<body>")[2]).lstrip().startswith(f"{headline}\n")
    assert headline in page.text_of("title")[0]


def test_what_stands_comes_before_what_is_over() -> None:
    page = Page(render(history_of(well(), (SLOW, 10.0, 30.0), (HUNG, 50.0, 59.0))))
    codes = [text for text in page.text_of("span") if text.startswith("TW-")]
    assert codes == ["TW-H1", "TW-S1"]


def test_a_healthy_job_has_no_maps_of_nothing() -> None:
    """Counts of ranks that go on differ, since they are read one after the other. Some waiting for CPUs is normal."""
    observations = well(behind=7)
    for one in observations:
        for number, of_rank in one.ranks.items():
            of_rank.process.wait_seconds = 0.04 * one.time * (number + 1) / 4
    assert Page(render(history_of(observations))).text_of("b") == []


def test_waiting_for_a_cpu_is_shown_on_a_scale_to_the_whole() -> None:
    observations = well()
    for one in observations:
        one.ranks[1].process.wait_seconds = 0.3 * one.time
    text = render(history_of(observations))
    page = Page(text)
    assert page.text_of("b") == ["CPU"]
    assert "rank 1: 30 %" in text
    assert len(page.boxes("heat1")) == 1, "30 % is the second of six colours"
    assert "100 %" in text


def test_after_the_fact_rates_are_those_that_ranks_remember() -> None:
    """The ranks went 30 s ago, and remember 24 operations per second: no flat line that was never measured."""
    ranks = [
        rank(n, member(31 - (n == 2), waits=None if n == 2 else 30.0, idle=30.0, baseline_rate=24.0))
        for n in range(WORLD)
    ]
    history = history_of([observed(100.0, ranks), observed(101.0, ranks)], (HUNG, 100.0, 101.0), with_past=True)
    page = Page(render(history))
    assert "24/s" in page.text_of("div")
    assert any("as the ranks remember them" in text for text in page.text_of("p"))
    points = [a["points"] for tag, a in page.tags if tag == "polyline"]
    ys = {float(point.split(",")[1]) for point in str(points[0]).split()}
    assert len(points) == 1
    assert (min(ys), max(ys)) == (2.0, 64.0), "from the top down to nothing"


def test_ranks_that_end_one_after_the_other_do_so_in_the_timeline() -> None:
    gone = [7.43, 9.18, 11.96, 9.21]
    ranks = [rank(n, member(30, idle=gone[n]), life="lost", gone_seconds=gone[n]) for n in range(WORLD)]
    page = Page(render(history_of([observed(100.0, ranks)], with_past=True)))
    whole = 12.0 * 1.15
    for box, seconds in zip(page.boxes("lost"), gone, strict=True):
        assert percent(box["width"]) == pytest.approx(100 * seconds / whole, abs=1)


def test_after_ctrl_c_the_timeline_shows_what_the_ranks_had_waited_in() -> None:
    """Rank 2 left its last operation 28 s ago. The others failed in the next one 8 s ago: torch calls it completed."""
    gone = {"life": "exited", "exit_reason": "KeyboardInterrupt", "exit_kind": "interruption", "gone_seconds": 8.0}
    ranks = [rank(n, member(30, idle=28.0) if n == 2 else member(31, idle=8.0), **gone) for n in range(WORLD)]
    finding = dataclasses.replace(not_entered(time=100.0), since=92.0)
    page = Page(render(history_of([observed(100.0, ranks)], (finding, 100.0, 100.0), with_past=True)))
    whole = 28.0 * 1.15
    waits, absent, ended = (page.boxes(style) for style in ("waits", "absent", "ended"))
    assert [len(waits), len(ended)] == [3, 4]
    for box in waits:
        assert percent(box["x"]) == pytest.approx(100 * (whole - 28.0) / whole, abs=1)
        assert percent(box["width"]) == pytest.approx(100 * 20.0 / whole, abs=1)
    assert len([*absent, *page.boxes("behind")]) == 1, "rank 2, where the others waited for it"


def test_what_stood_still_all_the_time_has_no_curve() -> None:
    page = Page(
        render(told([observed(float(t), [rank(n, member(31, waits=t + 5.0)) for n in range(4)]) for t in (1, 2, 3)]))
    )
    assert [tag for tag, _ in page.tags if tag == "polyline"] == []
    assert any(text.startswith("world (groups of 4)") and "nothing was completed" in text for text in page.text_of("p"))


def test_stragglers_are_ranks_that_no_finding_names() -> None:
    polls = [
        observed(float(t), [rank(n, member(10 * t, waits=0.1 if n != 2 and t % 10 else None)) for n in range(WORLD)])
        for t in range(1, 60)
    ]
    assert "Stragglers" in Page(render(told(polls))).text_of("h2")
    assert "Stragglers" not in Page(render(told(polls, not_entered(culprit=2, time=30.0)))).text_of("h2")


def test_pictures_and_tables_have_words() -> None:
    text = render(told(hang(), not_entered()))
    page = Page(text)
    assert ("html", {"lang": "en"}) in page.tags
    for tag, attributes in page.tags:
        if tag == "svg" and "preserveaspectratio" not in attributes:
            assert attributes.get("role") == "img"
            assert len(attributes.get("aria-label") or "") > 20, "what a picture shows"
        if tag == "th":
            assert attributes.get("scope") in ("col", "row")
        if tag == "table":
            assert attributes.get("aria-label")
    assert "at most 27 s, at ranks 0-1, 3" in text, "who cannot see the heat map"
    headings = [tag for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    levels = [int(tag[1]) for tag in headings]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels)), "no level is left out"


def test_the_timeline_does_not_need_colours() -> None:
    page = Page(render(told(hang(), not_entered())))
    within = [text for where, text in page.texts if where == "text"]
    assert within.count("waits") == 3
    assert within.count("missing") == 1
    assert "rank 2, suspect" in page.text_of("div")
    cells = page.text_of("td")
    at = cells.index("missing, and suspected")
    assert cells[at - 2 : at] == ["rank 2", "12 s to 39 s"]


def test_idle_time_is_a_line_and_what_was_not_seen_is_nothing() -> None:
    observations = [observed(float(t), [rank(0, member(5), world=2)], world=2) for t in range(9)]
    page = Page(render(told(observations)))
    (idle,) = page.boxes("idle")
    assert float(idle["height"] or "") < 6
    assert page.boxes("unseen") == []


def test_labels_of_findings_that_begin_together_do_not_lie_on_one_another() -> None:
    found = [dataclasses.replace(not_entered(culprit=n, time=30.0), process_group=f"pg{n}") for n in range(3)]
    more = [
        dataclasses.replace(found[0], code=code, suspects=[9])
        for code in ("TW-S1", "TW-S2", "TW-S3", "TW-LOST", "TW-H2")
    ]
    page = Page(render(history_of(well(), *((one, 30.0, 59.0) for one in (*found, *more)))))
    labels = [(a["x"], a["y"]) for tag, a in page.tags if tag == "text" and a.get("class") == "begin"]
    assert len(labels) == len(set(labels)) * 2, "one set for the lanes, one for the curve"
    assert len(set(labels)) == 4
    assert all(0 <= percent(x) <= 100 for x, _ in labels)


def test_nothing_of_a_text_moves_others() -> None:
    evil = "a\x1b[31mb\u202ec\x07"
    finding = dataclasses.replace(not_entered(), summary=evil, stacks={2: f"{evil}\n  second line"}, evidence=[evil])
    observations = hang()
    for one in observations:
        one.ranks[1].phase = evil
        one.run_id = evil
    text = render(told(observations, finding))
    assert not set(text) & {"\x1b", "\u202e", "\x07"}
    shown = "a\\x1b[31mb\\u202ec\\x07"
    assert text.count(shown) >= 5
    assert Page(text).text_of("pre") == [f"{shown}\n  second line"]


def test_a_job_of_4096_ranks_in_many_states_stays_small() -> None:
    observations = hang(4096, culprit=9, seconds=6, hung_after=2)
    for one in observations:
        for number in range(0, 4096, 2):
            one.ranks[number].phase = f"phase {number % 97}"
        one.silent_nodes = [f"node{n}" for n in range(900)]
    finding = not_entered(4096, 9, time=1004.0)
    text = render(told(observations, dataclasses.replace(finding, stacks=dict.fromkeys(range(3), "x"))))
    assert len(text) < 250_000
    page = Page(text)
    assert max(map(len, page.text_of("td"))) < 200
    assert max(map(len, page.text_of("p"))) < 400


def in_groups(world: int, size: int, seconds: float) -> list[model.Rank]:
    """Ranks that wait in all_reduce #8 of their dp0, dp1 and so on; rank 9 has not entered that of its own."""
    return [
        rank(n, member(7 + (n != 9), waits=seconds if n != 9 else None, group=f"dp{n // size}", size=size), world=world)
        for n in range(world)
    ]


def test_process_groups_that_are_numbered_are_told_together() -> None:
    job = observed(50.0, in_groups(64, 4, 40.0), world=64)
    statuses = rank_status.statuses(job)
    groups = rank_status.status_groups(statuses, apart=[9])
    assert [(group.text, group.num_ranks) for group in groups] == [
        ("not in all_reduce #8 of dp2", 1),
        ("waits in all_reduce #8 of dp* (16 groups)", 63),
    ]
    few = rank_status.status_groups(statuses[:16])
    assert sorted(group.process_group for group in few) == ["dp0", "dp1", "dp2", "dp2", "dp3"], (
        "a reader takes these in"
    )


def test_rates_of_process_groups_that_are_numbered_are_one_curve() -> None:
    history = report.History()
    for time in (1, 2, 3):
        ranks = [
            rank(n, member(10 * time * (1 + n // 2), group=f"tp{n // 2}", size=2), member(time, group="world1"))
            for n in range(WORLD)
        ]
        history.add(observed(float(time), ranks))
    assert history.rates() == {("tp*", 2): 15.0, ("world1", 4): 1.0}
    assert history.intervals[-1].rates["tp*", 2] == Rate(10.0, 15.0, 20.0)


def test_a_wait_that_is_no_hang_is_not_as_dark_as_one_that_is() -> None:
    for seconds, level in ((40.0, 0), (190.0, 3), (400.0, 5)):
        page = Page(render(told([observed(500.0, in_groups(8, 4, seconds), world=8)])))
        assert len(page.boxes(f"heat{level}")) >= 7, "of 300 s, six colours"
