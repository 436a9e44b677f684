"""No figure in prose without a measurement: README, docs, help texts and docstrings against benchmarks/results."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import click
import pytest

from tensorwire.cli import _commands
from tests.claims import CLAIMS, NOT_MEASURED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NUMBER = r"\d+(?:[.,]\d+)*"
_UNIT = r"(?:\s?(?:%|percent\b|x\b|GB/s|MB/s|GiB/s|MiB/s|µs|us\b|ms\b)|\s(?:times|microseconds|milliseconds|cycles)\b)"
_FIGURE = re.compile(
    rf"(?<![\w.-]){_NUMBER}{_UNIT}"  # 6.5 GB/s
    r"|(?<![\w.-])\d+\.\d{2,}(?![\w.])"  # a ratio, a speed in a table: 1.501
    r"|(?<![\w.-])\d[\d,]* of \d[\d,]*\b"  # 877 of 880
)
_VERSION = re.compile(r"(?i)\b(?:arXiv|torch|PyTorch|NCCL|Python|NumPy|Triton|CUDA|Debian|glibc)[\s\[(]*\d[\d.]*")


def figures(text: str) -> list[str]:
    """What reads like a measurement in `text`: a number with a unit, a decimal, so many of so many."""
    return [match[0] for match in _FIGURE.finditer(_VERSION.sub(" ", text))]


def prose(path: str, text: str) -> str:
    """`text` without what shows a screen or a program, and without addresses; of Python code the docstrings."""
    if path.endswith(".py"):
        holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        documented = [node for node in ast.walk(ast.parse(text)) if isinstance(node, holders)]
        return flat("\n".join(filter(None, map(ast.get_docstring, documented))))
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return flat(re.sub(r"\]\([^)]*\)|<!--.*?-->", "]", text, flags=re.DOTALL))


def flat(text: str) -> str:
    """On one line."""
    return " ".join(text.split())


def help_texts(command: click.Command) -> Iterator[str]:
    """What a command says of itself and of its options, and what its commands say."""
    yield command.help or ""
    yield from (option.help or "" for option in command.params if isinstance(option, click.Option))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from help_texts(child)


@pytest.fixture(scope="module")
def texts(repository: Path) -> dict[str, str]:
    """All prose, by path."""
    paths = [
        repository / "README.md", *(repository / "docs").rglob("*.md"), *(repository / "src").rglob("*.py")
    ]  # fmt: skip
    names = {path.relative_to(repository).as_posix(): path for path in paths}
    return {name: prose(name, path.read_text()) for name, path in names.items()} | {
        "--help": flat("\n".join(help_texts(_commands)))
    }


def known(key: str, path: str) -> bool:
    """Whether what is known of `key` holds for the text at `path`."""
    return path.startswith(key) if key.endswith("/") else path == key


@pytest.mark.parametrize(("key", "claim"), [(key, claim) for key, claims in CLAIMS.items() for claim in claims])
def test_a_claim_says_what_was_measured(texts: dict[str, str], key: str, claim: str) -> None:
    assert any(known(key, path) and flat(claim) in text for path, text in texts.items()), f"{key} should say: {claim}"


def test_no_figure_is_without_a_measurement(texts: dict[str, str]) -> None:
    unclaimed = []
    for path, text in texts.items():
        for key, words in (*CLAIMS.items(), *NOT_MEASURED.items()):
            for each in words if known(key, path) else ():
                text = text.replace(flat(each), " ")
        unclaimed += [f"{path}: {figure}" for figure in figures(text)]
    assert not unclaimed, "add these to CLAIMS or NOT_MEASURED in tests/claims.py:\n" + "\n".join(unclaimed)


@pytest.mark.parametrize(("key", "words"), [(key, each) for key, words in NOT_MEASURED.items() for each in words])
def test_what_is_not_measured_stands_in_its_text(texts: dict[str, str], key: str, words: str) -> None:
    found = any(known(key, path) and flat(words) in text for path, text in texts.items())
    assert found, f"{key} no longer says: {words}; strike it from NOT_MEASURED in tests/claims.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("decodes at 6.5 GB/s", ["6.5 GB/s"]),
        ("a ratio of 1.501", ["1.501"]),
        ("saves 34 % of the disk and 12% of the time", ["34 %", "12%"]),
        ("3 times as fast as ZipNN 0.5.4, 2x smaller", ["3 times", "2x"]),
        ("877 of 880 runs", ["877 of 880"]),
        ("| fast | 1.501 | 1.87 |", ["1.501", "1.87"]),
        ("adds 1.2 us", ["1.2 us"]),
        ("PyTorch 2.13, Python 3.10, arXiv 2604.03298, [arXiv [2604.03298]], NCCL 2.27 and F8_E4M3 on AVX-512", []),
        ("blocks of 65536 words, 8 bits, rank 2 of the job, version 1.2.3", []),
    ],
)
def test_figures_are_found(text: str, expected: list[str]) -> None:
    assert figures(text) == expected


def test_prose_leaves_out_screens_and_addresses() -> None:
    assert prose("a.md", "one [page](x/1.234.md)\n```sh\n$ 5 GB/s\n```\ntwo") == "one [page] two"
    assert prose("a.py", 'def f():\n    """Takes 5 %."""\n    return "6 %"\n') == "Takes 5 %."
