"""What Python files import, and C++ files include, read from their text."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def module_name(path: Path, root: Path) -> str:
    """The name of a module whose package lies in `root`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported_modules(path: Path, module: str) -> set[str]:
    """Absolute names of all that a file imports, wherever the statement stands."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *(node.module.split(".") if node.module else [])])
            names.update(f"{target}.{alias.name}" for alias in node.names)
    return names


def import_graph(root: Path, package: str) -> dict[str, set[str]]:
    """By module the modules of the package that it imports."""
    paths = {module_name(path, root): path for path in (root / package).rglob("*.py")}
    graph = {}
    for module, path in paths.items():
        named = imported_modules(path, module)
        graph[module] = {name if name in paths else name.rpartition(".")[0] for name in named} & paths.keys() - {module}
    return graph


def circles(graph: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """Modules that all reach each other, in the order of their names."""
    reached: dict[str, set[str]] = {module: set() for module in graph}
    for module, seen in reached.items():
        left = [module]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
    return {
        tuple(sorted(other for other in seen if module in reached[other]))
        for module, seen in reached.items()
        if module in seen
    }


def by_name(package: Path) -> set[str]:
    """Modules that import by a name that is not in their text."""
    words = {"import_module", "__import__"}
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = {getattr(node, "id", None), getattr(node, "attr", None)}
            if isinstance(node, ast.ImportFrom) and node.module == "importlib":
                named.update(alias.name for alias in node.names)
            if words & named:
                found.add(module_name(path, package.parent))
    return found


def check_folder(package: Path, part: str, allowed: Mapping[str, set[str]]) -> None:
    """Each folder and file of a part of a package imports from the part what it may, one that is not listed nothing;
    and nothing is allowed that none imports. `part` is a path; "" stands for the package."""
    used: dict[str, set[str]] = {}
    prefix = ".".join(filter(None, [package.name, *part.split("/")])) + "."
    for path in sorted((package / part).rglob("*.py")):
        module = module_name(path, package.parent)
        if f"{module}." == prefix:
            continue  # the public names
        own = module.removeprefix(prefix).split(".")[0]
        used.setdefault(own, set())
        for name in imported_modules(path, module):
            if name.startswith(prefix):
                other = name.removeprefix(prefix).split(".")[0]
                assert other == own or other in allowed.get(own, ()), f"{module} imports {name}"
                used[own] |= {other} - {own}
    assert used == {own: set() for own in used} | dict(allowed), "an import that does not happen is not to be allowed"


def check_experimental(package: Path, allowed: Mapping[str, set[str]]) -> None:
    """A module, with all below it, is imported by none outside but those that may."""
    for experimental, users in allowed.items():
        found = {
            module
            for module, names in import_graph(package.parent, package.name).items()
            if not f"{module}.".startswith(f"{experimental}.")
            and any(f"{name}.".startswith(f"{experimental}.") for name in names)
        }
        assert found == users, f"{experimental} is imported by {found}"


def cpp_includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)
