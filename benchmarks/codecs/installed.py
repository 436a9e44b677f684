"""What `tensorwire.torch.install` costs programs that read nothing compressed: python -m benchmarks.codecs.installed.

Dense files of all-MiniLM-L6-v2, and of one tensor of 8 numbers, are loaded with and without it, by turns. CPU time of
the thread, the median of all rounds, and the median of how much longer it takes in one round. Before that, processes
import `tensorwire.torch` with the module that has the call and with an empty one in its place, by turns too.
benchmarks/results/installed.json keeps the figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from safetensors.torch import load_file, save_file

from benchmarks.data import minilm_path
from benchmarks.results_page import keep_rows
from benchmarks.timing import pinned

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 100
MODULE = "tensorwire.torch.installed"


def import_rows(rounds: int) -> list[dict[str, Any]]:
    """`import tensorwire.torch` in forks of this process, which has torch."""
    pairs = [
        _turn(lambda: _import_milliseconds(stubbed=True), _import_milliseconds, number) for number in range(rounds)
    ]
    return [_row("import tensorwire.torch", pairs)]


def _import_milliseconds(*, stubbed: bool = False) -> float:
    reader, writer = os.pipe()
    if os.fork() == 0:
        if stubbed:
            empty = ModuleType(MODULE)
            vars(empty).update(install=None, uninstall=None)
            sys.modules[MODULE] = empty
        start = time.process_time()
        import tensorwire.torch  # noqa: F401

        os.write(writer, str(time.process_time() - start).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:  # noqa: PTH123 - a pipe
        seconds = float(file.read())
    os.wait()
    return 1e3 * seconds


def load_rows(rounds: int, tensors: dict[str, torch.Tensor], folder: Path) -> list[dict[str, Any]]:
    """Loads of dense files, by the functions that were there and by those that `install` has put in their place."""
    from tensorwire.torch import install, uninstall

    own = torch.load, safetensors.torch.safe_open
    install()
    ours = torch.load, safetensors.torch.safe_open
    uninstall()
    found = []
    for name, content, times in (("MiniLM", tensors, 1), ("8 numbers", {"x": torch.ones(8)}, 8)):
        path = folder / name
        save_file(content, f"{path}.safetensors")
        torch.save(content, f"{path}.pt")
        for what, number in (("load_file", 8), ("torch.load", 1)):
            load = partial(_milliseconds, what, f"{path}.{'pt' if what == 'torch.load' else 'safetensors'}")
            turns = [
                _turn(lambda call=load: call(own), lambda call=load: call(ours), turn)
                for turn in range(rounds * times * number)
            ]
            found.append(_row(f"{what}, {name}", turns))
    vars(safetensors.torch)["safe_open"] = own[1]
    return found


def _milliseconds(what: str, path: str, functions: tuple[Any, Any]) -> float:
    """A load with these in the place of `torch.load` and `safe_open`."""
    torch_load, vars(safetensors.torch)["safe_open"] = functions
    start = time.thread_time()
    if what == "torch.load":
        torch_load(path)
    else:
        load_file(path)
    return 1e3 * (time.thread_time() - start)


def _turn(without: Callable[[], float], having: Callable[[], float], number: int) -> tuple[float, float]:
    """Both, the other one first in every second round."""
    if number % 2:
        second = having()
        return without(), second
    return without(), having()


def _row(what: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "what": what,
        "without_ms": statistics.median(a for a, _ in pairs),
        "with_ms": statistics.median(b for _, b in pairs),
        "longer": statistics.median(b / a for a, b in pairs) - 1,
        "rounds": len(pairs),
    }


COLUMNS = (
    ("what", "what", ""), ("without, ms", "without_ms", ".3f"), ("with, ms", "with_ms", ".3f"),
    ("longer", lambda row: f"{100 * row['longer']:.2f} %"), ("rounds", "rounds", ""),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder, pinned(1):
        torch.set_num_threads(1)
        found = import_rows(rounds)
        found += load_rows(rounds, load_file(minilm_path() / "model.safetensors"), Path(folder))
    keep_rows("installed", "python -m benchmarks.codecs.installed", found, COLUMNS, rounds=rounds)


if __name__ == "__main__":
    main()
