"""tensorwire doctor"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from . import options, output
from .failures import FINDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .machine import Advice, Gpu, Nvrtc
    from .proof import Engine, Proof


@dataclass(frozen=True)
class Diagnosis:
    """What a machine has, and what was proved on it; the document of --json.

    Attributes:
        core_version: of the library that was loaded; that of the package, or the installation is a mixture.
        cpu_target, cpu_targets: the CPU target that runs, and all that this CPU has.
        forced: TENSORWIRE_CPU, None without it.
        cores, usable_cores: of the machine, and those that this process may use.
        memory_nbytes, usable_nbytes: of the machine, and what a control group leaves of it.
        address_space_nbytes: the limit of ``ulimit -v``, None without one.
        packages: by name the version, None for one that is not installed.
        gpu_engines: what decodes on the first GPU.
        nvrtc: None where torch can use no GPU of NVIDIA's.
        results: a line for each odd tensor and engine.
    """

    version: str
    core_version: str
    python: str
    system: str
    cpu: str
    cpu_target: str
    cpu_targets: list[str]
    forced: str | None
    cores: int
    usable_cores: int
    memory_nbytes: int
    usable_nbytes: int
    address_space_nbytes: int | None
    packages: dict[str, str | None]
    gpus: list[Gpu]
    gpu_engines: list[str]
    nvrtc: Nvrtc | None
    advice: Advice
    results: list[Proof]

    @property
    def ok(self) -> bool:
        return self.version == self.core_version and all(result.ok for result in self.results)


@click.command()
@options.json_option
def command(as_json: bool) -> int:
    """Say what this machine has, and prove the kernels on it.

    Odd tensors (one word, ends of blocks, NaN, all bit patterns, constants, random bits) are compressed in each profile
    on every CPU target that this CPU has. The frames must be those of target scalar, and must give every bit back. On a
    GPU everything that decodes there has to give the bits of the core; kernels in CUDA C++ were run on none before, so
    begin with this. What differs is named.

    The output is text to paste into a report. It has no name of a user or of a host, and no home directory.

    Exit code 0: all is as it should be; 3: something differs.

    \b
    Example:
      tensorwire doctor
      tensorwire doctor > report.txt
    """
    diagnosis = _diagnose()
    if as_json:
        output.print_json(diagnosis)
    else:
        _print(diagnosis)
    return 0 if diagnosis.ok else FINDING


def _diagnose() -> Diagnosis:
    from .._ground.memory import machine_nbytes, memory_nbytes
    from .._ground.version import __version__
    from ..codec import cpu_target, library_version, num_threads
    from . import machine, proof

    found = machine.gpus()
    engines, nvrtc = _on_device() if found else ({}, None)
    with output.progress("doctor", in_bytes=False) as progress:
        results = proof.prove_on_cpu(progress)
        targets = list(dict.fromkeys(result.engine for result in results))
        results += proof.prove_engines(engines)
    return Diagnosis(
        version=__version__,
        core_version=library_version(),
        python=platform.python_version(),
        system=f"{platform.platform(terse=True)}, {platform.machine()}",
        cpu=machine.cpu_name(),
        cpu_target=cpu_target(),
        cpu_targets=targets,
        forced=os.environ.get("TENSORWIRE_CPU"),
        cores=os.cpu_count() or 1,
        usable_cores=num_threads(None),
        memory_nbytes=machine_nbytes(),
        usable_nbytes=memory_nbytes(),
        address_space_nbytes=machine.address_space_nbytes(),
        packages=machine.packages(),
        gpus=found,
        gpu_engines=list(engines),
        nvrtc=nvrtc,
        advice=machine.advice(found[0] if found else None, cpu_target()),
        results=results,
    )


def _on_device() -> tuple[dict[str, Engine], Nvrtc | None]:
    if find_spec("torch") is None:
        return {}, None
    from . import device

    return device.find()


def _print(found: Diagnosis) -> None:
    for title, text in _facts(found):
        output.print_line(f"{title:<12}{text}")
    print()
    engines = list(dict.fromkeys(result.engine for result in found.results))
    output.print_table(("tensor", "dtype", "shape", *engines), _rows(found.results, engines))
    print()
    wrong = [result for result in found.results if not result.ok]
    for result in wrong:
        place = f"{result.engine}: {result.tensor}, {result.dtype}, {output.shape_text(result.shape)}"
        output.print_line(f"differs: {place}: {result.verdict}")
    if found.version != found.core_version:
        text = f"this is tensorwire {found.version} with a core of {found.core_version}: install it anew"
        output.print_line(f"differs: {text}")
    if found.ok:
        num_tensors = len({(result.tensor, result.dtype, result.shape) for result in found.results})
        output.print_line(f"ok: {output.count(num_tensors, 'tensor')} in 4 profiles, every bit on {', '.join(engines)}")


def _rows(results: Sequence[Proof], engines: Sequence[str]) -> list[list[str]]:
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for result in results:
        row = cells.setdefault((result.tensor, result.dtype, output.shape_text(result.shape)), {})
        row[result.engine] = result.verdict if result.ok else "differs"
    return [[*row, *(verdicts.get(engine, "not run") for engine in engines)] for row, verdicts in cells.items()]


def _facts(found: Diagnosis) -> list[tuple[str, str]]:
    forced = f", forced by TENSORWIRE_CPU={found.forced}" if found.forced else ""
    others = [target for target in found.cpu_targets if target != found.cpu_target]
    memory = output.size(found.memory_nbytes)
    if found.usable_nbytes < found.memory_nbytes:
        memory += f", of which a control group allows {output.size(found.usable_nbytes)}"
    limit = found.address_space_nbytes
    memory += "" if limit is None else f"; address space limited to {output.size(limit)}"
    installed = [f"{name} {version}" for name, version in found.packages.items() if version]
    missing = [name for name, version in found.packages.items() if not version]
    advice = found.advice
    return [
        ("tensorwire", f"{found.version}, core {found.core_version}; Python {found.python}"),
        ("system", found.system),
        ("CPU", f"{found.cpu}; {found.usable_cores} of {output.count(found.cores, 'core')} usable"),
        ("target", f"{found.cpu_target}{forced}; also {', '.join(others) or 'none'}"),
        ("memory", memory),
        ("packages", ", ".join(installed) + (f"; not installed: {', '.join(missing)}" if missing else "")),
        *_gpu_facts(found),
        ("profile", f"{advice.profile} ({'modelled: ' if advice.modelled else ''}{advice.reason})"),
    ]


def _gpu_facts(found: Diagnosis) -> list[tuple[str, str]]:
    if not found.gpus:
        return [("GPU", "none found")]
    facts = []
    for index, gpu in enumerate(found.gpus):
        parts = [gpu.name]
        parts += [f"compute capability {gpu.capability}"] if gpu.capability else []
        parts += [output.count(gpu.num_processors, "processor")] if gpu.num_processors else []
        parts += [output.size(gpu.nbytes)]
        parts += [f"driver {gpu.driver}"] if gpu.driver else []
        facts.append((f"GPU {index}", ", ".join(parts)))
    if not found.gpu_engines:
        facts.append(("", "nothing decodes there: torch cannot use it, or NVRTC and Triton are missing"))
    nvrtc = found.nvrtc
    if nvrtc is not None:
        facts.append(("NVRTC", f"{nvrtc.version}, {nvrtc.place}" if nvrtc.version else f"not found: {nvrtc.place}"))
        writable = "" if nvrtc.writable else ", which cannot be written: each process compiles anew"
        facts.append(("kernels", f"kept in {nvrtc.folder}{writable}" if nvrtc.folder else "kept nowhere"))
    return facts
