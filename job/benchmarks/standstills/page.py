"""The page of results: the mix, and what each form of the analyzer said of it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from benchmarks.pages import table
from benchmarks.results_page import Page, indented
from benchmarks.tables import of_columns

from . import faults, programs, real, standstill
from .measure import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable


def _parts(results: dict[str, Any]) -> list[str]:
    """The last form has tables of its own."""
    forms = results["forms"]
    name, last = list(forms.items())[-1]
    return [
        "# Generated standstills",
        _ABOUT,
        "## The mix",
        _mix(),
        "## Forms of the analyzer",
        _forms(forms),
        *(_chooser(results["chooser"]) if "chooser" in results else ()),
        *(_real(results["real"]) if "real" in results else ()),
        f"## {name[0].upper()}{name[1:]}",
        goals(last, results.get("chooser")),
        *_details(last),
    ]


PAGE = Page("diagnosis-standstills", _parts, dumps=indented)

_ABOUT = """\
Random distributed programs with one fault at a random place, played to their standstill by a simulator of gloo, and
reported as probes would report them. The culprit is known. No training, no GPU and no network took part.

*Right*: the culprit alone is named. *Open*: several ranks or sides are named, and the culprit is among them. *Wrong*:
the culprit is not among them. *Not named*: nothing is found, or no rank is named. Where no rank is to blame, as after a
signal to all, it is right to name none. Where ranks fail of a check that tells nothing of the culprit, no figure but
that of high confidence counts it. A job is looked at five times, 3 s apart, from 31 s after its last event, with the
thresholds of `tensorwire-job diagnose`."""


def _mix() -> str:
    worlds = ", ".join(map(str, programs.WORLDS[1:]))
    noise = f"{100 * standstill.SHARE_OF_NOISE:.0f} %"
    return "\n".join(
        [
            f"- Ranks: 2 in {100 * standstill.SHARE_OF_TWO_RANKS:.0f} % of the programs, else {worlds} alike.",
            "- Programs: 3 to 7 blocks, repeated in 2 to 4 steps; a fifth of the blocks only in every other step.",
            *_lines(
                "- Blocks: collectives of the world, of a mesh or of an odd group, buckets that do not wait, "
                "all_to_all, messages, pipelines, rings, a server that receives from any, keys of the store, counters "
                "of the store that ranks poll, file locks, a thread with a collective of its own, barriers and "
                "monitored barriers. In a fifth of the programs one line calls most collectives."
            ),
            *_lines(f"- Faults: one of {len(faults.KINDS)} kinds, drawn alike: {', '.join(faults.KINDS)}."),
            "  A fault befalls one call of one rank, drawn alike from those that it can befall.",
            f"- In {100 * standstill.SHARE_OF_LAUNCHERS:.0f} % a launcher ends all processes once one has failed.",
            *_lines(
                f"- In {100 * standstill.SHARE_OF_CAUGHT:.0f} % of the jobs of which no process dies by itself, ranks "
                "have caught a signal before."
            ),
            f"- {100 * standstill.SHARE_OF_TWO:.0f} % have a second fault.",
            f"- Pages: in {noise} each, the page of one rank is late (an earlier time for the first two looks), stale",
            "  (an earlier time for good) or missing.",
        ]
    )


def _forms(forms: dict[str, dict[str, Any]]) -> str:
    about = (
        "Shares are those of standstills with one fault, a rank to blame of which pages tell, and fresh pages. A mix\n"
        "of more kinds of faults is another one: its figures are not to be compared with those of the rows before."
    )
    rows = [found | {"form": name, "total": _total(found)} for name, found in forms.items()]
    return f"{about}\n\n{of_columns(_FORMS, rows)}"


def _count_high(key: str, of: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{len(row['high on an innocent'][key])} of {row[of]}"


_FIRST_KINDS = 13
_FORMS = (
    ("form", "form", ""), ("kinds of faults", lambda row: str(row.get("kinds", _FIRST_KINDS))),
    ("seed", "seed", ""), ("programs", "runs", ""), ("stood still", "stood", ""),
    ("right of those named alone", lambda row: _share(row["right alone"], row["named alone"])),
    ("named alone", lambda row: _share(row["named alone"], row["total"])),
    *((name, lambda row, name=name: _share(row["plain"][name], row["total"])) for name in OUTCOMES),
    ("at most two, with the culprit", lambda row: _share(row["at most two"], row["total"])),
    ("high on an innocent: one fault", lambda row: str(len(row["high on an innocent"]["one fault, fresh pages"]))),
    ("two faults", _count_high("two faults", "two faults, fresh")),
    ("bad page", _count_high("a page late, stale or missing", "noisy")),
    ("live and dead the same", lambda row: _share(row["dead"]["same"], row["dead"]["runs"])),
)  # fmt: skip


def _chooser(found: dict[str, Any]) -> list[str]:
    total, named = found["standstills"], found["named"]
    facts = found["environment"]
    about = (
        "An upper mark: a small network that is fitted to the generator on as many other seeds, and so knows the mix. "
        f"Its first choice is right in {_share(found['right'], total)} of {total} standstills with one fault, one rank "
        f"to blame and fresh pages. It is sure of {_share(named, total)}, and right in "
        f"{_share(found['right of those named'], named)} of those. "
        f"{facts['date']}, commit {facts['commit']}, `{facts['command']}`."
    )
    return ["### A fitted chooser", "\n".join(line.strip() for line in _lines(about))]


def goals(found: dict[str, Any], chooser: dict[str, Any] | None) -> str:
    """A signal to some has several ranks to blame. The chooser sees standstills with one."""
    one, places = found["one culprit"], list(found["ambiguity"].values())
    explained, runs = (sum(row[key] for row in places) for key in ("culprit among them", "runs"))
    rows = [["a culprit among the ranks that would explain it, by replay", "", _share(explained, runs), ""]]
    rows += map(list, zip(_GOALS, _figures(found), _figures(one), _GOALS.values(), strict=True))
    if chooser is not None:
        best, sure = (chooser["right of those named"], chooser["named"]), (chooser["named"], chooser["standstills"])
        ours = (one["right alone"], one["named alone"]), (one["named alone"], _total(one))
        for what, theirs, own in zip(("right of those named", "named"), (best, sure), ours, strict=True):
            rows.append([f"points below the chooser: {what}", "", f"{_percent(*theirs) - _percent(*own):.1f}", "3"])
    return table(("one fault, fresh pages", "a rank to blame", "one rank to blame", "goal"), rows)


_GOALS = {
    "a culprit among the explanations of the graph, or named, or in a side": "99.5 %",
    "a culprit among those named, or in a side": "",
    "a culprit among at most two that are named": "93 %",
    "of those named alone, right": "97 %",
    "named alone": "65 %",
}


def _figures(found: dict[str, Any]) -> list[str]:
    """As _GOALS has them."""
    total, alone, plain = _total(found), found["named alone"], found["plain"]
    return [
        _share(found["included"], total),
        _share(plain["right"] + plain["open"], total),
        _share(found["at most two"], total),
        _share(found["right alone"], alone),
        _share(alone, total),
    ]


def _total(found: dict[str, Any]) -> int:
    return int(sum(found["plain"].values()))


def _real(found: dict[str, Any]) -> list[str]:
    rows = [[kind, str(count), str(agree)] for kind, (count, agree) in found["by kind"].items()]
    facts = found["environment"]
    about = (
        f"{found['programs']} programs of 2 to 4 ranks were written out as scripts and run under torchrun on gloo: "
        f"{found['agree']} ({_share(found['agree'], found['programs'])}) stood and ended as the simulator says. "
        "Compared are, for each rank, its last call and how it is: it is in the call, is through, was aborted, was "
        f"interrupted, or ended by itself or because of others. Each has to be so in one of {real.PLAYS} plays of the "
        f"program, which differ in speed and in what has no order. {facts['date']}, commit {facts['commit']}, torch "
        f"{facts['versions']['torch']}, `{facts['command']}`."
    )
    text = "\n".join(line.strip() for line in _lines(about))
    return ["## Real runs", text, table(("fault", "programs", "agree"), rows)]


def _details(found: dict[str, Any]) -> list[str]:
    facts = found["environment"]
    over = ", ".join(f"{kind} {count}" for kind, count in found["over"].items())
    made = (
        f"{facts['date']}, commit {facts['commit']}, {facts['cpu']}, `{facts['command']}`, {found['seconds']:.0f} s. "
        f"{sum(found['over'].values())} programs came to their end in spite of the fault ({over})."
    )
    parts = ["\n".join(line.strip() for line in _lines(made))]
    parts.append("By fault, by ranks and by place: one fault, a rank to blame, bad pages included.")
    for title, key in (("fault", "by kind"), ("ranks", "by ranks"), ("place", "by place"), ("pages", "by pages")):
        parts.append(_outcomes(title, found[key]))
    parts.append("Two faults, and no rank to blame: bad pages included. By confidence: fresh pages alone.")
    of_none = {f"no rank to blame: {kind}": counts for kind, counts in found.get("nobody by kind", {}).items()}
    others = {"two faults": found["two faults"], "no rank to blame": found["nobody"], **of_none}
    if "unseen" in found:
        others["a check that tells nothing of the culprit"] = found["unseen"]
    parts += [_outcomes("besides", others), _outcomes("confidence", found["by confidence"])]
    parts.append(_outcomes("the job", {"live": found["dead"]["live"], "dead": found["dead"]["dead"]}))
    parts.append(
        "How ambiguous standstills are, whatever the analyzer does: the calls of all ranks but one are played again\n"
        "as they were recorded, with one rank replaced by one that does whatever the others need."
    )
    parts.append(
        table(
            ("place", "standstills", "the culprit explains it", "it alone does", "it and one other"),
            (
                [place, str(row["runs"]), *(_share(row[key], row["runs"]) for key in _EXPLAINED)]
                for place, row in found["ambiguity"].items()
            ),
        )
    )
    return parts


_EXPLAINED = ("culprit among them", "one", "two")


def _outcomes(title: str, rows: dict[str, dict[str, int]]) -> str:
    cells = []
    for name, counts in rows.items():
        total = sum(counts.values())
        cells.append([name, str(total), *(_share(counts.get(outcome, 0), total) for outcome in OUTCOMES)])
    return table((title, "standstills", *OUTCOMES), cells)


def _share(part: int, whole: int) -> str:
    return f"{_percent(part, whole):.1f} %" if whole else "-"


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")
