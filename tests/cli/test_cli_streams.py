"""Standard input and output as SRC and DST: bytes, order, memory, interruption, refusals."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

import pytest

from tensorwire.checkpoint import compress_checkpoint, verify
from tensorwire.checkpoint.operations.stream import convert_stream
from tensorwire.cli.options import standard_output
from tests.support.checkpoint_models import container, layer, random_bytes, weights
from tests.support.command_line import COMMAND, Run, begun, forked
from tests.support.processes import PRINT_PEAK_MEMORY
from tests.support.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
REPORT = "wrote standard output: "


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """Tensors that shrink, and among them such as do not."""
    path = tmp_path / "a.safetensors"
    entries = [*layer(0, 1), ("random", "U8", (100_000,), random_bytes(100_000, 9)), *layer(1, 5)]
    entries += [("empty", "F32", (0, 4), b""), ("last", "BF16", (40_000,), weights(40_000, 7))]
    path.write_bytes(container(entries, {"format": "pt"}, padding=3))
    return path


@pytest.fixture
def small(original: Path) -> Path:
    path = original.with_name("small.safetensors")
    assert forked("compress", original, path).returncode == 0
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # what was found before
    return path


def test_a_file_may_be_called_dash(original: Path) -> None:
    """As for other tools, ./- is a file."""
    place = original.with_name("-")
    ran = forked("compress", original, "./-", cwd=original.parent)
    assert (ran.returncode, place.is_file()) == (0, True)
    for command in ("verify", "inspect"):
        assert forked(command, "./-", cwd=original.parent, stdin=subprocess.DEVNULL).returncode == 0
    ran = forked("decompress", "./-", "-", cwd=original.parent, stdin=subprocess.DEVNULL)
    assert ran.stdout == original.read_bytes()


def test_bytes_follow_what_was_printed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw))
    print("printed")
    standard_output(force=False).write(b"data")
    assert raw.getvalue() == b"printed\ndata"


def test_a_pipe_or_standard_output_by_another_name_gets_the_right_one(original: Path) -> None:
    """As bash writes <(zcat a.gz), and as tools without "-" have it written."""
    pipe = original.with_name("pipe")
    os.mkfifo(pipe)
    for arguments in ((pipe, original.with_name("x.safetensors")), (original, "/dev/stdout")):
        ran = forked("compress", *arguments)
        assert (ran.returncode, ran.stdout) == (2, b"")
        assert b"'-" in ran.stderr
    assert sorted(path.name for path in original.parent.iterdir()) == [original.name, "pipe"]


@pytest.mark.parametrize("arguments", [("", "x"), ("a.safetensors", ""), ("a.safetensors", "-o", "")])
def test_an_empty_argument_is_not_the_working_directory(original: Path, arguments: tuple[str, ...]) -> None:
    """A variable of the shell that is not set."""
    ran = forked("compress", *arguments, cwd=original.parent)
    assert ran.returncode == 2
    assert b"expected a path, got an empty argument" in ran.stderr
    assert list(original.parent.iterdir()) == [original]


@pytest.mark.parametrize(
    "profile", ["fast", *(pytest.param(each, marks=pytest.mark.slow) for each in ("compact", "resident", "enec"))]
)
def test_a_pipe_gives_what_files_give(original: Path, temporary: Path, profile: str) -> None:
    target = original.with_name("target.safetensors")
    assert forked("compress", original, target, "--profile", profile).returncode == 0
    for arguments, data in (
        (["-", "-"], original.read_bytes()),
        (["-"], original.read_bytes()),
        ([original, "-"], b""),
        ([original, "-o", "-"], b""),
    ):
        ran = forked("compress", *arguments, "--profile", profile, input=data)
        assert (ran.returncode, ran.stdout == target.read_bytes()) == (0, True), arguments
        assert ran.stderr.decode().startswith(REPORT)
    for arguments, data in (([target, "-"], b""), (["-", "-"], target.read_bytes())):
        ran = forked("decompress", *arguments, "-q", input=data)
        assert (ran.returncode, ran.stdout == original.read_bytes(), ran.stderr) == (0, True, b""), arguments
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in original.parent.iterdir()) == sorted([
        original.name, target.name, temporary.name,
    ])  # fmt: skip


def test_a_result_of_a_stream_is_no_more_readable_than_what_it_comes_from(original: Path) -> None:
    target = original.with_name("target.safetensors")
    original.chmod(0o600)
    with original.open("rb") as file:
        assert forked("compress", "-", target, stdin=file).returncode == 0
    assert target.stat().st_mode & 0o777 == 0o600
    original.chmod(0o644)
    assert forked("compress", "-", target, "--force", input=original.read_bytes()).returncode == 0
    assert target.stat().st_mode & 0o777 == 0o600, "a pipe has no permissions, so they stay"


def test_a_pipe_to_a_file_and_transcode(original: Path, small: Path) -> None:
    direct, target = (original.with_name(name) for name in ("direct.safetensors", "target.safetensors"))
    assert forked("compress", original, direct, "--profile", "compact").returncode == 0
    ran = forked("transcode", "-", target, "--profile", "compact", "--json", input=small.read_bytes())
    assert ran.returncode == 0
    report = json.loads(ran.stdout)
    assert (report["src"], report["dst"], report["nbytes_in"]) == ("-", str(target), small.stat().st_size)
    assert target.read_bytes() == direct.read_bytes()
    again = forked("transcode", "-", target, "--profile", "compact", input=small.read_bytes())
    assert again.returncode == 2, "it exists"
    ran = forked("transcode", "-", "-", "--profile", "compact", input=small.read_bytes())
    assert ran.stdout == direct.read_bytes()


def test_a_file_without_record_comes_through_a_pipe(tmp_path: Path) -> None:
    """Its order is not that of its data: by width, then by name."""
    import ml_dtypes
    import numpy as np

    from tensorwire import save_file

    values = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    path = tmp_path / "saved.safetensors"
    save_file({"c": values.astype(ml_dtypes.bfloat16), "b": values, "a": np.arange(9), "d": values[::-1].copy()}, path)
    back = tmp_path / "back.safetensors"
    assert forked("decompress", path, back).returncode == 0
    ran = forked("decompress", "-", input=path.read_bytes())
    assert ran.stdout == back.read_bytes()
    assert b"no record of its original" in ran.stderr


@pytest.mark.parametrize("command", ["compress", "decompress"])
@pytest.mark.parametrize("how", ["cut", "cut header", "longer", "empty"])
def test_a_stream_of_the_wrong_length(original: Path, small: Path, temporary: Path, command: str, how: str) -> None:
    data = (original if command == "compress" else small).read_bytes()
    data = {"cut": data[:-10], "cut header": data[:500], "longer": data + b"x", "empty": b""}[how]
    for dst in ("-", original.with_name("target.safetensors")):
        ran = forked(command, "-", dst, input=data)
        assert ran.returncode == 1
        assert b"Traceback" not in ran.stderr
        assert b"file 'stdin'" in ran.stderr
    assert not list(original.parent.glob("target*"))
    assert list(temporary.iterdir()) == []


def test_damage_in_a_stream(small: Path) -> None:
    data = bytearray(small.read_bytes())
    data[len(data) // 2] ^= 0x10
    ran = forked("decompress", "-", "-", input=bytes(data))
    assert ran.returncode == 1
    assert re.search(rb"file 'stdin', tensor '[a-z.0-9]+', block \d+, byte \d+", ran.stderr)


def test_what_is_refused(original: Path, small: Path, tmp_path: Path) -> None:
    for arguments, data, code, advice in (
        (["compress", "-"], small.read_bytes(), 2, b"transcode"),
        (["decompress", "-"], original.read_bytes(), 2, b"not compressed"),
        (["compress", tmp_path, "-"], b"", 2, b"a stream holds one .safetensors file"),
        (["compress", "-", original, tmp_path], b"", 2, b"'-' stands for one file"),
        (["compress", "-", original, "--force"], original.read_bytes(), 2, b"a.safetensors"),
        (["compress", "-", tmp_path / "no" / "x"], original.read_bytes(), 2, b"make it first"),
    ):
        ran = forked(*arguments, input=data)
        assert (ran.returncode, ran.stdout) == (code, b""), (arguments, ran.stderr)
        assert advice in ran.stderr, ran.stderr
    ran = forked("compress", original, "-", "--json")
    assert ran.returncode == 2
    assert "standard output" in json.loads(ran.stdout)["error"]["message"]
    assert original.read_bytes()[8:9] == b"{"


@pytest.mark.parametrize("command", [["decompress"], ["transcode", "--profile", "compact"]])
def test_one_file_on_both_sides_stays(small: Path, command: list[str]) -> None:
    before = small.read_bytes()
    for arguments, stdin, mode in (
        (["-", small, "--force"], True, "rb"),
        ([small, "-"], False, "ab"),
        ([small, "-"], False, "r+b"),
        (["-", "-"], True, "ab"),
        (["-", "-"], True, "r+b"),
    ):
        with small.open("rb") as source, small.open(mode) as target:
            streams = {"stdin": source if stdin else None, "stdout": target if mode != "rb" else subprocess.PIPE}
            done = forked(*command, *arguments, capture_output=False, stderr=subprocess.PIPE, **streams)
        assert done.returncode == 2, (arguments, mode)
        assert b"are the same file; name another destination" in done.stderr
        assert small.read_bytes() == before


def test_a_redirected_file_that_changes_while_it_is_read(original: Path) -> None:
    """The result has what was read, and SHA-256 is that of it."""

    def change(*_: object) -> None:
        with original.open("r+b") as file:
            file.seek(-10, os.SEEK_END)
            file.write(b"0123456789")

    compressed = original.with_name("x.safetensors")
    with original.open("rb") as source:
        convert_stream(compress_checkpoint, source, compressed, progress=change)
    assert verify(compressed).exact


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_stream_that_never_ends(small: Path, temporary: Path, command: str) -> None:
    """Refused for what is wrong with it: the disk for temporary files is not filled."""
    for begin, reason in ((b"", b"begins with"), (b"<html>", b"HTML"), (small.read_bytes(), b"bytes of data")):
        process = begun(command, "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin is not None
        written = 0
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(begin)
            while written < 200:
                written += process.stdin.write(bytes(1 << 20)) >> 20
        assert written < 200
        process.stdin = None
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert reason in out + err


def is_full(pipe: int) -> bool:
    (nbytes,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return nbytes == fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)


def state(process: int) -> str:
    """S is asleep, Z has ended."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]


