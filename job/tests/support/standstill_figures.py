"""What benchmarks/results says of generated standstills, in the words that a claim about it needs."""

from __future__ import annotations

import json

from job.benchmarks import RESULTS


def last_form() -> list[str]:
    """Claims on the last form of the analyzer."""
    results = json.loads((RESULTS / "diagnosis-standstills.json").read_text())
    *_, found = results["forms"].values()
    real, one = results["real"], found["one culprit"]
    plain, pages, dead = found["plain"], found["by pages"], found["dead"]
    total, of_one = sum(plain.values()), sum(one["plain"].values())
    return [
        f"named alone or with one other in {_percent(one['at most two'], of_one)} %",
        f"named one rank in {_percent(one['named alone'], of_one)} % and was right in "
        f"{_percent(one['right alone'], one['named alone'])} % of these",
        f"The faults are of {found['kinds']} kinds, {found['runs']} programs in all",
        f"{real['agree']} of {real['programs']} real runs",
        f"one rank was named in {_percent(found['named alone'], total)} %, and it was to blame in "
        f"{_percent(found['right alone'], found['named alone'])} % of these",
        f"In {_percent(plain['open'], total)} % several were named, and the culprit was one of them; in "
        f"{_percent(plain['not named'], total)} % none was",
        f"some were named all the same in {_wrong(found['nobody'])} %",
        f"only others were named in {_wrong(pages['stale'])} and {_wrong(pages['missing'])} %",
        f"had the same verdict in {_percent(dead['same'], dead['runs'])} %",
    ]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}"


def _wrong(counts: dict[str, int]) -> str:
    return _percent(counts["wrong"], sum(counts.values()))
