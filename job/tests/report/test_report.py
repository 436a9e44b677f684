"""The page of a job: what it holds, that nothing in it comes alive, and that a browser shows it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from job.tests.faults import variant_page
from job.tests.support.hung_job import hang, not_entered
from job.tests.support.observations import member, observed, rank
from tensorwire._ground import launcher
from tensorwire_job import model, report, words
from tensorwire_job.model import Confidence
from tensorwire_job.rank import probe as rank_probe
from tensorwire_job.report import rank_status
from tensorwire_job.report.codes import NEW_FAULTS, confidence_text
from tensorwire_job.report.history import MAX_INTERVALS, UNSEEN
from tensorwire_job.report.rank_status import STATES
from tensorwire_job.stacks import for_reader

VOID = {"meta", "link", "br", "hr", "img", "input"}
EVIL = "</title></style></pre>\"'><script>document.title='owned'</script><img src=x onerror=alert(1)>{{ 7 * 191 }}"


class Page(HTMLParser):
    """Elements, their texts, and whether they are nested as they should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"{self.open} are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def text_of(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag and text]

    def boxes(self, style: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "rect" and attributes.get("class") == style]


def told(observations: Sequence[model.Observation], finding: model.Finding | None = None) -> report.History:
    history = report.History()
    for observation in observations:
        history.add(observation, [finding] if finding and observation.time >= finding.time else [])
    return history


def render(history: report.History) -> str:
    return report.render(history, model.Thresholds(), source=EVIL)


def evil_job() -> report.History:
    """Every string of every field is EVIL."""
    group = member(11, waits=9.0)
    others = dataclasses.replace(group, enqueued=12)
    observations = []
    for time in (1.0, 2.0, 3.0):
        ranks = {
            0: rank(0, group, exit_reason=EVIL),
            1: rank(1, others, life="exited", exit_reason=EVIL, gone_seconds=2.0),
            2: rank(2, member(3)),
            3: rank(3, member(3), state=EVIL),
        }
        observations.append(model.Observation(time, EVIL, 4, ranks, [], [EVIL]))
    for observation in observations:
        for one in observation.ranks.values():
            one.node = one.phase = EVIL
            for of_rank in one.process_groups:
                of_rank.id = of_rank.name = EVIL
                assert of_rank.operation is not None
                of_rank.operation.name = of_rank.operation.dtype = EVIL
    found = [
        dataclasses.replace(not_entered(time=2.0), level=level, summary=EVIL, evidence=[EVIL], stacks={2: EVIL},
                            process_group=EVIL, sides=[[0], [1, 2, 3]],
                            circle=[model.CircleRank(0, EVIL), model.CircleRank(1, EVIL)])
        for level in ("finding", "notice")
    ]  # fmt: skip
    history = report.History()
    for observation in observations:
        history.add(observation, found)
    return history


def percent(length: str | None) -> float:
    assert length is not None
    assert length.endswith("%")
    return float(length.removesuffix("%"))


def test_the_page_tells_who_what_why_and_where() -> None:
    page = Page(render(told(hang(4, culprit=2), not_entered(4, 2))))
    assert page.text_of("h1") == [f"TW-H1 high confidence, for 14 s: {not_entered().summary}"]
    assert "TW-H1" in page.text_of("span")
    finding = not_entered(4, 2)
    assert [finding.summary] == [text for text in page.text_of("p") if text == finding.summary]
    assert set(finding.evidence) <= set(page.text_of("li"))
    assert page.text_of("pre") == [finding.stacks[2]]
    states = [text for text in page.text_of("td") if text.endswith("all_reduce #121 of default_pg")]
    assert states[:2] == ["not in all_reduce #121 of default_pg", "waits in all_reduce #121 of default_pg"]
    assert "0-1, 3" in page.text_of("td")


