"""Prose of the repository, and the figures in it; tests/claims.py says what they are held against."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import click

from tensorwire.cli.group import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    Claims = Mapping[str, list[str]]

_NUMBER = r"\d+(?:[.,]\d+)*"
_UNIT = r"(?:\s?(?:%|percent\b|x\b|GB/s|MB/s|GiB/s|MiB/s|µs|us\b|ms\b)|\s(?:times|microseconds|milliseconds|cycles)\b)"
_FIGURE = re.compile(
    rf"(?<![\w.-]){_NUMBER}{_UNIT}"  # 6.5 GB/s
    r"|(?<![\w.-])\d+\.\d{2,}(?![\w.])"  # a ratio, a speed in a table: 1.501
    r"|(?<![\w.-])\d[\d,]* of \d[\d,]*\b"  # 877 of 880
)
_VERSION = re.compile(
    r"(?i)\b(?:Accelerate|arXiv|torch|PyTorch|NCCL|Python|NumPy|Ray Train|Triton|TRL|CUDA|Debian|glibc)"
    r"[\s\[\](]*\d[\d.]*"
)


def figures(text: str) -> list[str]:
    """What reads like a measurement in `text`: a number with a unit, a decimal, so many of so many."""
    return [match[0] for match in _FIGURE.finditer(_VERSION.sub(" ", text))]


def prose(path: str, text: str) -> str:
    """`text` without what shows a screen or a program, and without addresses; of Python code the docstrings."""
    if path.endswith(".py"):
        return flat("\n".join(filter(None, map(ast.get_docstring, _documented(ast.parse(text))))))
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return flat(re.sub(r"\]\([^)]*\)|<!--.*?-->", "]", text, flags=re.DOTALL))


def _documented(module: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """What may have a docstring: statements alone, since no expression holds one."""
    waiting: list[ast.AST] = [module]
    for node in waiting:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            waiting += inside if isinstance(inside := getattr(node, part, None), list) else ()


def flat(text: str) -> str:
    """On one line."""
    return " ".join(text.split())


def help_texts(command: click.Command) -> Iterator[str]:
    """What a command says of itself and of its options, and what its commands say."""
    yield command.help or ""
    yield from (option.help or "" for option in command.params if isinstance(option, click.Option))
    if isinstance(command, CommandGroup):
        context = click.Context(command)
        for name in command.modules:
            child = command.get_command(context, name)
            assert child is not None, name
            yield from help_texts(child)


def texts(repository: Path, paths: Iterable[Path], commands: click.Group) -> dict[str, str]:
    """All prose of a product, by path; `--help` is that of its commands."""
    found = {(name := path.relative_to(repository).as_posix()): prose(name, path.read_text()) for path in paths}
    return found | {"--help": flat("\n".join(help_texts(commands)))}


def newest_version(changelog: Path) -> str:
    """The version that a changelog begins with."""
    heading = re.search(r"^## \[(.+?)\] - ", changelog.read_text(), re.MULTILINE)
    return heading[1] if heading else ""


def unsaid(texts: Mapping[str, str], claims: Claims) -> list[tuple[str, str]]:
    """The words that stand in no text of their key, which is a path or a folder."""

    def is_said(key: str, words: str) -> bool:
        return any(_known(key, path) and flat(words) in text for path, text in texts.items())

    return [(key, each) for key, words in claims.items() for each in words if not is_said(key, each)]


def without_measurement(texts: Mapping[str, str], *known: Claims) -> list[str]:
    """The figures in texts that no claim is about."""
    unclaimed = []
    for path, text in texts.items():
        for claims in known:
            for key, words in claims.items():
                for each in words if _known(key, path) else ():
                    text = text.replace(flat(each), " ")
        unclaimed += [f"{path}: {figure}" for figure in figures(text)]
    return unclaimed


def _known(key: str, path: str) -> bool:
    """Whether what is known of `key` holds for the text at `path`."""
    return path.startswith(key) if key.endswith("/") else path == key