def test_a_pipe_that_does_not_wait(original: Path, small: Path) -> None:
    """As a terminal or a program that shares the pipe may leave it."""
    end, begin = os.pipe()
    os.set_blocking(begin, False)
    with begun("decompress", small, "-", stdout=begin, stderr=subprocess.PIPE) as process:
        os.close(begin)
        wait_for(lambda: is_full(end) and state(process.pid) in "SZ", 30)  # it has found that, and waits or has failed
        with os.fdopen(end, "rb") as file:
            assert file.read() == original.read_bytes()
    assert process.returncode == 0


def test_a_terminal_is_refused(original: Path) -> None:
    primary, secondary = pty.openpty()
    try:
        ran = forked("compress", original, "-", capture_output=False, stdout=secondary, stderr=subprocess.PIPE)
        assert ran.returncode == 2
        assert b"--force" in ran.stderr
        ran = forked("compress", "-", capture_output=True, stdin=secondary)
        assert ran.returncode == 2
        assert b"terminal" in ran.stderr
    finally:
        os.close(primary)
        os.close(secondary)


@pytest.mark.parametrize("command", ["compress", "decompress", "inspect"])
def test_a_reader_that_goes_away(original: Path, small: Path, temporary: Path, command: str) -> None:
    arguments = {"compress": (original, "-"), "decompress": (small, "-"), "inspect": (original,)}[command]
    with begun(command, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("numbers", "code", "said"),
    [
        ([signal.SIGINT], 130, "interrupted"),
        ([signal.SIGTERM, signal.SIGTERM], 143, "terminated"),
        ([signal.SIGHUP, signal.SIGINT, signal.SIGTERM], 129, "terminated"),  # in this order where all come at once
    ],
)
def test_ended_while_it_waits_for_input(
    original: Path, temporary: Path, numbers: list[signal.Signals], code: int, said: str
) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with begun("compress", "-", original.with_name("target.safetensors"), **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(original.read_bytes()[:200_000])
        process.stdin.flush()
        wait_for(lambda: list(temporary.glob("*/stdin")), 30)
        time.sleep(0.2)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.001)
        late = [-number for number in numbers[1:]]  # one that comes when all is cleaned, and Python ends
        assert process.wait(30) in [code, *late]
        assert process.stdout.read() == b""
        assert process.stderr.read().decode() == f"tensorwire: {said}\n"
    assert not list(original.parent.glob("target*"))
    assert list(temporary.iterdir()) == []


