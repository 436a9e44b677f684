"""Measure the GPU of this machine, section by section, and write what is known at once."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import environment
from benchmarks.device import runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.device.measure import Bench

_SECONDS, _SECONDS_OF_THE_REST = 330.0, 300.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__)
    parser.add_argument("--list", action="store_true", help="the sections, with their seconds")
    parser.add_argument("--sections", default="", metavar="NAME,NAME", help="only these")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help=f"for all together (default: {_SECONDS:.0f})")
    parser.add_argument(
        "--out", type=Path, default=environment.ROOT / "build" / "device", metavar="FOLDER",
        help=f"where {runner.FILE} and the page go (default: build/device)",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the code alone")
    parser.add_argument("--quick", action="store_true", help="little data, which measures nothing")
    parser.add_argument("--publish", type=Path, metavar="FILE", help="add this file of rows to benchmarks/results")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

    def load() -> tuple[Sequence[runner.Section], Bench]:
        from benchmarks.device.measure import Bench
        from benchmarks.device.sections import SECTIONS

        known = [section.name for section in SECTIONS]
        if unknown := set(names) - set(known):
            sys.exit(f"expected sections among {', '.join(known)}, got {', '.join(sorted(unknown))}")
        sections = SECTIONS
        if options.quick:  # which is to end whatever else the machine does
            sections = tuple(dataclasses.replace(section, seconds=math.inf) for section in SECTIONS)
        return sections, Bench(options.device, options.quick)

    names = [name for name in options.sections.split(",") if name]
    if options.list:
        for section in load()[0]:
            print(f"{section.name:9} {section.seconds:4.0f} s  {section.question}")
        return
    if options.publish is None:
        options.out.mkdir(parents=True, exist_ok=True)
        runner.run(load, options.out / runner.FILE, options.seconds, names)
    from benchmarks.device import page  # PyTorch must not be loaded before the run: see runner.py

    journal, folder = options.out / runner.FILE, options.out
    if options.publish is not None:
        journal, folder = options.publish, environment.RESULTS
        for line in runner.lines(journal):
            environment.check_commit(line.get("environment", {"commit": ""}), folder)
    sections = load()[0]
    page.write(journal, folder, sections, add=options.publish is not None)
    if not any("row" in line for line in runner.lines(journal)):
        sys.exit(f"nothing was measured: does PyTorch see the GPU? {journal} has the errors")
    if options.publish is None and not names and (left := page.unfinished(journal, sections)):
        wanted = ",".join(dict.fromkeys(("card", *left)))  # which names the device
        more = f"--sections {wanted} --seconds {_SECONDS_OF_THE_REST:.0f} --out {options.out}-rest"
        print(f"\nNot measured to the end: {', '.join(left)}. For these: make device DEVICE='{more}'")
