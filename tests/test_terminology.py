"""The pages of terminology: a line a term, none of the words that terms replaced; sentences begin in plain order."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "docs" / "terminology.md", ROOT / "job" / "docs" / "terminology.md")
TEXT = {".c", ".cpp", ".h", ".html", ".md", ".py", ".sh", ".toml", ".yml", ""}
OWN = "tests/test_terminology.py"  # the one place where the words stand

# By what replaced them. A word is a part of an identifier, or a word of a sentence.
RETIRED = {
    "exit reason": {"farewell", "farewells"},
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

# A sentence that begins so has its subject behind its verb, or none; the other two are idioms of another language.
CROOKED = re.compile(r"\b(?:Of|Who|Whoever|Those|Named)\b|\bas\s+ever\b|\bby\s+a\s+hair\b")

# "Somebody" is nearly always another process or the caller. A person is seldom meant: at most so often in 1,000 words.
PERSONS = {
    "nobody", "somebody", "whoever", "whatever", "anybody", "everybody", "someone", "anyone", "everyone",
}  # fmt: skip
PERSONS_LIMIT = 0.2


@cache
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


def rows(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "Term" and not row[0].startswith("---")]


@pytest.mark.parametrize("page", PAGES, ids=["tensorwire", "tensorwire-job"])
def test_a_term_has_one_line_and_a_meaning(page: Path) -> None:
    found = [term for row in rows(page) for term in row[0].split(", ")]
    assert len(found) > 60
    assert sorted(found) == sorted(set(found)), "a term stands twice"
    for row in rows(page):
        assert all(row[:2]), row


def test_what_replaced_a_word_is_a_term() -> None:
    assert set(RETIRED) <= {row[0] for page in PAGES for row in rows(page)}


def test_no_retired_word_is_used() -> None:
    term_of = {word: term for term, words in RETIRED.items() for word in words}
    suspicious = re.compile("|".join(term_of))
    wrong = [
        f"{name}:{number}: {part}; the term is {term_of[part.lower()]!r}"
        for name, lines in texts()
        if suspicious.search("\n".join(lines).lower())  # few files have such letters at all
        for number, line in enumerate(lines, 1)
        if suspicious.search(line.lower())
        for part in PART.findall(line)
        if part.lower() in term_of
    ]
    assert not wrong, "\n".join(wrong)


def test_communicator_is_a_word_of_nccl_alone() -> None:
    wrong = [
        f"{name}:{number}"
        for name, lines in texts("src", "core", "docs", "tests", "benchmarks", "examples", "README.md", "job")
        if "nccl" not in name.lower()
        for number, line in enumerate(lines, 1)
        if "communicator" in line.lower() and "nccl" not in line.lower()
    ]
    assert not wrong, wrong


def test_a_rank_has_a_page_and_a_tensor_a_frame() -> None:
    wrong = [
        f"{name}:{number}: {line.strip()}"
        for name, lines in texts("job/src/tensorwire_job", "job/core", "job/tests")
        if not name.startswith("job/tests/faults/programs/")  # training programs: frames of a video
        for number, line in enumerate(lines, 1)
        if re.search(r"(?<![a-z])frames?(?![a-z])", line, re.IGNORECASE) and not OF_A_STACK.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def prose(name: str, lines: list[str]) -> str:
    """What a page says without its code, or the docstrings and comments of a program; nothing of other files."""
    text = "\n".join(lines)
    if name.endswith(".md"):
        return re.sub(r"^ *```.*?^ *```|`[^`]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    if not name.endswith(".py"):
        return ""
    return "\n".join(
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT or '"""' in token.string
    )


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """Pages and the text of sources; of other programs what may begin a sentence in another order."""
    return {
        name: prose(name, lines)
        for name, lines in texts()
        if name.endswith(".md") or name.startswith(("src/", "job/src/")) or CROOKED.search("\n".join(lines))
    }


def test_sentences_begin_in_plain_order(said: dict[str, str]) -> None:
    found = [
        f"{name}: {' '.join(text[match.start() : match.start() + 70].split())}"
        for name, text in said.items()
        for match in CROOKED.finditer(text)
    ]
    assert not found, "say it as subject, verb, object:\n" + "\n".join(found)


def test_persons_are_named_where_a_person_is_meant(said: dict[str, str]) -> None:
    texts = [text for name, text in said.items() if name.endswith(".md") or name.startswith(("src/", "job/src/"))]
    words = sum(len(text.split()) for text in texts)
    count = sum(word in PERSONS for text in texts for word in re.findall(r"\w+", text.lower()))
    assert 1000 * count <= PERSONS_LIMIT * words, f"{count} in {words} words"


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("a.md", "Fine. Of these, `Who` is code.\n```\nThose\n```\nWho asks?\n", 2),
        ("a.md", "- **Named** is one. It is as\never, and of those who saw it\n", 2),
        ("a.py", '# Whoever asks.\nx = "Of a value"\n"""Missed by a\nhair.\n\nThose.\n"""', 3),
        ("a.cpp", "// Of another language", 0),
    ],
)
def test_crooked_sentences_are_found(name: str, text: str, number: int) -> None:
    assert len(CROOKED.findall(prose(name, text.splitlines()))) == number