def test_verify_and_inspect_read_a_stream(small: Path, temporary: Path) -> None:
    ran = forked("verify", "-", input=small.read_bytes())
    assert (ran.returncode, ran.stdout.startswith(b"-: ok; ")) == (0, True), ran.stdout
    damaged = bytearray(small.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    ran = forked("verify", "-", "--json", input=bytes(damaged))
    assert ran.returncode == 1
    (problem,) = json.loads(ran.stdout)["problems"]
    assert problem["file"] == "stdin"
    assert b"/proc" not in ran.stdout + ran.stderr
    ran = forked("verify", "-", input=b"short")
    assert ran.returncode == 1
    assert b"'stdin'" in ran.stderr
    ran = forked("inspect", "-", "--json", input=small.read_bytes())
    assert ran.returncode == 0
    report = json.loads(ran.stdout)
    assert (report["path"], report["files"]) == ("-", ["stdin"])
    assert {tensor["file"] for tensor in report["tensors"]} == {"stdin"}
    assert list(temporary.iterdir()) == []


def test_several_sources(original: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "b.safetensors"
    other.write_bytes(container(layer(3, 3)))
    target = tmp_path / "results"
    ran = run("compress", original, other, "-o", target, "--json")
    assert ran.code == 0
    assert [result["dst"] for result in ran.json["results"]] == [str(target / p.name) for p in (original, other)]
    again = run("compress", original, other, target, "-f")
    assert again.code == 0
    assert again.out.count("wrote ") == 2
    back = tmp_path / "back"
    assert run("decompress", *sorted(target.iterdir()), "-o", back).code == 0
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in (original, other)
    }


def test_several_sources_never_replace_one_of_them(original: Path, tmp_path: Path, run: Run) -> None:
    """Where the shell has put a file in the place of DST."""
    others = [tmp_path / f"{name}.safetensors" for name in "bc"]
    for path in others:
        path.write_bytes(container(layer(3, 3)))
    before = {path: path.read_bytes() for path in (original, *others)}
    for sources in ([original, *others], [original, others[0]]):
        ran = run("compress", *sources, "--force")
        assert (ran.code, ran.out) == (2, "")
        assert {path: path.read_bytes() for path in before} == before
    assert sorted(tmp_path.iterdir()) == sorted(before)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["compress", "decompress"])
