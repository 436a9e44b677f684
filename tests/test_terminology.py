"""docs/terminology.md: one line a term, and none of the words that its terms replaced."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "terminology.md"
TEXT = {".c", ".cpp", ".h", ".html", ".md", ".py", ".sh", ".toml", ".yml", ""}
OWN = "tests/test_terminology.py"  # the one place where the words stand

# By what replaced them. A word is a part of an identifier, or a word of a sentence.
RETIRED = {
    "exit reason": {"farewell", "farewells"},
    "frozen rank": {"standstill"},
    "enable timing, timed": {"armed", "arming", "disarm", "disarms", "unarmed"},
    "throughput": {"pace", "paced"},
    "fork server": {"nursery"},
    "fault context": {"scene"},
    "staging directory": {"workplace"},
    "unauthenticated connection": {"stranger", "strangers"},
    "controller": {"desk"},
    "slow_factor": {"theta"},
    "rank status": {"standing", "standings"},
    "chunk": {"portion", "portions"},
}
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
OF_A_STACK = re.compile(r"\bf_\w+|_current_frames|FrameType|Python frame|thread's frames|frame is (not )?None:")


def texts(*folders: str) -> list[tuple[str, list[str]]]:
    listing = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in listing.stdout.split("\0") if name and name != OWN and (ROOT / name).is_file()]
    skipped = ("fuzz/corpus", "tests/golden", "LICENSE")
    return [
        (name, (ROOT / name).read_text().splitlines())
        for name in names
        if (ROOT / name).suffix in TEXT and not name.startswith(skipped)
    ]


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "Term" and not row[0].startswith("---")]


def test_a_term_has_one_line_and_a_meaning() -> None:
    found = [term for row in rows() for term in row[0].split(", ")]
    assert len(found) > 100
    assert sorted(found) == sorted(set(found)), "a term stands twice"
    for row in rows():
        assert all(row[:2]), row


def test_what_replaced_a_word_is_a_term() -> None:
    assert set(RETIRED) <= {row[0] for row in rows()}


def test_no_retired_word_is_used() -> None:
    term_of = {word: term for term, words in RETIRED.items() for word in words}
    suspicious = re.compile("|".join(term_of), re.IGNORECASE)
    wrong = [
        f"{name}:{number}: {part}; the term is {term_of[part.lower()]!r}"
        for name, lines in texts()
        for number, line in enumerate(lines, 1)
        if suspicious.search(line)
        for part in PART.findall(line)
        if part.lower() in term_of
    ]
    assert not wrong, "\n".join(wrong)


def test_communicator_is_a_word_of_nccl_alone() -> None:
    wrong = [
        f"{name}:{number}"
        for name, lines in texts("src", "core", "docs", "tests", "benchmarks", "examples", "README.md")
        if "nccl" not in name.lower()
        for number, line in enumerate(lines, 1)
        if "communicator" in line.lower() and "nccl" not in line.lower()
    ]
    assert not wrong, wrong


def test_a_rank_has_a_page_and_a_tensor_a_frame() -> None:
    wrong = [
        f"{name}:{number}: {line.strip()}"
        for name, lines in texts("src/tensorwire/diagnosis", "core/probe", "src/tensorwire/cli/job", "tests/diagnosis")
        for number, line in enumerate(lines, 1)
        if re.search(r"(?<![a-z])frames?(?![a-z])", line, re.IGNORECASE) and not OF_A_STACK.search(line)
    ]
    assert not wrong, "\n".join(wrong)
