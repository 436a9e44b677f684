"""What a target asks for, what was measured, and whether that meets it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.pages import table


@dataclass(frozen=True)
class Verdict:
    """A target and what was measured.

    Attributes:
        target: what is to be reached.
        subject: the data set, or the file.
        cpu: the CPU target; empty where it does not matter.
        measured: the figure, or whether it is so; None if it was not measured.
        bound: what the figure is compared with; True where it is to be so.
        at_most: whether it is to be at most `bound`; at least otherwise.
        note: whom it is compared with.
    """

    target: str
    subject: str
    measured: float | None
    bound: float
    at_most: bool = False
    note: str = ""
    cpu: str = ""

    @property
    def margin(self) -> float:
        """By which part of the bound the figure is better (positive) or worse than it; 0 if there is none."""
        if self.measured is None:
            return 0.0
        return (self.bound - self.measured if self.at_most else self.measured - self.bound) / self.bound

    @property
    def met(self) -> bool | None:
        return None if self.measured is None else self.margin >= 0

    @property
    def outcome(self) -> str:
        if self.met is None:
            return "not measured"
        outcome = "met" if self.met else "**missed**"
        return outcome if isinstance(self.measured, bool) else f"{outcome} by {abs(self.margin):.1%}"


def render(verdicts: list[Verdict]) -> str:
    """A Markdown table, what was missed first; and how many were met."""
    order = {False: 0, True: 1, None: 2}
    rows = []
    for verdict in sorted(verdicts, key=lambda verdict: order[verdict.met]):
        relation = "at most" if verdict.at_most else "at least"
        note = f" ({verdict.note})" if verdict.note else ""
        bound = _text(verdict.bound) if verdict.bound is True else f"{relation} {_text(verdict.bound)}"
        subject = f"{verdict.subject}, {verdict.cpu}" if verdict.cpu else verdict.subject
        rows.append((verdict.target, subject, bound + note, _text(verdict.measured), verdict.outcome))
    measured_ones = [verdict for verdict in verdicts if verdict.met is not None]
    met = sum(bool(verdict.met) for verdict in measured_ones)
    count = f"{met} of {len(measured_ones)} targets met; {len(verdicts) - len(measured_ones)} not measured."
    return table(("target", "on", "to reach", "measured", "outcome"), rows) + "\n\n" + count


def _text(value: float | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:.4g}"
