"""The activities of this rank's threads, by the functions on their stacks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

from ..model import FOR_ANY, FOR_KEY, MONITORED, NEW_GROUP
from .file_locks import waited_for
from .store_waits import is_in_store

_MAX_DEPTH: Final = 300
_C10D: Final = "torch/distributed/distributed_c10d.py"

# The end of a file's name, and functions in it; none: any. The outermost of several on a stack is told.
_ACTIVITIES: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("torch/serialization.py", ("save",), "torch.save"),
    ("torch/serialization.py", ("load",), "torch.load"),
    ("torch/distributed/checkpoint/state_dict_saver.py", (), "checkpoint"),
    ("torch/distributed/checkpoint/state_dict_loader.py", (), "checkpoint"),
    ("safetensors/torch.py", ("save_file", "save_model"), "safetensors.save_file"),
    ("safetensors/torch.py", ("load_file", "load_model"), "safetensors.load_file"),
    ("torch/_dynamo/symbolic_convert.py", (), "torch.compile"),
    ("torch/_inductor/compile_fx.py", (), "torch.compile"),
    (_C10D, ("new_group", "split_group"), NEW_GROUP),
    (_C10D, ("monitored_barrier",), MONITORED),
    (_C10D, ("recv",), FOR_ANY),  # messages.py sees the others
    ("torch/utils/data/dataloader.py", ("__next__", "__iter__"), "DataLoader"),
)


def is_in_init() -> bool:
    """Whether a thread is in init_process_group."""
    return any(
        call.f_code.co_name == "init_process_group" and call.f_code.co_filename.endswith(_C10D)
        for innermost in sys._current_frames().values()
        for call in _outwards(innermost)
    )


def main_activity() -> str:
    """The activity of the main thread; "" where it is in none of these. Takes tens of microseconds."""
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    if lock := waited_for(_outwards(innermost)):  # that it saves or compiles tells less
        return lock
    found = FOR_KEY if innermost is not None and is_in_store(innermost) else ""
    for call in _outwards(innermost):
        found = _activity(call) or found
    return found


def _outwards(called: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_MAX_DEPTH):
        if called is None:
            return
        yield called
        called = called.f_back


def _activity(call: FrameType) -> str:
    path, function = call.f_code.co_filename, call.f_code.co_name
    if function == "<module>":  # it is imported
        return ""
    for file, functions, name in _ACTIVITIES:
        if path.endswith(file) and (not functions or function in functions):
            return "" if function == "recv" and _has_source(call) else name
    return ""


def _has_source(call: FrameType) -> bool:
    return any(call.f_locals.get(name) is not None for name in ("src", "group_src"))
