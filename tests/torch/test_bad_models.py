"""What goes wrong with a compressed model says what it is; it never gives a wrong number, and it never hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import tensorwire  # noqa: E402
from tensorwire.torch import compress_module, decode_ahead  # noqa: E402
from tests.support.linear_models import chain, inputs, loaded, same, saved  # noqa: E402
from tests.support.processes import exit_code_of_child  # noqa: E402

if TYPE_CHECKING:
    from tests.support.programs import Programs

pytestmark = pytest.mark.xdist_group("programs")


NUM_LAYERS = 3


# Files that are not the model's ---------------------------------------------------------------------------------------


def test_wrong_dtype(tmp_path: Path) -> None:
    path = saved(chain(dtype=torch.float16), tmp_path / "a")
    with pytest.raises(RuntimeError, match="dtype"):
        loaded(path)(inputs())
    model = compress_module(chain())
    model.load_state_dict(tensorwire.load_file(path, framework="pt", compressed=True))
    assert model[0].weight.dtype == torch.bfloat16, "converted, as a dense model does it"
    assert same(model(inputs()), chain(dtype=torch.float16).bfloat16()(inputs()))


@pytest.mark.parametrize("lost", ["marker", "payload"])
def test_a_payload_without_its_marker(file: Path, lost: str) -> None:
    """Somebody has filtered the file by names, and signed nothing."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    entry = header.pop("1.weight" if lost == "marker" else next(name for name in header if "1" in name and "_" in name))
    kept = bytearray(data[8 + length :])
    begin, end = entry["data_offsets"]
    del kept[begin:end]
    for other in header.values():
        other["data_offsets"] = [at - (end - begin) * (at >= end) for at in other["data_offsets"]]
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + kept)
    # A payload alone has another name, and a marker alone a dtype that torch has not.
    with pytest.raises((RuntimeError, tensorwire.UnsupportedTensorError), match=r"1.?_?weight"):
        loaded(file, NUM_LAYERS)


# The machine ----------------------------------------------------------------------------------------------------------

OUT_OF_MEMORY = """
from tests.support.linear_models import *
import resource, sys, threading
from tensorwire.torch import decode_ahead

path, where = sys.argv[1:]
torch.set_num_threads(1)
reference = chain(num_layers=3)
model = loaded(path, 3, **({"resident_nbytes": 0} if where == "file" else {}))
expected = reference(inputs())
expected_of_many = reference(inputs(40))
handle = decode_ahead(model) if where == "ahead" else None

def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

failed = 0
limits = resource.getrlimit(resource.RLIMIT_AS)
for more in range(0, 12 << 19, 1 << 19):
    resource.setrlimit(resource.RLIMIT_AS, (size() + more, limits[1]))
    try:
        for _ in range(2):
            assert same(model(inputs(40)), expected_of_many)
    except (MemoryError, RuntimeError) as error:
        # What is small torch allocates as any program in C++ does, and says so.
        assert isinstance(error, MemoryError) or "memory" in str(error) or "bad_alloc" in str(error), error
        failed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
for _ in range(3):
    assert same(model(inputs()), expected)
print("failed" if failed else "never failed")
"""


@pytest.mark.parametrize(
    "where", ["file", *(pytest.param(each, marks=pytest.mark.slow) for each in ("memory", "ahead"))]
)
def test_out_of_memory_in_the_middle_of_a_layer(programs: Programs, file: Path, where: str) -> None:
    """At many places. Afterwards the model is as it was."""
    result = programs.run(OUT_OF_MEMORY, file, where)
    assert result.returncode == 0, result.stderr
    if where != "ahead":  # whose other ways need little
        assert result.stdout == "failed\n"


# An interrupt that Python meets in the end of an iterator is told and lost, so another one follows after a second. All
# the others reach the caller.
INTERRUPTS = """
from tests.support.linear_models import *
import signal, sys, time
from tensorwire.torch import decode_ahead

reference = chain(num_layers=3)
model = loaded(sys.argv[1], 3, resident_nbytes=1_500_000)
expected = reference(inputs())
sent = interrupted = 0

def interrupt(*_):
    global sent
    sent += 1
    raise KeyboardInterrupt

def generate():
    while True:
        assert same(model(inputs()), expected)

signal.signal(signal.SIGALRM, interrupt)
with decode_ahead(model):
    for number in range(15):
        signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0013 * number, 1)
        try:
            generate()
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            interrupted += 1
        assert same(model(inputs()), expected)
print(interrupted, sent - interrupted)
"""


def test_interrupts_while_it_generates(programs: Programs, file: Path) -> None:
    result = programs.run(INTERRUPTS, file)
    lost = result.stderr.count("Exception ignored")
    assert (result.returncode, result.stdout) == (0, f"15 {lost}\n"), result.stderr


SIGNAL_HANDLER = """
from tests.support.linear_models import *
import contextlib, signal, sys
from tensorwire.torch import decode_ahead

reference = chain(num_layers=3)
model = loaded(sys.argv[1], 3, resident_nbytes=1_500_000)
expected, expected_in_handler = reference(inputs()), reference(inputs(40))
handled = 0

def handler(number, frame):
    global handled
    assert same(model(inputs(40)), expected_in_handler)
    handled += 1
    signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0007 * (handled % 9))

with decode_ahead(model) if sys.argv[2] == "ahead" else contextlib.nullcontext():
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while handled < 10:
        assert same(model(inputs()), expected)
    signal.setitimer(signal.ITIMER_REAL, 0)
print(handled >= 10)
"""


