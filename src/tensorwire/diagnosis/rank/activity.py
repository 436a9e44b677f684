"""What the threads of this rank are in, by the functions on their stacks."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

_MAX_DEPTH: Final = 300
_INIT: Final = ("torch/distributed/distributed_c10d.py", "init_process_group")

# The end of a file's name, and functions in it; none: any. Of several on a stack the outermost is told.
_ACTIVITIES: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("torch/serialization.py", ("save",), "torch.save"),
    ("torch/serialization.py", ("load",), "torch.load"),
    ("torch/distributed/checkpoint/state_dict_saver.py", (), "checkpoint"),
    ("torch/distributed/checkpoint/state_dict_loader.py", (), "checkpoint"),
    ("safetensors/torch.py", ("save_file", "save_model"), "safetensors.save_file"),
    ("safetensors/torch.py", ("load_file", "load_model"), "safetensors.load_file"),
    ("torch/_dynamo/symbolic_convert.py", (), "torch.compile"),
    ("torch/_inductor/compile_fx.py", (), "torch.compile"),
    ("torch/distributed/distributed_c10d.py", ("new_group", "split_group"), "new_group"),
    ("torch/distributed/distributed_c10d.py", ("monitored_barrier",), "monitored_barrier"),
    ("torch/utils/data/dataloader.py", ("__next__", "__iter__"), "DataLoader"),
    ("tensorwire/diagnosis/rank/store_waits.py", ("wait_in_store",), "Store.wait"),
)


def is_in_init() -> bool:
    """Whether a thread is in init_process_group."""
    return any(
        code.co_name == _INIT[1] and code.co_filename.endswith(_INIT[0])
        for innermost in sys._current_frames().values()
        for code in _outwards(innermost)
    )


def main_activity() -> str:
    """What the main thread is in, "" where that is nothing of these. Takes tens of microseconds."""
    found = ""
    for code in _outwards(sys._current_frames().get(threading.main_thread().ident or 0)):
        found = _activity(code) or found
    return found


def _outwards(called: FrameType | None) -> Iterator[CodeType]:
    for _ in range(_MAX_DEPTH):
        if called is None:
            return
        yield called.f_code
        called = called.f_back


def _activity(code: CodeType) -> str:
    path, function = code.co_filename, code.co_name
    for file, functions, name in _ACTIVITIES:
        if path.endswith(file) and (not functions or function in functions):
            return name
    return ""