def test_a_circle_of_messages_is_drawn_with_its_ranks_in_order() -> None:
    """Rank 0 waits for 3, that for 1, that for 2, and that for 0."""
    links = [model.CircleRank(n, f"recv from rank {peer} of {EVIL}") for n, peer in ((0, 3), (3, 1), (1, 2), (2, 0))]
    text = render(told(hang(), dataclasses.replace(not_entered(), code="TW-H2", suspects=[], circle=links)))
    drawing = text.partition('<figure class="circle">')[2].partition("</figure>")[0]
    page = Page(f"<figure>{drawing}</figure>")
    assert [a["aria-label"] for tag, a in page.tags if tag == "svg"] == [
        "rank 0 waits for rank 3, which waits for rank 1, which waits for rank 2, which waits for rank 0"
    ]
    assert page.text_of("li") == [
        f"rank {n} waits in recv from rank {peer} of {EVIL} for rank {peer}"
        for n, peer in ((0, 3), (3, 1), (1, 2), (2, 0))
    ], "as text: nothing of it comes alive"
    assert page.text_of("text") == ["0", "3", "1", "2"]
    places = [(float(str(a["cx"])), float(str(a["cy"]))) for tag, a in page.tags if a.get("class") == "rank"]
    middle = float(str(next(a["cx"] for _, a in page.tags if a.get("class") == "way")))
    turns = [math.degrees(math.atan2(x - middle, middle - y)) % 360 for x, y in places]
    assert turns == pytest.approx([0.0, 90.0, 180.0, 270.0], abs=1.0), "clockwise from the top"
    arrows = [a["transform"] for tag, a in page.tags if a.get("class") == "arrow"]
    assert [str(arrow).partition("rotate")[2] for arrow in arrows] == ["(45.0)", "(135.0)", "(225.0)", "(315.0)"]
    assert "circle" not in render(told(hang(), not_entered())).partition("</style>")[2], "there is none"


def test_lanes_are_proportional_to_time() -> None:
    """The job moves for 12 s of 39, and then one rank is absent while three wait, all for the other 27."""
    page = Page(render(told(hang(4, culprit=2), not_entered(4, 2))))
    moves, waits, absent = (page.boxes(style) for style in ("moves", "waits", "absent"))
    assert [len(moves), len(waits), len(absent)] == [4, 3, 1]
    assert absent[0]["y"] == moves[2]["y"]
    for row in (*waits, *absent):
        assert percent(row["width"]) / percent(moves[0]["width"]) == pytest.approx(27 / 12, rel=0.01)


