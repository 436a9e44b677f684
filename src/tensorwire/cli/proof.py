"""The proof of ``tensorwire doctor``: odd tensors as frames, on every CPU target and every engine of a device.

A CPU target is chosen when the core is loaded, so each of them runs in a process of its own, which is this module:
TENSORWIRE_CPU=avx2 python -m tensorwire.cli.proof
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..codec import Profile, compress, cpu_target, decompress
from .machine import public

PROFILES: tuple[Profile, ...] = ("fast", "compact", "resident", "enec")
REFERENCE = "scalar"
TARGETS = (REFERENCE, "avx2", "avx512", "neon")
_SECONDS = 60
_BLOCK = 32768  # words in a block of profile resident
_FLOATS = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}

Engine = Callable[[bytes], bytes | None]
"""A frame to the content of its tensor; None for a dtype that it does not know."""


class Case(NamedTuple):
    """An odd tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Proof:
    """What one engine, which is a CPU target or what decodes on a device, made of one tensor.

    Attributes:
        tensor: its name among the odd tensors.
        verdict: "ok"; "-" if the engine does not know the dtype; else what differs, and in which profile.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    engine: str
    verdict: str

    @property
    def ok(self) -> bool:
        return self.verdict in ("ok", "-")


def cases() -> list[Case]:
    """The odd tensors, the same ones each time."""
    return list(_cases(np.random.default_rng(0)))


def _cases(random: np.random.Generator) -> Iterator[Case]:
    def weights(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
        return (random.standard_normal(shape) * 0.02).astype(_FLOATS[dtype])

    def patterns(dtype: str, bits: np.ndarray[Any, Any]) -> Case:
        return Case("all patterns", dtype, bits.shape, bits.tobytes())

    ends = ((), (1,), (0, 5), (255,), (256,), (257,), (3, 7, 1111))
    for shape in (*ends, (_BLOCK,), (_BLOCK + 1,), (9 * _BLOCK + 259,)):
        yield Case("weights", "BF16", shape, weights("BF16", *shape).tobytes())
    for dtype, shape in (
        ("F16", (257,)), ("F16", (129, 257)), ("F32", (255,)), ("F32", (77, 1025)), ("F64", (33, 65)),
        ("F8_E4M3", (511,)), ("F8_E4M3", (301, 257)), ("F8_E5M2", (301, 257)),
    ):  # fmt: skip
        yield Case("weights", dtype, shape, weights(dtype, *shape).tobytes())
    words = np.arange(1 << 16, dtype=np.uint16)
    yield from (patterns("BF16", words), patterns("F16", words), patterns("U16", words))
    yield patterns("F32", words.astype(np.uint32) << 16 | random.integers(0, 1 << 16, 1 << 16, dtype=np.uint32))
    yield from (patterns(dtype, np.arange(256, dtype=np.uint8)) for dtype in ("F8_E4M3", "F8_E5M2", "I8"))
    nans = random.integers(0, 1 << 16, 5000, dtype=np.uint16) | 0x7F80
    outliers = weights("BF16", 20_000)
    outliers[::1999] = np.inf
    pruned = weights("BF16", 40_000)
    pruned[random.random(40_000) < 0.9] = 0
    subnormal = random.integers(0, 1 << 7, 5000, dtype=np.uint16) | random.choice([0, 1 << 15], 5000).astype(np.uint16)
    for name, dtype, array in (
        ("NaN and infinity", "BF16", nans),
        ("outliers", "BF16", outliers),
        ("pruned", "BF16", pruned),
        ("subnormal", "BF16", subnormal),
        ("zeros", "BF16", np.zeros(_BLOCK + 7, np.uint16)),
        ("zeros of both signs", "BF16", random.choice([0, 1 << 15], 5001).astype(np.uint16)),
        ("constant", "BF16", np.full(_BLOCK + 3, 0x3C01, np.uint16)),
        ("constant", "F32", np.full(4099, 0x3C010203, np.uint32)),
        ("incompressible", "BF16", random.integers(0, 1 << 16, 2 * _BLOCK + 5, dtype=np.uint16)),
        ("incompressible", "F32", random.integers(0, 1 << 32, 10_001, dtype=np.uint32)),
        ("small numbers", "I32", random.integers(-5, 300, 9999).astype(np.int32)),
        ("counted up", "I64", np.arange(3001, dtype=np.int64)),
        ("bytes", "U8", random.integers(0, 7, 70_001, dtype=np.uint8)),
    ):
        yield Case(name, dtype, array.shape, array.tobytes())


def frame_of(case: Case, profile: Profile) -> bytes:
    """The tensor's frame by the core, on the CPU target that runs."""
    return bytes(compress(case.data, profile=profile, dtype=case.dtype, shape=case.shape, threads=1))


