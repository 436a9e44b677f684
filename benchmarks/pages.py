"""What pages of results have in common: tables, the machine, and the command that writes a page again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


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


def command(description: str, write: Callable[[Path], None]) -> None:
    """Write the page of the folder of results that the command line names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
