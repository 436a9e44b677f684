"""What pages of results have in common: tables, the machine, and speeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CHECKSUMS = {True: "checked", False: "off", None: "-"}


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in rows])


def environment_lines(facts: dict[str, Any]) -> str:
    """What the figures depend on, as a list."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    hardware = f"{facts['cpu']}, {facts['cores']} cores, {facts['caches']}, {facts['memory']}"
    return "\n".join(
        [
            f"- Machine: {hardware}; {facts['system']}",
            f"- Transparent huge pages: {facts['huge_pages']}; load average at the start {facts['load']:.2f}",
            f"- Python {facts['python']}, {versions}",
            f"- {facts['date']}, commit {facts['commit']}, `{facts['command']}`",
        ]
    )


def speed(row: dict[str, Any], direction: str) -> str:
    """The median, its spread if it was measured more than once, and in brackets that tensor by tensor."""
    figure, other = row[direction], row.get("by_tensor")
    text = f"{figure['median']:.2f}" + (f" ±{figure['spread']:.2f}" if figure["runs"] > 1 else "")
    return text + (f" ({other[direction]:.2f})" if other else "")