@pytest.mark.parametrize("ahead", ["", "ahead"])
def test_a_signal_handler_that_runs_the_model(programs: Programs, file: Path, ahead: str) -> None:
    """In the same thread, in the middle of a layer."""
    result = programs.run(SIGNAL_HANDLER, file, ahead)
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr


@pytest.mark.parametrize("resident_nbytes", [None, 0], ids=["", "in its file"])
def test_a_fork_after_the_thread_has_started(file: Path, resident_nbytes: int | None) -> None:
    torch.set_num_threads(1)  # OpenMP of GNU does not survive a fork otherwise
    expected = chain(num_layers=NUM_LAYERS)(inputs())
    model = loaded(file, NUM_LAYERS, resident_nbytes=resident_nbytes)
    with decode_ahead(model):
        for _ in range(3):
            for _ in range(2):
                assert same(model(inputs()), expected)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if all(same(model(inputs()), expected) for _ in range(3)) else 2
                finally:
                    os._exit(code)
            assert exit_code_of_child(child, 30) == 0


AT_WORK = """
from tests.support.linear_models import *
import sys
from tensorwire.torch import decode_ahead
model = loaded(sys.argv[1], 3, resident_nbytes=0)
handle = decode_ahead(model)
for _ in range(2):
    model(inputs())
"""


def test_a_process_ends_while_the_thread_is_at_work(programs: Programs, file: Path) -> None:
    result = programs.run(AT_WORK, file, whole=True)
    assert (result.returncode, result.stderr) == (0, "")


# Installations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("raise ModuleNotFoundError('no torch')", "which cannot be imported: no torch"),
        ("__version__ = '2.4.1+cpu'", "got 2.4.1+cpu; pip install -U torch"),
    ],
    ids=["missing", "too old"],
)
def test_torch_is_missing_or_too_old(tmp_path: Path, found: str, message: str) -> None:
    """The program imports what it needs itself."""
    (tmp_path / "torch.py").write_text(found)
    program = """
        import sys, tensorwire
        tensorwire.save_file({"w": __import__("numpy").zeros(70_000, "float32")}, sys.argv[1])
        assert tensorwire.load_file(sys.argv[1])["w"].sum() == 0
        for attempt in (
            lambda: __import__("tensorwire.torch"),
            lambda: tensorwire.load_file(sys.argv[1], framework="pt", compressed=True),
        ):
            try:
                attempt()
            except ImportError as error:
                print(error)
    """
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "a")]
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    starts = ("compressed tensors (tensorwire.torch) need", 'framework "pt" needs')
    for line, start in zip(result.stdout.splitlines(), starts, strict=True):
        assert line.startswith(f"{start} PyTorch 2.5 or later, ")
        assert message in line


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("sys.modules['triton'] = None", "which cannot be imported: import of triton halted"),
        ("sys.modules['triton'] = types.SimpleNamespace(__version__='3.1.0')", "got 3.1.0; pip install -U triton"),
    ],
    ids=["missing", "too old"],
)
def test_triton_is_missing_or_too_old(programs: Programs, made: str, message: str) -> None:
    """All else works without it: a tensor on a device without memory stands for one that Triton would decode."""
    program = f"""
        import sys, types, torch, tensorwire.torch.device
        {made}
        weight = tensorwire.torch.CompressedTensor.from_dense(torch.ones(512, 512, dtype=torch.bfloat16))
        assert weight.decode().sum() == 512 * 512
        from tensorwire.torch.frames.open_frame import opened_anywhere
        for attempt in (
            lambda: tensorwire.torch.device.decode_frame(weight.frame.to("meta")),
            lambda: opened_anywhere(weight.frame.to("meta")),
        ):
            try:
                attempt()
            except ImportError as error:
                print(error)
    """
    result = programs.run(textwrap.dedent(program))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("decoding on a device (tensorwire.torch.device) needs Triton 3.2 or later, ")
        assert message in line


def test_a_version_is_read_as_it_is_written() -> None:
    from tensorwire._ground.packages import check_version

    for version in ("2.4", "2.4.0", "2.13.0+cpu", "3.0.0a0", "unknown"):
        check_version("torch", version, (2, 4), "this needs PyTorch")
    for version in ("2.3.1", "1.13.1+cu117", "0.4"):
        with pytest.raises(ImportError, match=r"2\.4 or later, got"):
            check_version("torch", version, (2, 4), "this needs PyTorch")


@pytest.mark.parametrize("version", ["5.15.1", "4.57.0"])
def test_transformers_is_too_old(programs: Programs, tmp_path: Path, version: str) -> None:
    """All else works, and what does not is told."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (tmp_path / "transformers" / "quantizers.py").write_text("")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import tensorwire.torch, transformers.quantizers"
    result = programs.run(program, tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"need transformers 5.16 or later to be loaded without tensorwire decompress, this is {version}" in (
        result.stderr
    )
