"""Lists of all that users of a product may name: what is in them, and how they are read and written.

A line has a thing and its parts: a function and its parameters, a command and its options. What is newer than the first
list stands below a line that says so, and a page has a reason for each of it. What is experimental stands below another
line: nothing of it is promised.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tensorwire.cli.group import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    Surface = dict[str, list[str]]

NEWER = "# Newer than the first list: a page says who needs it, and what it replaces."
EXPERIMENTAL = "# Experimental: it may change or go with any version."
_VARIABLE = re.compile(r'(?:environ(?:\.get\(|\[)|getenv\(|(?:text|number)_of\()"(\w+)"|"(_?TENSORWIRE_[A-Z_]+)')


class Parts(NamedTuple):
    """The lines of a list: those of the first list, newer ones, and what is experimental."""

    first: list[str]
    newer: list[str]
    experimental: list[str]


def items(lines: Iterable[str]) -> set[str]:
    """Each thing in the lines of a list, and each of its parts as "thing: part"."""
    things = (line.partition(": ") for line in lines)
    return {f"{thing}: {part}" if part else thing for thing, _, parts in things for part in ("", *parts.split(", "))}


def lines(found: Surface) -> list[str]:
    return [f"{thing}: {', '.join(parts)}" if parts else thing for thing, parts in found.items()]


def read(path: Path) -> Parts:
    first, _, rest = path.read_text().partition(f"{NEWER}\n")
    newer, _, experimental = rest.partition(f"{EXPERIMENTAL}\n")
    return Parts(first.splitlines(), newer.splitlines(), experimental.splitlines())


def write(path: Path, found: Surface, experimental: Surface, *, release: bool) -> None:
    """A release moves what is newer into the first list."""
    first = items(lines(found)) if release else items(read(path).first)
    kept = {thing: [p for p in parts if f"{thing}: {p}" in first] for thing, parts in found.items() if thing in first}
    newer = sorted(items(lines(found)) - first)
    parts = (*lines(kept), NEWER, *newer, EXPERIMENTAL, *lines(experimental))
    path.write_text("".join(f"{line}\n" for line in parts))


def differences(path: Path, found: Surface, experimental: Surface) -> tuple[list[str], list[str]]:
    """What a list lacks, and what is no longer there."""
    listed = read(path)
    pairs = ((items([*listed.first, *listed.newer]), found), (items(listed.experimental), experimental))
    new = [item for old, now in pairs for item in sorted(items(lines(now)) - old)]
    gone = [item for old, now in pairs for item in sorted(old - items(lines(now)))]
    return new, gone


def unexplained(first: Iterable[str], newer: Iterable[str], page: str) -> list[str]:
    """Newer things, and newer parts of older ones, that `page` does not name: `thing`, or `thing: part`."""
    old = items(first)
    new = {item if item.partition(": ")[0] in old else item.partition(": ")[0] for item in items(newer) - old}
    return sorted(item for item in new if f"`{item}`" not in page)


def environment_of(sources: Iterable[Path]) -> list[str]:
    """The variables that files name."""
    texts = [path.read_text() for path in sources]
    return sorted({first or second for text in texts for first, second in _VARIABLE.findall(text)})


def names_of(modules: Iterable[str], listed: Iterable[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Public names. A name that several modules have, or one of those that are `listed`, is there once."""
    seen = {name for module in listed for name in importlib.import_module(module).__all__}
    for module in map(importlib.import_module, modules):
        for name in sorted(set(module.__all__) - seen):
            seen.add(name)
            yield from _thing(f"{module.__name__}.{name}", getattr(module, name))


def _thing(name: str, value: Any) -> Iterator[tuple[str, list[str]]]:
    """A function with its parameters; a class with its attributes, and its methods as things of their own. What an
    abstract class of another package asks for is that package's."""
    if inspect.isfunction(value) or inspect.ismethod(value):
        yield name, [each for each in inspect.signature(value).parameters if each != "self"]
    elif not inspect.isclass(value):
        yield name, []
    else:
        asked = {each for base in value.__mro__[1:] if inspect.isabstract(base) for each in vars(base)}
        own = {each: getattr(value, each) for each in vars(value) if not each.startswith("_") and each not in asked}
        methods = [each for each in own if callable(own[each])]
        attributes = [field.name for field in fields(value)] if is_dataclass(value) else []
        if issubclass(value, Exception) and "__init__" in vars(value):
            attributes = list(inspect.signature(value).parameters)
        yield name, sorted({*attributes, *own} - {*methods})
        for each in methods:
            yield from _thing(f"{name}.{each}", own[each])


def commands_of(command: click.Command, name: str) -> Iterator[tuple[str, list[str]]]:
    spelled = (each.opts if isinstance(each, click.Option) else [each.human_readable_name] for each in command.params)
    yield name, [option for options in spelled for option in options]
    if isinstance(command, CommandGroup):
        context = click.Context(command)
        for child in command.modules:
            found = command.get_command(context, child)
            assert found is not None
            yield from commands_of(found, f"{name} {child}")