def test_memory_is_bounded(tmp_path: Path, command: str) -> None:
    """4.3 GB of tensors, the largest of 2.1 GB, in about 200 MiB."""
    path = tmp_path / "large.safetensors"
    shape = (1 << 30,)
    header = {
        "a": {"dtype": "BF16", "shape": shape, "data_offsets": [0, 1 << 31]},
        "b": {"dtype": "BF16", "shape": shape, "data_offsets": [1 << 31, 1 << 32]},
    }
    raw = json.dumps(header).encode()
    piece = weights(1 << 22, 1)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for start in range(0, 1 << 32, 1 << 28):  # weights here and there; the rest is a hole
            file.seek(8 + len(raw) + start)
            file.write(piece)
        file.truncate(8 + len(raw) + (1 << 32))
    if command == "decompress":
        assert forked("compress", path, tmp_path / "small.safetensors").returncode == 0
        path = tmp_path / "small.safetensors"
    measured = "import sys; from tensorwire.cli import main; code = main(); sys.stdout = sys.stderr\n"
    measured += PRINT_PEAK_MEMORY + "sys.exit(code)\n"
    with path.open("rb") as source, Path(os.devnull).open("wb") as sink:
        ran = subprocess.run(
            [COMMAND[0], "-c", measured, command, "-", "-", "-q"],
            stdin=source,
            stdout=sink,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stderr) < 250 << 20
