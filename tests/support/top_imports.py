"""What importing test files imports, read from their text."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = (ROOT, ROOT / "src", ROOT / "job" / "src")


class Step(NamedTuple):
    """A statement at the top of a file: it imports these modules, or may skip the file, for want of these or else."""

    modules: tuple[str, ...]
    may_skip: bool
    place: str


@cache
def own(module: str) -> Path | None:
    """The file of a module of the repository."""
    bases = [folder.joinpath(*module.split(".")) for folder in SOURCES]
    files = [path for base in bases for path in (base.with_name(base.name + ".py"), base / "__init__.py")]
    return next((path for path in files if path.is_file()), None)


@cache
def is_own(top: str) -> bool:
    return any((folder / top).is_dir() for folder in SOURCES)


@cache
def steps(path: Path) -> list[Step]:
    """An import inside a function or a ``try`` is none."""
    found = []
    text, name = path.read_text(), path.relative_to(ROOT)
    for statement in statements(ast.parse(text), some_skip=any(each in text for each in SKIPS)):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            found.append(Step(tuple(modules_of(statement, path)), False, f"{name}:{statement.lineno}"))
        elif may_skip(statement):
            found.append(Step(tuple(asked_for(statement)), True, f"{name}:{statement.lineno}"))
    return found


def statements(module: ast.Module, *, some_skip: bool) -> Iterator[ast.stmt]:
    """Imports, and what may skip the file where `some_skip`, which most do not."""
    for statement in module.body:
        if not isinstance(statement, ast.If) or (some_skip and may_skip(statement)):
            if some_skip or isinstance(statement, ast.Import | ast.ImportFrom):
                yield statement
        else:
            if "TYPE_CHECKING" not in ast.unparse(statement.test):
                yield from statement.body
            yield from statement.orelse


def modules_of(statement: ast.Import | ast.ImportFrom, path: Path) -> Iterator[str]:
    """Each package on the way to a module is imported too."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        above = path.relative_to(ROOT).parts[: -statement.level] if statement.level else ()
        module = ".".join([*above[above[:1] == ("src",) :], *filter(None, [statement.module])])
        inside = [f"{module}.{alias.name}" for alias in statement.names]
        names = [module, *(name for name in inside if own(name) or name.endswith(".torch"))]
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


SKIPS = ("pytest.importorskip(", "allow_module_level=True")


def may_skip(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
        return False
    text = ast.unparse(statement)
    return any(each in text for each in SKIPS)


def asked_for(statement: ast.stmt) -> Iterator[str]:
    """What pytest.importorskip names, not what it takes from a variable."""
    for call in ast.walk(statement):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.importorskip":
            yield from (name.value for name in call.args[:1] if isinstance(name, ast.Constant))


def top_imports(paths: Iterable[Path]) -> dict[str, str]:
    """Modules of third parties, and where each is imported first.

    A file that is given must run, so what it is skipped without counts; one of a folder may be skipped. The conftest.py
    of all folders around them come first.
    """
    found: dict[str, str] = {}
    seen = set()

    def read(path: Path, optional: frozenset[str], must_run: bool) -> None:
        if (path, optional) in seen:
            return
        seen.add((path, optional))
        for step in steps(path):
            if step.may_skip and not must_run:
                if not step.modules:
                    return
                optional |= {module.partition(".")[0] for module in step.modules}
            for module in step.modules:
                add(module, step.place, optional)

    def add(module: str, place: str, optional: frozenset[str]) -> None:
        top, path = module.partition(".")[0], own(module)
        if path is not None:
            read(path, optional, must_run=False)
        elif top not in sys.stdlib_module_names and not is_own(top):
            # safetensors.torch imports torch.
            for name in {top, "torch" if module.endswith(".torch") else top} - optional:
                found.setdefault(name, place)

    for path in paths:
        around = [folder / "conftest.py" for folder in reversed(path.parents)]
        files = [path] if path.is_file() else sorted([*path.rglob("conftest.py"), *path.rglob("test_*.py")])
        for file in [*(one for one in around if one.is_relative_to(ROOT) and one.is_file()), *files]:
            read(file, frozenset(), must_run=path.is_file())
    return found
