"""All that users may name: ``python -m tests.surface`` writes tests/surface.txt anew.

A line has a thing and its parts: a function and its parameters, a command and its options. What is newer than the first
list stands below a line that says so, and docs/decisions.md has a reason for each of it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import torch

from tensorwire.cli import _commands, failures
from tensorwire.codec import Profile
from tensorwire.torch.integrations.transformers import TensorwireConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Surface = dict[str, list[str]]

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".txt")
NEWER = "# Newer than the first list: docs/decisions.md says who needs it, and what it replaces."

# A name that several of these modules have is listed once, under the first.
MODULES = ("tensorwire", "tensorwire.checkpoint", "tensorwire_job", "tensorwire_job.nccl.ras",
           "tensorwire.torch", "tensorwire.torch.device", "tensorwire.torch.traffic", "tensorwire.torch.dcp",
           "tensorwire.safetensors", "tensorwire.sync",
           "tensorwire.safetensors.numpy", "tensorwire.safetensors.torch")  # fmt: skip
_VARIABLE = re.compile(r'(?:environ(?:\.get\(|\[)|getenv\(|(?:text|number)_of\()"(\w+)"|"(_?TENSORWIRE_[A-Z_]+)')


def surface() -> Surface:
    """Things and their parts, as they are now."""
    codes = [code for name, code in vars(failures).items() if name.isupper() and type(code) is int]
    return {
        "exit codes": [str(code) for code in sorted([0, *codes])],
        "profiles": list(get_args(Profile)),
        "environment": sorted({first or second for text in _sources() for first, second in _VARIABLE.findall(text)}),
        f"quantization_config in config.json, {TensorwireConfig.__module__}.TensorwireConfig": list(
            inspect.signature(TensorwireConfig).parameters
        ),
        **dict(_commands_of(_commands, "tensorwire")),
        **dict(_operators()),
        **dict(_names()),
    }


def items(lines: Iterable[str]) -> set[str]:
    """Each thing in the lines of a list, and each of its parts as "thing: part"."""
    things = (line.partition(": ") for line in lines)
    return {f"{thing}: {part}" if part else thing for thing, _, parts in things for part in ("", *parts.split(", "))}


def lines(found: Surface) -> list[str]:
    return [f"{thing}: {', '.join(parts)}" if parts else thing for thing, parts in found.items()]


def read() -> tuple[list[str], list[str]]:
    """The lines of the first list, and the newer ones."""
    first, _, newer = LIST.read_text().partition(f"{NEWER}\n")
    return first.splitlines(), newer.splitlines()


def write() -> None:
    first, found = items(read()[0]), surface()
    kept = {thing: [p for p in parts if f"{thing}: {p}" in first] for thing, parts in found.items() if thing in first}
    newer = sorted(items(lines(found)) - first)
    LIST.write_text("".join(f"{line}\n" for line in (*lines(kept), NEWER, *newer)))


def unexplained(first: Iterable[str], newer: Iterable[str], page: str) -> list[str]:
    """Newer things, and newer parts of older ones, that `page` does not name: `thing`, or `thing: part`."""
    old = items(first)
    new = {item if item.partition(": ")[0] in old else item.partition(": ")[0] for item in items(newer) - old}
    return sorted(item for item in new if f"`{item}`" not in page)


def _names() -> Iterator[tuple[str, list[str]]]:
    seen: set[str] = set()
    for module in map(importlib.import_module, MODULES):
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


def _commands_of(command: click.Command, name: str) -> Iterator[tuple[str, list[str]]]:
    spelled = (each.opts if isinstance(each, click.Option) else [each.human_readable_name] for each in command.params)
    yield name, [option for options in spelled for option in options]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _commands_of(found, f"{name} {child}")


def _operators() -> Iterator[tuple[str, list[str]]]:
    for schema in sorted(torch._C._jit_get_all_schemas(), key=str):
        if schema.name.startswith("tensorwire::"):
            name = f"torch.ops.{schema.name.replace('::', '.')}"
            yield f"{name}.{schema.overload_name}".rstrip("."), [argument.name for argument in schema.arguments]


def _sources() -> Iterator[str]:
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "core").rglob("*.cpp")):
        if "tests" not in path.parts:
            yield path.read_text()


if __name__ == "__main__":
    write()