def test_4096_ranks_fit_on_a_page() -> None:
    text = render(told(hang(4096, 2817, seconds=6, hung_after=2), not_entered(4096, 2817, time=1004.0)))
    assert len(text) < 200_000
    page = Page(text)
    labels = [label for label in page.text_of("div") if label.startswith("rank")]
    assert labels[0] == "rank 2817, suspect"
    assert len(labels) <= 40
    assert "0-2816, 2818-4095" in page.text_of("td")
    suspects = page.boxes("suspect")
    assert len(suspects) == 2, "one ring in each of two heat maps"
    cell = float(suspects[0]["width"])
    assert (float(suspects[0]["x"]) / cell, float(suspects[0]["y"]) / cell) == (2817 % 64, 2817 // 64)


def test_heat_maps_show_what_was_measured() -> None:
    """T of a rank that is 150 ms late in every round is 50 ms, of the others 200 ms."""
    late = {number: 0.15 if number == 3 else 0.0 for number in range(4)}
    timings = {i: model.Timing(1, 10, 10 * (0.2 - late[i]), 0.1, 0.3, 1 << 24, 0) for i in range(4)}
    observations = [
        observed(time, [rank(i, member(int(10 * time), timing=timings[i])) for i in range(4)]) for time in (1.0, 2.0)
    ]
    for number, one in observations[1].ranks.items():
        one.process.wait_seconds = 0.5 if number == 1 else 0.0
    text = render(told(observations))
    assert "rank 3: 50 ms" in text
    assert "rank 0: 200 ms" in text
    assert "rank 1: 50 %" in text, "of the time it waited for a CPU"
    assert Page(text).text_of("b") == ["T", "CPU"], "no rank waits, none is behind"


def test_after_the_fact_the_timeline_has_what_the_pages_still_tell() -> None:
    """One rank went away 30 s ago; the others have waited for it since. All had completed operations until then."""
    ranks = [rank(n, member(30, idle=31.0) if n == 2 else member(31, waits=30.0, idle=30.0)) for n in range(4)]
    history = report.History(with_past=True)
    finding = dataclasses.replace(not_entered(time=100.0), since=70.0)
    history.add(observed(100.0, ranks), [finding])
    kinds = [[STATES[interval.states[n]] for interval in history.intervals] for n in range(4)]
    assert all(states[0] == "moves" for states in kinds)
    assert [states[-1] for states in kinds] == ["waits", "waits", "absent", "waits"]
    page = Page(render(history))
    assert "Timeline of ranks" in page.text_of("h2")
    assert len(page.boxes("moves")) == 4
    assert len(page.boxes("absent")) == 1
    assert any("before the first poll" in text for text in page.text_of("p"))
    assert "one poll" in page.text_of("dd")


def test_of_a_dead_job_the_timeline_has_when_ranks_went() -> None:
    gone = [rank(n, member(30, idle=600.0 + n), life="lost", gone_seconds=600.0 - 50 * n) for n in range(4)]
    history = report.History(with_past=True)
    history.add(observed(1000.0, gone))
    kinds = [[STATES[interval.states[n]] for interval in history.intervals] for n in range(4)]
    assert all(states[0] == "moves" and states[-1] == "lost" for states in kinds)
    assert [states.count("lost") for states in kinds] == sorted([s.count("lost") for s in kinds], reverse=True)


def test_what_was_a_moment_of_a_healthy_job_is_not_red_though_the_rank_fails_later() -> None:
    """Rank 2 is behind for 3 s while the job is well, and hangs 30 s later."""
    observations = [
        observed(float(t), [rank(n, member(t) if n == 2 or t < 20 else member(t + 1, waits=2.0)) for n in range(4)])
        for t in range(24)
    ]
    observations += [
        observed(float(t), [rank(n, member(t + (n != 2), waits=2.0 if t > 60 and n != 2 else None)) for n in range(4)])
        for t in range(24, 70)
    ]
    finding = dataclasses.replace(not_entered(time=65.0), since=60.0)
    page = Page(render(told(observations, finding)))
    (early,), (late,) = page.boxes("behind"), page.boxes("absent")
    assert percent(early["x"]) == pytest.approx(100 * 19 / 69, abs=1)
    assert percent(late["x"]) == pytest.approx(100 * 60 / 69, abs=1)


def test_only_the_ranks_that_a_finding_names_are_red_in_the_table() -> None:
    """Rank 1 is slow; rank 3 happens to be behind at the last poll."""
    finding = dataclasses.replace(not_entered(culprit=1, time=2.0), code="TW-S1")
    polls = [
        observed(float(t), [rank(n, member(30) if n == 3 else member(31, waits=2.0)) for n in range(4)]) for t in (1, 2)
    ]
    page = Page(render(told(polls, finding)))
    dots = [a["class"] for tag, a in page.tags if tag == "span" and (a.get("class") or "").startswith("dot ")]
    assert "dot behind" in dots[:2]
    assert "dot absent" not in dots[:2], "the legend has one further down"


def test_nothing_that_was_well_is_red() -> None:
    """A rank is behind for a moment, and no finding names it."""
    history = told(
        [
            observed(float(t), [rank(n, member(30) if n == 2 else member(31, waits=2.0)) for n in range(4)])
            for t in (1, 2, 3)
        ]
    )
    page = Page(render(history))
    assert len(page.boxes("behind")) == 1
    assert page.boxes("absent") == []


def test_a_single_look_has_no_timeline() -> None:
    page = Page(render(told(hang(4, culprit=1)[-1:])))
    assert page.text_of("h2") == ["Rank status", "Ranks side by side", "Ranks"]
    assert page.text_of("h1") == ["No finding"]


def test_nothing_observed_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to report"):
        render(report.History())


def test_no_text_of_a_job_comes_alive() -> None:
    text = render(evil_job())
    assert "<script" not in text
    assert "<img" not in text
    assert "1337" not in text, "no text of a job is a template"
    page = Page(text)
    assert text.count("{{ 7 * 191 }}") >= 15, "every field is there"
    for tag, attributes in page.tags:
        assert tag not in ("script", "img", "iframe", "object", "embed", "link", "base", "form"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "href", "xlink:href", "action", "data"), (tag, name, value)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in text
    assert "@import" not in text


def test_templates_never_switch_escaping_off(repository: Path) -> None:
    folder = repository / "job/src/tensorwire_job/report"
    for path in (*folder.glob("*.html"), *folder.glob("*.py")):
        assert not re.search(r"\|\s*safe|Markup|autoescape (false|off)|autoescape=False", path.read_text()), path.name


def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("the Debian package chromium is not installed")
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(render(evil_job()), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
    options += ["--window-size=1000,1600", f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}"]
    command = [browser, *options, "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    title = Page(shown).text_of("title")[0]
    assert title.startswith("TW-H1 high confidence, for "), "no script has changed it"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000, "a blank page of this size takes less than a fifth"


def test_history_is_bounded_and_forgets_no_trouble() -> None:
    history = report.History()
    for time in range(1500):
        waiting = member(time + 1, waits=3.0, size=2) if time == 700 else member(time, size=2)
        groups = {0: member(time, size=2), 1: waiting}
        history.add(observed(float(time), [rank(i, group, world=2) for i, group in groups.items()], world=2))
    intervals = history.intervals
    assert MAX_INTERVALS / 3 < len(intervals) <= MAX_INTERVALS
    assert (intervals[0].start, intervals[-1].end) == (0.0, 1499.0)
    assert all(a.end == b.start for a, b in pairwise(intervals))
    hit = [interval for interval in intervals if interval.start <= 700 <= interval.end]
    assert [(STATES[interval.states[0]], STATES[interval.states[1]]) for interval in hit[:1]] == [("absent", "waits")]
    rates = [rate.middle for interval in intervals for rate in interval.rates.values()]
    assert sum(rates) / len(rates) == pytest.approx(1.0, abs=0.01)


def test_ranks_that_come_and_go() -> None:
    """An elastic restart with fewer ranks, and one that no agent has seen."""
    history = told([*hang(8, culprit=9, seconds=3), *hang(4, culprit=9, seconds=3)])
    assert [len(interval.states) for interval in history.intervals][-1] == 4
    lonely = hang(4, culprit=9, seconds=3)
    for observation in lonely:
        del observation.ranks[3]
    assert told(lonely).intervals[-1].states[3] == UNSEEN
    assert "1" in Page(render(told(lonely))).text_of("dd")
    Page(render(history))


def test_findings_are_told_once() -> None:
    history = report.History()
    observations = hang(4, culprit=2)
    finding = dataclasses.replace(not_entered(4, 2), confidence=model.Confidence.MEDIUM)
    assert history.add(observations[0]) == []
    assert history.add(observations[1], [finding]) == [finding]
    stronger = dataclasses.replace(finding, confidence=model.Confidence.HIGH, time=1030.0)
    assert history.add(observations[2], [stronger]) == []
    (episode,) = history.episodes.values()
    assert (episode.finding, episode.first, episode.last) == (stronger, 1025.0, observations[2].time)


def test_the_age_of_trouble_that_is_over_is_not_counted_on() -> None:
    finding = dataclasses.replace(not_entered(time=10.0), since=5.0)
    healthy = [observed(float(t), [rank(n, member(t)) for n in range(4)]) for t in range(60)]
    for recorded, text in ((False, "31 s ago"), (True, "31 s before the recording ended")):
        history = report.History(recorded=recorded)
        for observation in healthy:
            history.add(observation, [finding] if 10 <= observation.time <= 28 else [])
        assert history.age(finding) == f"for 23 s, until {text}"
        assert not history.stands(finding)
        lasting = dataclasses.replace(finding, since=19.0, suspects=[3])
        history.add(observed(60.0, [rank(n, member(60)) for n in range(4)]), [lasting])
        assert history.age(lasting) == ("for 41 s when the recording ended" if recorded else "for 41 s")


def test_the_age_of_slowness_is_from_when_it_was_found() -> None:
    finding = dataclasses.replace(not_entered(time=10.0), code="TW-S1")
    history = report.History()
    for time in range(10, 60):
        history.add(observed(float(time), [rank(n, member(time)) for n in range(4)]), [finding])
    assert history.age(finding) == "found 49 s ago"


def test_the_age_of_a_hang_is_from_its_beginning_after_the_end_too() -> None:
    finding = dataclasses.replace(not_entered(time=10.0), since=5.0)
    history = report.History()
    dead = [rank(n, member(9), life="lost", gone_seconds=12.0) for n in range(4)]
    history.add(observed(60.0, dead), [finding])
    assert history.is_over
    assert history.age(finding) == "for 43 s, until 12 s ago"


def test_who_completes_operations_is_not_slow_for_what_was_read_earlier() -> None:
    first, second = (observed(float(t), [rank(n, member(100 * t - 9 * n)) for n in range(4)]) for t in (1, 2))
    statuses = rank_status.statuses(second, first)
    assert [status.behind for status in statuses] == [0, 9, 18, 27]
    assert rank_status.slowest(statuses) == []


def test_many_ranges_of_ranks_are_cut_for_a_person() -> None:
    job = hang(4096, culprit=9, seconds=4, hung_after=1)[-1]
    for number in range(0, 4096, 2):
        job.ranks[number].phase = "checkpoint"
    groups = rank_status.status_groups(rank_status.statuses(job))
    assert max(len(group.ranks) for group in groups) > 5000
    assert max(len(group.few_ranks()) for group in groups) < 100
    assert groups[-1].few_ranks().endswith(" more ranges")


def test_places() -> None:
    first, second = hang(4, culprit=2)[5:7]
    assert {status.state for status in rank_status.statuses(second, first)} == {"moves"}
    assert {status.state for status in rank_status.statuses(second)} == {"idle"}
    stuck = hang(4, culprit=2)[-1]
    stuck.ranks[0].process.life = "lost"
    stuck.ranks[0].process.gone_seconds = 4.0
    stuck.ranks[1].process.life = "stopped"
    found = rank_status.status_groups(rank_status.statuses(stuck))
    assert [(group.state, group.ranks, group.seconds) for group in found] == [
        ("lost", "0", 4.0), ("stopped", "1", 27.0), ("absent", "2", 27.0), ("waits", "3", 27.0),
    ]  # fmt: skip
    assert [status.rank for status in rank_status.slowest(rank_status.statuses(stuck))] == [2]
    assert rank_status.lives(stuck) == {"running": 2, "stopped": 1, "exited": 0, "lost": 1, "unseen": 0}


def test_nobody_is_behind_in_messages() -> None:
    """The ends of a pair count apart: a receiver that has entered less is not missing."""
    observation = hang(2, culprit=1)[-1]
    for one in observation.ranks.values():
        group = one.process_groups[0]
        group.operation = model.Operation(group.enqueued, "send" if one.rank == 0 else "recv", root=1 - one.rank)
    statuses = rank_status.statuses(observation)
    assert [(status.state, status.behind) for status in statuses] == [("waits", 0), ("idle", 0)]
    assert rank_status.slowest(statuses) == []


def test_the_thread_of_the_script_comes_first() -> None:
    probe = f'Thread 0x1 (most recent call first):\n  File "{rank_probe.__file__}", line 1 in _run'
    worker = 'Thread 0x2 (most recent call first):\n  File "loader.py", line 1 in work'
    script = 'Thread 0x3 (most recent call first):\n  File "train.py", line 9 in <module>'
    native = "Thread 0x4 (most recent call first):\n  <no Python frame>"
    assert for_reader(f"{probe}\n\n{worker}\n\n{native}\n\n{script}\n") == f"{script}\n\n{worker}"
    assert for_reader("all_reduce #3\nstack unavailable: gone") == "all_reduce #3\nstack unavailable: gone"
    assert for_reader(probe) == probe, "better than nothing"


@pytest.mark.parametrize("line", ['  File "{}", line 9 in {}', "    {1} ({0}:9)"])
def test_what_started_the_script_is_not_in_its_stack(line: str) -> None:
    """As faulthandler writes it, and as py-spy does. The script may use runpy itself."""

    def stack(*calls: tuple[str, str]) -> str:
        return "\n".join(["Thread 0x1 (most recent call first):", *(line.format(*call) for call in calls)])

    own = [("a.py", "load"), ("<frozen runpy>", "run_path"), ("train.py", "<module>")]
    launch = [
        ("<frozen runpy>", "run_module"),
        (launcher.__file__, "launch"),
        (rank_probe.__file__.replace("rank/probe", "__main__"), "main"),
        ("<frozen runpy>", "_run_code"),
    ]
    assert for_reader(stack(*own, *launch)) == stack(*own)
    assert for_reader(stack(*own)) == stack(*own), "attached by the script itself"
    assert for_reader(stack(*launch[1:])) == stack(*launch[1:]), "better than nothing"


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([3], "3"), ([2, 0, 1], "0-2"), ([0, 1, 2, 4, 6, 7], "0-2, 4, 6-7")]
)
def test_ranges_of_ranks(ranks: list[int], text: str) -> None:
    assert words.ranges(ranks) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "440 ms"), (0.9996, "1.0 s"), (9.96, "10 s"), (59.6, "1 min 0 s"), (303, "5 min 3 s"), (7500, "2 h 5 min")],
)
def test_times_for_a_reader(seconds: float, text: str) -> None:
    assert words.seconds(seconds) == text


def test_the_share_of_right_findings_is_the_one_that_was_measured() -> None:
    measured = {
        code: {level: share for level, share in levels.items() if share[1] >= 5}
        for code, levels in variant_page.by_kind(json.loads(variant_page.JSON.read_text())["runs"]).items()
    }
    assert {code: levels for code, levels in measured.items() if levels} == NEW_FAULTS


def test_a_figure_is_of_findings_that_were_counted() -> None:
    right, told = NEW_FAULTS["TW-H1"][Confidence.HIGH]
    finding = not_entered()
    text = f"high confidence: right in {right} of {told} faults that it had not met before"
    assert confidence_text(finding) == text
    assert confidence_text(finding, has_probe=False) == "high confidence"
    for change in ({"level": "notice"}, {"suspects": []}, {"code": "TW-H3"}, {"confidence": Confidence.LOW}):
        changed = dataclasses.replace(finding, **change)
        assert confidence_text(changed) == f"{changed.confidence} confidence"
