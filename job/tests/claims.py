"""Every measured figure in the prose of tensorwire-job, made from job/benchmarks/results, as tests/claims.py says."""

from __future__ import annotations

from job.tests.support import standstill_figures
from job.tests.support.figures import faults, probe, stacks, variants

RIGHT, RUNS = faults.count()
_MENDED = ("unseen", "second", "third")
_HEALTHY = variants.num_jobs("healthy", "mended")
_RIGHT_OF_FIFTH, _RUNS_OF_FIFTH = variants.share("fifth", "first", "rank_right").split(" of ")


def _probe_ratio(time: str) -> str:
    """The quotient of a training step with the probe and one without it."""
    return f"{probe['step']['ratios'][time]['median']:.3f}"


CLAIMS: dict[str, list[str]] = {
    "job/src/tensorwire_job/words.py": ['"120 ms"'],
    "job/src/tensorwire_job/report/codes.py": ["right in 91 of 94 faults that it had not met before"],  # a form
    "job/README.md": [
        f"named the right rank in {variants.share('fifth', 'first', 'rank_right')} runs, and no other rank alone",
        f"that it was tuned to | {RIGHT} of {RUNS} runs were right",
        f"| {variants.share('fifth', 'first', 'rank_right')} runs named the right rank alone",
        f"| {_HEALTHY} kinds of healthy jobs | {variants.false_looks()} looks had a finding; another time one had",
        *(each for each in standstill_figures.last_form() if each.startswith("one rank was named")),
        f"a step of {probe['step']['milliseconds']['median']:.1f} ms in DDP, with the probe | {_probe_ratio('wall')} "
        f"of its time, {_probe_ratio('cpu')} of its CPU time",
        f"a send or recv, with the probe | {probe['message']['added_microseconds']:.0f} us more CPU time",
    ],
    "job/docs/findings.md": [
        *(
            f"| {code} | {variants.new_faults(code, 'high')} | {variants.new_faults(code, 'medium')} |"
            for code in ("TW-H1", "TW-H2", "TW-LOST", "TW-S1")
        ),
        f"verdicts of high confidence in these runs, {variants.high_confidence(('unseen', 'first'))} were right in the "
        f"first set, {variants.high_confidence(('second', 'first'))} in a second, "
        f"{variants.high_confidence(('third', 'first'))} in a\nthird, and "
        f"{variants.high_confidence(('fifth', 'first'))} in a fifth",
    ],
    "job/docs/limits.md": [
        f"By the stacks of py-spy alone, the right ranks were named in {stacks.share('rank_right')} runs",
        f"In {stacks.share('holds')} they were in a side, or among several; "
        f"in {stacks.share('misnamed')} others only were named",
        f"{RIGHT} of {RUNS} runs were right: {faults.share('lost')} with a lost process, {faults.share('hang')} with "
        f"a hang, {faults.share('slow')} with a slow rank or link, and {faults.share('none')} with nothing wrong",
        *variants.table(),
        f"was right in {variants.after_mending('rank_right', *_MENDED)} runs of the",
        f"In {variants.after_mending('holds', *_MENDED)} the right rank was one of several",
        f"In\n{variants.after_mending('misnamed', *_MENDED)} a finding after the fault named others only",
        f"In\n{variants.after_mending('same', 'known', *_MENDED, 'fourth')} runs the verdict was the same",
        f"Every finding of high confidence was right, {variants.high_confidence(('second', 'mended'))}",
        f"{variants.false_looks('second', 'mended').replace('0 of', 'none of')} looks at the healthy jobs had one",
        f"{variants.high_confidence(('second', 'first'))} findings of high confidence were right; and "
        f"{variants.false_looks('second', 'first')} looks at three healthy jobs had a finding",
        f"Every finding of high confidence was right, {variants.high_confidence(('third', 'first'))}. One program",
        f"Every finding of high confidence was right, {variants.high_confidence(('fifth', 'first'))}",
        f"In {_HEALTHY} kinds of healthy jobs with gates of 5 s, on a busy machine, {variants.false_looks()} looks had",
        f"Eight of its {variants.num_jobs('second', 'first')} jobs were\njudged wrong",
        f"The *third unseen set* has {variants.num_jobs('third', 'first')} jobs",
        f"The *fifth unseen set* has {variants.num_jobs('fifth', 'first')} jobs after reports in public issue "
        f"trackers, each at two ranks: {_RUNS_OF_FIFTH} runs",
        f"In {_RIGHT_OF_FIFTH} runs one rank was named, and it\nwas the right one each time",
        f"{variants.high_confidence(('unseen', 'mended'))} findings of high confidence were right.",
        *standstill_figures.last_form(),
        f"a step of {probe['step']['milliseconds']['median']:.1f} ms took {_probe_ratio('wall')} of its time with the "
        f"probe at work, and {_probe_ratio('cpu')} of its CPU time",
        f"threads took {100 * probe['step']['share_of_a_core']['median']:.2f} % of a core in each rank",
        f"a send or recv took {probe['message']['added_microseconds']:.0f} us more",
        f"an all_to_all took {probe['exchange']['added_microseconds']['passive']:.0f} us more",
        f"reads its last calls once, which took {probe['reading_milliseconds']['median']:.0f} ms of CPU time",
    ],
}

# Definitions, thresholds, versions, and what a program prints: they were not measured.
NOT_MEASURED: dict[str, list[str]] = {
    "job/docs/nccl.md": ["| 2.22 and", "| 2.23 to 2.25 |", "| 2.26 |", "| 2.27 |", "| 2.28 |", "| 2.29 and"],
    "job/docs/cli.md": ["job 1 of 5: train.py"],
    "job/docs/launchers.md": [
        "Slurm 22.05",
        "accelerate 1.15",
        "DeepSpeed 0.19",
        "Ray 2.60",
        "Kubernetes 1.29 and of 1.37",
    ],
    "job/docs/limits.md": ["under torch 2.12.1, 2.14.1 and 2.15.0", "Under 2.15.0 all tests"],
    "job/docs/findings.md": ["later than 50 ms after the last rank of its node"],
    "job/docs/method.md": [
        "from 2.14 on, a process group",
        "A trial under 2.15",
        "for more than 50 ms after the last rank of its node",
    ],
    "job/src/": ["CPU times to 10 ms"],
    "job/docs/setup.md": ["`promtool` 2.42"],
    "job/docs/terminology.md": ["every 0.2 s"],
}
