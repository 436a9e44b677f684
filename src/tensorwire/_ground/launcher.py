"""Run a program as Python would run it, after something of ours: what `python -m` of a package of ours does."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def launch(arguments: list[str], usage: str, launcher: str, begin: Callable[[], None]) -> None:
    """Runs what `arguments` say as ``__main__``, after `begin`; ends as that ends.

    Args:
        arguments: ``SCRIPT ARGS`` or ``-m MODULE ARGS``.
        usage: what is printed for others.
        launcher: the file that calls this, which no traceback shows.
    """
    is_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if is_module else arguments
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage)
        return
    if not rest or (not is_module and rest[0].startswith("-")):
        print(usage, file=sys.stderr)
        sys.exit(2)
    hook = sys.excepthook
    ours = (__file__, launcher, "<frozen runpy>")

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = trace
        while own is not None and own.tb_frame.f_code.co_filename in ours:
            own = own.tb_next
        if own is None and not issubclass(kind, SyntaxError):  # nothing of the program ran
            own = trace
        hook(kind, error.with_traceback(own), own)

    sys.excepthook = excepthook
    sys.argv = list(rest)
    begin()
    code, module = _find_module(rest) if is_module else _find_script(rest)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _find_script(arguments: list[str]) -> tuple[CodeType, ModuleType]:
    path = arguments[0]
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    module = _new_main(path, SourceFileLoader("__main__", path))
    return compile(source, path, "exec", dont_inherit=True), module


def _find_module(arguments: list[str]) -> tuple[CodeType, ModuleType]:
    name = arguments[0]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        print(f"{sys.executable}: No module named {name}", file=sys.stderr)
        sys.exit(1)
    sys.argv[0] = spec.origin or name
    module = _new_main(spec.origin, loader)
    module.__spec__ = spec
    module.__package__ = spec.parent
    return code, module


def _new_main(path: str | None, loader: Any) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = loader
    module.__dict__["__builtins__"] = __builtins__
    return module