def prove_on_cpu(progress: Callable[[int, int, str], None] | None = None) -> list[Proof]:
    """Every CPU target that this machine has: its frames are those of target scalar, and give their tensors back."""
    tensors = cases()
    made: dict[str, list[dict[str, str]]] = {}
    ends: dict[str, str] = {}
    for done, target in enumerate(TARGETS):
        if progress is not None:
            progress(done, len(TARGETS), target)
        lines, end = _run(target)
        if lines and lines[0] == target:
            made[target], ends[target] = lines[1:], end
        elif end or target == REFERENCE:
            made[target], ends[target] = [], end or "did not start"
    expected = made[REFERENCE]
    results = []
    for target, rows in made.items():
        for index, case in enumerate(tensors):
            row = rows[index] if index < len(rows) else None
            right = expected[index] if index < len(expected) else {}
            verdict = ends[target] or "did not end" if row is None else _differing(row, right)
            results.append(Proof(case.name, case.dtype, case.shape, target, verdict))
            if row is None:
                break  # what killed it was this tensor; those behind it are not known
    return results


def _differing(row: Mapping[str, str], expected: Mapping[str, str]) -> str:
    other = f"other frame than {REFERENCE}'s"
    wrong = {each: other for each, digest in row.items() if expected.get(each, digest) != digest}
    return _verdict(wrong | {profile: text for profile, text in row.items() if " " in text})


def _verdict(wrong: Mapping[str, str]) -> str:
    """What is wrong, by profile, as one line."""
    texts = dict.fromkeys(wrong.values())
    profiles = {text: ", ".join(each for each in PROFILES if wrong.get(each) == text) for text in texts}
    return "; ".join(f"{text} ({names})" for text, names in profiles.items()) or "ok"


def _run(target: str) -> tuple[list[Any], str]:
    """What the process of a target printed, and how it ended, "" if well."""
    environment = {**os.environ, "TENSORWIRE_CPU": target}
    try:
        done = subprocess.run(
            _command(), env=environment, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"no end within {_SECONDS} s"
    except OSError as error:
        return [], f"cannot be started: {error.strerror}"
    lines = list(_lines(done.stdout))
    if done.returncode < 0:
        return lines, f"ended by {_signal_name(-done.returncode)}"
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return lines, public(reason) if done.returncode else ""


def _lines(text: str) -> Iterator[Any]:
    """What `main` printed. A process that was killed ends within a line, and a sitecustomize may print lines of its
    own."""
    for line in text.splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, str | dict):
                yield found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the many real-time signals
        return f"signal {number}"


def _command() -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", __name__]


def prove_engines(engines: Mapping[str, Engine]) -> list[Proof]:
    """What decodes on a device against the core."""
    results = []
    for case in cases():
        for name, engine in engines.items():
            found = {profile: _by_engine(engine, case, profile) for profile in PROFILES}
            verdict = _verdict({profile: text for profile, text in found.items() if text not in ("ok", "-")})
            known = "ok" in found.values() or verdict != "ok"
            results.append(Proof(case.name, case.dtype, case.shape, name, verdict if known else "-"))
    return results


def _by_engine(engine: Engine, case: Case, profile: Profile) -> str:
    try:
        found = engine(frame_of(case, profile))
    except Exception as error:  # a driver has errors of its own
        return f"{type(error).__name__}: {public(str(error).partition(chr(10))[0])}"
    if found is None:
        return "-"
    return "ok" if found == case.data else "other bytes"


def main() -> None:
    """Print the CPU target that runs; then, if it is the one that was asked for, for each tensor by profile a digest of
    its frame, or what is wrong with it. Each line is written at once: a kernel may end the process."""
    target = cpu_target()
    print(json.dumps(target), flush=True)
    if target == os.environ.get("TENSORWIRE_CPU"):
        for case in cases():
            print(json.dumps({profile: _proved(case, profile) for profile in PROFILES}), flush=True)


def _proved(case: Case, profile: Profile) -> str:
    """A digest of the frame, or a sentence."""
    try:
        frame = frame_of(case, profile)
        if decompress(frame, framework="bytes") != case.data:
            return "other bytes after a round trip"
    except Exception as error:  # one wrong bit may be any error
        return f"{type(error).__name__} in a round trip: {error}"
    return blake2b(frame, digest_size=16).hexdigest()


if __name__ == "__main__":
    main()
