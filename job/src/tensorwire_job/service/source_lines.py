"""What a line of a program calls, told from its source: functions in C do not stand in a stack of Python's."""

from __future__ import annotations

import ast
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .rank_files import read_front

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_NBYTES: Final = 1 << 21  # of a source file
_OPERATIONS: Final = frozenset({"wait", "_broadcast_coalesced", "_verify_params_across_processes"})
# What may wait for a device, for a key of the store or for another operation, or may not.
_UNCLEAR: Final = frozenset({"item", "cpu", "tolist", "numpy", "to", "nonzero", "synchronize", "get"})
_BLOCKING: Final = frozenset(
    {"acquire", "sleep", "recv", "recv_into", "read", "readline", "accept", "connect", "flock", "lockf", "select"}
)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_LINES: Final = frozenset({"<module>", "<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


@lru_cache(4096)
def operation_at(path: str, line: int, function: str, roots: tuple[str, ...] = ()) -> str | None:
    """The operation in C that a line waits in, such as "wait" of `Work`; "" if in none; None where that is not known.

    Args:
        path: of the source file; py-spy shortens it to what an import would find.
        function: that has the line: a file that was changed since, or another one of that name, is told by it.
        roots: folders in which a shortened path is looked for, beside this process's own.
    """
    for root in ("",) if Path(path).is_absolute() else (*roots, *sys.path):
        tree = _tree(Path(root, path))
        if tree is not None and _has(tree, function.rpartition(".")[2], line):
            return _operation(tree, line)
    return None


@lru_cache(64)  # a job's ranks stand at a few lines of a few files
def _tree(path: Path) -> ast.Module | None:
    with suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        if path.suffix == ".py" and len(data := read_front(path, _MAX_NBYTES + 1).data) <= _MAX_NBYTES:
            return ast.parse(data)
    return None


def _has(tree: ast.Module, function: str, line: int) -> bool:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt) and _spans(node, line)]
    return any(function in _NO_LINES or (isinstance(node, _FUNCTIONS) and node.name == function) for node in nodes)


def _spans(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _operation(tree: ast.Module, line: int) -> str | None:
    aliases = _aliases(tree)
    called = {aliases.get(name, name) for name in _names_at(tree, line)}
    if found := called & _OPERATIONS:
        return None if called & _BLOCKING else min(found)
    return None if called & _UNCLEAR else ""


def _names_at(tree: ast.Module, line: int) -> Iterator[str]:
    """The functions that are called at the line, or given to another one. A call stands where its name ends."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and line in (node.lineno, node.func.end_lineno):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            names = list(filter(None, map(_name, [node.func, *given])))
            # `wait` with a key is the store's.
            yield from ("get" if name == "wait" and node.args and _is_key(node.args[0]) else name for name in names)
        elif isinstance(node, ast.With | ast.AsyncWith) and node.lineno == line:
            yield from ("acquire" for item in node.items if not isinstance(item.context_expr, ast.Call))


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _is_key(node: ast.expr) -> bool:
    return isinstance(node, ast.List | ast.Tuple | ast.ListComp | ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Other names of what is told by its name: `finish = work.wait`, `from time import sleep as pause`."""
    told = _OPERATIONS | _BLOCKING | _UNCLEAR
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in told:
            found.update({target.id: node.value.attr for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.ImportFrom):
            found.update({each.asname: each.name for each in node.names if each.asname and each.name in told})
    return found
