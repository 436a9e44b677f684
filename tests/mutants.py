"""The cases of core/tests/test_mutations through core and reference: ``python -m tests.mutants PROGRAM COUNT``.

Both must give the same bytes, or errors of the same class. Prints how often they did which, and the cases in which they
differ; exits with 1 if there is one.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import tensorwire
from reference.tensorwire_reference import decode, decoder, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = struct.Struct("<QQ")
CASES_AT_ONCE = 2000
ERRORS = (tensorwire.FormatError, tensorwire.BaseMismatchError, errors.FormatError, errors.BaseMismatchError)
"""The page names these; any other one is a fault of a decoder, and ends the run."""


def cases(program: Path, count: int, first: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Frames and their bases; no base if a frame has none or claims too large a one."""
    with subprocess.Popen([program, str(count), str(first), "write"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while head := process.stdout.read(SIZES.size):
            frame_nbytes, base_nbytes = SIZES.unpack(head)
            frame, base = process.stdout.read(frame_nbytes), process.stdout.read(base_nbytes)
            yield frame, base or None
    if process.returncode:
        raise RuntimeError(f"{program} ended with status {process.returncode}")


def own_bytes(frame: bytes) -> bytes:
    """The package decodes the frame that a buffer begins with, the reference a buffer that has nothing else."""
    try:
        return frame[: tensorwire.frame_info(frame).frame_nbytes]
    except ERRORS:
        return frame


def decoded_by_core(frame: bytes, base: bytes | None) -> bytes:
    # Without verify the hashes of base and content are not compared, which no mutant of a relative frame would pass.
    return tensorwire.decompress(frame, base=base, framework="bytes", threads=1, verify=base is None)


def decoded_by_reference(frame: bytes, base: bytes | None) -> bytes:
    with mock.patch.object(decoder, "content_hash", return_value=mock.ANY):  # which equals every hash
        return decode(frame, base).data


def verdict(decoded: Callable[[bytes, bytes | None], bytes], frame: bytes, base: bytes | None) -> str | bytes:
    """What comes out, or the name of the error's class."""
    try:
        return decoded(frame, base)
    except ERRORS as error:
        return type(error).__name__


def compare(program: Path, count: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """How often which verdict was shared; and the cases with two verdicts."""
    shared: Counter[str] = Counter()
    different = []
    for number, (buffer, base) in enumerate(cases(program, count, first), first):
        frame = own_bytes(buffer)
        core, reference = (verdict(decoded, frame, base) for decoded in (decoded_by_core, decoded_by_reference))
        if core == reference:
            shared["decoded" if isinstance(core, bytes) else core] += 1
        else:
            names = ["bytes" if isinstance(given, bytes) else given for given in (core, reference)]
            different.append(f"case {number}: {names[0]} by the core, {names[1]} by the reference")
    return shared, different


def main(program: Path, count: int) -> int:
    shared: Counter[str] = Counter()
    different: list[str] = []
    starts = range(0, count, CASES_AT_ONCE)
    with ProcessPoolExecutor() as pool:
        sizes = [min(CASES_AT_ONCE, count - start) for start in starts]
        for some, others in pool.map(partial(compare, program), sizes, starts):
            shared += some
            different += others
    print(f"{count} cases, core and reference alike:", ", ".join(f"{n} {name}" for name, n in shared.most_common()))
    print(*different, sep="\n", end="\n" if different else "")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
