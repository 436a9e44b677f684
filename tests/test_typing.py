"""Types as a caller's checker sees them: what is returned follows from the arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SNIPPET = """
from typing import Any
import numpy
from typing_extensions import assert_type
import tensorwire
from tensorwire.checkpoint import Progress, TensorReader

Array = numpy.ndarray[Any, Any]
frame = tensorwire.compress(b"abc")
assert_type(frame, bytes)
assert_type(tensorwire.compress(b"abc", out=bytearray(1000)), memoryview)
assert_type(tensorwire.decompress(frame), Array)
assert_type(tensorwire.decompress(frame, framework="np"), Array)
assert_type(tensorwire.decompress(frame, framework="bytes"), bytes)
assert_type(tensorwire.decompress(frame, out=bytearray(3)), bytearray)
assert_type(tensorwire.decompress(frame, out=None), Array)
assert_type(tensorwire.decompress_range(frame, 0, 1), bytes)
assert_type(tensorwire.decompress_range(frame, 0, 1, out=None), bytes)
assert_type(tensorwire.decompress_range(frame, 0, 1, out=bytearray(1)), bytearray)
delta = tensorwire.compress(b"abd", base=b"abc")
assert_type(delta, bytes)
assert_type(tensorwire.compress(b"abd", base=b"abc", out=bytearray(1000)), memoryview)
assert_type(tensorwire.decompress(delta, base=b"abc"), Array)
assert_type(tensorwire.decompress(delta, base=b"abc", framework="bytes"), bytes)
assert_type(tensorwire.decompress(delta, base=b"abc", out=bytearray(3)), bytearray)
assert_type(tensorwire.decompress_range(delta, 0, 1, base=b"abc"), bytes)
assert_type(tensorwire.compose(b"abc", delta, delta), bytes)
assert_type(tensorwire.frame_info(delta).base_hash, str | None)
assert_type(tensorwire.load_file("f", base="g"), dict[str, Array])
assert_type(tensorwire.load_file("f", framework="bytes", base="g"), dict[str, bytes])
assert_type(tensorwire.open_file("f", "bytes", base="g", verify=False), TensorReader[bytes])
assert_type(tensorwire.load_file("f"), dict[str, Array])
assert_type(tensorwire.load_file("f", framework="bytes"), dict[str, bytes])
assert_type(tensorwire.open_file("f", "bytes"), TensorReader[bytes])
with tensorwire.open_file("f") as reader:
    assert_type(reader, TensorReader[Array])
    assert_type(reader.get_tensor("t"), Array)
    assert_type(reader.get_slice("t")[1:2], Array)
    assert_type(reader.get_tensors(), dict[str, Array])

def show(done: int, total: int, path: str) -> None: ...

progress: Progress = show
tensorwire.verify("d", progress=show)
tensorwire.verify("d", progress=lambda done, total, path: print(path))
"""

WRONG = {
    'tensorwire.decompress(b"", framework="numpy")': "call-overload",
    'tensorwire.load_file("f", device="cuda")': "call-overload",  # which NumPy has not
    'tensorwire.load_file("f", "np")': "call-overload",
    'tensorwire.load_file("f", compressed=True)': "call-overload",  # which NumPy has not
    "tensorwire.verify('d', progress=lambda done: None)": "arg-type",
    'tensorwire.compress(b"", profile="best")': "call-overload",
    'tensorwire.decompress(b"", base=b"", verify="yes")': "call-overload",
    "tensorwire.compose(b'', 'delta')": "arg-type",
}


@pytest.mark.slow
def test_results_have_the_types_that_arguments_ask_for_and_wrong_arguments_are_found(
    tmp_path: Path, repository: Path
) -> None:
    """In one run of mypy: reading the types of NumPy takes it longest."""
    (tmp_path / "right.py").write_text(SNIPPET)
    (tmp_path / "wrong.py").write_text("\n".join(["import tensorwire", *WRONG]))
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-torch.*]\nfollow_imports = skip\n")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "right.py", "wrong.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(repository / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not run.stderr
    output = run.stdout.splitlines()
    assert not [line for line in output if line.startswith("right.py")]
    for line, (code, error) in enumerate(WRONG.items(), 2):
        assert any(text.startswith(f"wrong.py:{line}: error") and f"[{error}]" in text for text in output), code
