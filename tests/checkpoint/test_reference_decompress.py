"""The command of the reference restores what the package has written, at a new place, or leaves nothing there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reference.tensorwire_reference import checkpoint, tensor_files
from reference.tensorwire_reference.__main__ import main
from reference.tensorwire_reference.containers import parse_header
from reference.tensorwire_reference.decoder import decode
from reference.tensorwire_reference.decompress import decompress, default_out, is_windows_name
from reference.tensorwire_reference.errors import (
    BaseMismatchError,
    CorruptDataError,
    FormatError,
    LimitExceededError,
    TruncatedDataError,
)
from reference.tensorwire_reference.folders import FileContent
from tensorwire import errors
from tensorwire.checkpoint import (
    compress_checkpoint,
    decompress_checkpoint,
    load_file,
    transcode_checkpoint,
    verify,
)
from tensorwire.files import original_record
from tensorwire.files.header import parse_header as package_header
from tests.support.checkpoint_models import contents, edit_manifest, tree_hashes, write_model
from tests.support.directories import forge, stepped, tensors, write, write_run, write_twice

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL, OTHER = "model.safetensors", "other.safetensors"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_twice(tmp_path / "twice")
    compress_checkpoint(tmp_path / "twice", tmp_path / "small")
    return tmp_path / "small"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "model" / "empty" / "inside").mkdir(parents=True)
    (tmp_path / "model" / "none.txt").touch()
    compress_checkpoint(tmp_path / "model", tmp_path / "packed.tensorwire")
    shutil.move(tmp_path / "model", tmp_path / "kept")
    assert main(["decompress", str(tmp_path / "packed.tensorwire")]) == 0
    assert contents(tmp_path / "packed") == contents(tmp_path / "kept")
    assert (tmp_path / "packed" / "empty" / "inside").is_dir()
    shown = capsys.readouterr()
    assert "every byte is that of the original" in shown.out
    assert (shown.err, main(["decompress", str(tmp_path / "packed.tensorwire")])) == ("", 2)
    assert "is there already, and is not overwritten" in capsys.readouterr().err
    assert contents(tmp_path / "packed") == contents(tmp_path / "kept")


@pytest.mark.parametrize(
    ("src", "out"),
    [
        ("llama.tensorwire", "llama"),
        ("a.tensorwire.safetensors", "a.safetensors"),
        ("small", "small.decompressed"),
        ("b.safetensors", "b.decompressed.safetensors"),
        ("optimizer.pt.tensorwire", "optimizer.pt"),
    ],
)
def test_default_places(src: str, out: str) -> None:
    """They are those of `tensorwire decompress`."""
    assert default_out(Path("x", src)) == Path("x", out)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda path: (path / "notes.txt").write_text("edited"), "notes.txt was edited: kept as it is now"),
        (lambda path: (path / "notes.txt").unlink(), "notes.txt is missing: left out"),
        (lambda path: (path / "config.json").write_text("{}"), "config.json was edited or is missing: restored"),
        (lambda path: (path / "config.json").unlink(), "config.json was edited or is missing: restored"),
    ],
)
def test_files_beside_the_tensors_may_be_edited(
    tmp_path: Path, change: Callable[[Path], object], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("as it was")
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    change(tmp_path / "packed")
    assert main(["decompress", str(tmp_path / "packed"), "-o", str(tmp_path / "x")]) == 3
    assert note in capsys.readouterr().err
    expected, kept = contents(tmp_path / "model"), tmp_path / "packed" / "notes.txt"
    expected.pop("notes.txt")
    assert contents(tmp_path / "x") == expected | ({"notes.txt": kept.read_bytes()} if kept.exists() else {})


def test_deltas_take_their_bases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = tensors(0)
    for step in range(3):
        write(tmp_path / f"step-{step}" / MODEL, content)
        content = stepped(content, step)
    compress_checkpoint(tmp_path / "step-1", tmp_path / "delta-1", base=tmp_path / "step-0")
    compress_checkpoint(tmp_path / "step-2", tmp_path / "delta-2", base=[tmp_path / "delta-1", tmp_path / "step-0"])
    compress_checkpoint(tmp_path / "step-0", tmp_path / "packed-0")
    for oldest in ("step-0", "packed-0"):
        bases = [tmp_path / "delta-1", tmp_path / oldest]
        decompress(tmp_path / "delta-2", tmp_path / f"by-{oldest}", bases)
        assert contents(tmp_path / f"by-{oldest}") == contents(tmp_path / "step-2")
    command = ["decompress", str(tmp_path / "delta-2"), "-o", str(tmp_path / "x")]
    for bases in ([], [tmp_path / "step-0"]):
        assert main([*command, *(each for base in bases for each in ("--base", str(base)))]) == 1
        assert "is relative to a tensor layer." in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    compress_checkpoint(tmp_path / "step-1" / MODEL, tmp_path / "alone", base=tmp_path / "step-0" / MODEL)
    decompress(tmp_path / "alone", tmp_path / "y", [tmp_path / "step-0" / MODEL])
    assert (tmp_path / "y").read_bytes() == (tmp_path / "step-1" / MODEL).read_bytes()


def test_a_base_does_not_carry_more_than_a_version_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "old" / MODEL, tensors(0))
    write(tmp_path / "new" / MODEL, stepped(tensors(0), 1))
    compress_checkpoint(tmp_path / "new", tmp_path / "delta", base=tmp_path / "old")
    monkeypatch.setattr(tensor_files, "MAX_RELATIVE", 0)
    with pytest.raises(LimitExceededError, match="more than the base carries"):
        decompress(tmp_path / "delta", tmp_path / "x", [tmp_path / "old"])


def test_a_folder_and_a_file_of_a_compressed_directory(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    compress_checkpoint(tmp_path / "run", tmp_path / "packed", chain=True)
    decompress(tmp_path / "packed", tmp_path / "all")
    assert contents(tmp_path / "all") == contents(tmp_path / "run")
    decompress(tmp_path / "packed" / "step-11", tmp_path / "one")
    assert contents(tmp_path / "one") == contents(tmp_path / "run" / "step-11")
    report = decompress(tmp_path / "packed" / "step-10" / MODEL, tmp_path / "file")
    assert report.exact
    assert (tmp_path / "file").read_bytes() == (tmp_path / "run" / "step-10" / MODEL).read_bytes()
    (tmp_path / "packed" / "unlisted").mkdir()
    with pytest.raises(ValueError, match="lists no file in it"):
        decompress(tmp_path / "packed" / "unlisted", tmp_path / "x")


def test_a_file_without_its_directory(small: Path, tmp_path: Path) -> None:
    shutil.copy(small / MODEL, tmp_path / "moved.safetensors")
    report = decompress(tmp_path / "moved.safetensors", tmp_path / "x.safetensors")
    assert (report.exact, len(report.notes)) == (False, 1)
    expected, found = (load_file(path, framework="bytes") for path in (small / MODEL, tmp_path / "x.safetensors"))
    assert found == expected
    shutil.copy(small / OTHER, tmp_path / "other.safetensors")
    with pytest.raises(BaseMismatchError, match=r"the file belongs at 'other.safetensors' of its directory"):
        decompress(tmp_path / "other.safetensors", tmp_path / "y")


@pytest.mark.parametrize(
    ("src", "message"),
    [
        ("nothing", "there is no"),
        ("twice", "no compressed directory"),
        (f"twice/{MODEL}", "is not compressed"),
        ("twice/archive.pt", "is not compressed"),
    ],
)
def test_what_is_not_compressed(small: Path, src: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (small.parent / "twice" / "archive.pt").write_bytes(b"PK\3\4 as torch.save begins it")
    assert main(["decompress", str(small.parent / src), "-o", str(small.parent / "x")]) == 2
    assert message in capsys.readouterr().err
    assert main(["decompress", str(small), "-o", str(small / "x")]) == 2
    assert "lies in" in capsys.readouterr().err
    assert sorted(path.name for path in small.parent.iterdir()) == ["small", "twice"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["small/tensorwire.json"], 1, "small/tensorwire.json' is damaged, or no safetensors file: "),
        (["broken"], 1, f"'{MODEL}': the file has "),
        (["small", "-o", "no/x"], 2, "/no' for the result: make it, or name another place"),
        (["/"], 2, "'/' has no name that a result could have too: name a place by -o"),
    ],
)
def test_errors_name_the_place(
    small: Path,
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(small.parent)
    shutil.copytree("small", "broken")
    Path("broken", MODEL).write_bytes(Path("small", MODEL).read_bytes()[:-1])
    assert main(["decompress", *arguments]) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.startswith("error: ")


def test_a_missing_file_of_tensors(small: Path, tmp_path: Path) -> None:
    (small / OTHER).unlink()
    with pytest.raises(FileNotFoundError, match=OTHER):
        decompress(small, tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "twice"]


@pytest.mark.parametrize(("name", "sizes"), [("w", [0, 2**64]), ("w", [1] * 64 + [0]), ("\ud800", [0])])
def test_headers_that_the_package_refuses(name: str, sizes: list[int]) -> None:
    header = json.dumps({name: {"dtype": "U8", "shape": sizes, "data_offsets": [0, 0]}}).encode()
    for parse, error in ((parse_header, CorruptDataError), (package_header, errors.CorruptDataError)):
        with pytest.raises(error):
            parse(header)


def test_a_record_of_the_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MAX_RECORD_NBYTES", 1000)
    monkeypatch.setattr(original_record, "MAX_HEADER_NBYTES", 1000)
    for unpack, error in (
        (checkpoint.unpack, LimitExceededError),
        (original_record.unpack, errors.LimitExceededError),
    ):
        assert unpack(checkpoint.pack(bytes(1000))) == bytes(1000)
        with pytest.raises(error):
            unpack(checkpoint.pack(bytes(1001)))


def test_a_full_disk(small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fill(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write raises it, without a name

    monkeypatch.setattr(os, "fsync", fill)
    out = small.parent / "x"
    assert main(["decompress", str(small), "-o", str(out)]) == 1
    assert f"'{out}': No space left on device; make room" in capsys.readouterr().err
    assert sorted(path.name for path in small.parent.iterdir()) == ["small", "twice"]


def test_damage_is_found_and_leaves_nothing(small: Path, tmp_path: Path) -> None:
    for name in (MODEL, OTHER, "tensorwire.json"):
        data = (small / name).read_bytes()
        places = sorted({*range(0, len(data) - 2, len(data) // 16), 3, 8, 9, len(data) - 2})  # a line may end it
        flipped = (data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :] for place in places)
        for damaged in (*flipped, *(data[:place] for place in places)):
            (small / name).write_bytes(damaged)
            with pytest.raises((FormatError, BaseMismatchError)):
                decompress(small, tmp_path / "x")
        (small / name).write_bytes(data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "twice"]
    decompress(small, tmp_path / "x")
    assert contents(tmp_path / "x") == contents(tmp_path / "twice")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda body: body["files"][0].update(path="../x"), "no plain relative path"),
        (lambda body: body["files"][0].update(path="a/\udc80"), "no plain relative path"),
        (lambda body: body["files"][0].update(path="/".join("a" * 102)), "no plain relative path"),
        (lambda body: body["files"][0].update(path=body["files"][1]["path"] + "/x"), "is a directory of"),
        (lambda body: body.update(excluded=["a", "a/"]), "is there twice"),
        (lambda body: body.update(excluded=["/a"]), "no plain relative path"),
        (lambda body: body.update(directories=["a"]), "without a slash"),
        (lambda body: body["files"][0].update(nbytes=True), "the size of a file"),
        (lambda body: body["files"][0].update(sha256="x"), "a SHA-256"),
        (lambda body: body["files"][0].update(header="eJw"), "a record is not base64"),
    ],
)
def test_forged_manifests(small: Path, tmp_path: Path, change: Any, error: str) -> None:
    edit_manifest(small, change)
    with pytest.raises(CorruptDataError, match=error):
        decompress(small, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"beside:transformer.layer.0": "../outside.safetensors"}, CorruptDataError),
        ({"beside:transformer.layer.0": "tensorwire.json"}, CorruptDataError),
        ({"beside:transformer.layer.0": "secret.safetensors"}, BaseMismatchError),
        ({"beside:transformer.layer.0": OTHER, "base:transformer.layer.0": "transformer.layer.0"}, CorruptDataError),
        ({"path": f"deeper/{OTHER}"}, BaseMismatchError),
        ({"base:transformer.layer.0": "norm"}, BaseMismatchError),
    ],
)
def test_forged_links(small: Path, tmp_path: Path, changes: dict[str, str], error: type[Exception]) -> None:
    shutil.copy(small / MODEL, small / "secret.safetensors")
    forge(small / OTHER, **changes)
    with pytest.raises(error):
        decompress(small, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("limit", "most"), [("MAX_LINKS", 0), ("MAX_RELATIVE", 0)])
def test_links_have_limits(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(tensor_files, limit, most)
    with pytest.raises(LimitExceededError):
        decompress(small, tmp_path / "x")


def test_links_of_a_file_system(small: Path, tmp_path: Path) -> None:
    """A hub's cache is read; a base out of the directory is not."""
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(small.iterdir()):
        shutil.copy(path, blobs / f"{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    decompress(snapshot, tmp_path / "x")
    assert contents(tmp_path / "x") == contents(tmp_path / "twice")
    (small / MODEL).rename(tmp_path / MODEL)
    (small / MODEL).symlink_to(tmp_path / MODEL)
    with pytest.raises(CorruptDataError, match="a link out of the directory"):
        decompress(small, tmp_path / "y")


@pytest.mark.parametrize("part", ["", "folder"])
def test_a_copied_file_brings_nothing_from_elsewhere(part: str, tmp_path: Path) -> None:
    """Both readers follow a link out of the directory to what was compressed alone; one that leads to another file of
    the directory, or lies with all others in the cache of a hub, may be edited as any file."""
    model, packed, secret = tmp_path / "model", tmp_path / "packed", tmp_path / "secret"
    for folder in (model, model / "folder"):
        write(folder / MODEL, tensors(0))
        (folder / "notes.txt").write_text("as it was")
    compress_checkpoint(model, packed)
    notes = packed / "folder" / "notes.txt"
    notes.rename(secret)
    notes.symlink_to(secret)
    read: list[Callable[[Path], object]] = [
        lambda out: decompress_checkpoint(packed / part, out),
        lambda out: decompress(packed / part, out),
        lambda out: transcode_checkpoint(packed / part, out, profile="compact"),
    ]
    for number, each in enumerate(read):
        each(tmp_path / f"{number}")
    assert verify(packed / part).ok
    secret.write_text("a key")
    for each in read:
        with pytest.raises((errors.CorruptDataError, CorruptDataError), match=r"link (that leads )?out of"):
            each(tmp_path / "x")
        assert not (tmp_path / "x").exists()
    assert [problem.kind for problem in verify(packed / part).problems] == ["CorruptDataError"]
    notes.unlink()
    notes.symlink_to("../notes.txt")
    (packed / "notes.txt").write_text("edited")
    for in_cache in (False, True):
        for number, path in enumerate(contents(packed) if in_cache else ()):
            place = tmp_path / "blobs" / f"{number}"
            place.parent.mkdir(exist_ok=True)
            shutil.copy(packed / path, place)
            (packed / path).unlink()
            (packed / path).symlink_to(place)
        for each in read:
            each(tmp_path / "x")
            assert (tmp_path / "x" / ("notes.txt" if part else "folder/notes.txt")).read_text() == "edited"
            shutil.rmtree(tmp_path / "x")


def test_permissions_are_kept(small: Path, tmp_path: Path) -> None:
    (small / MODEL).chmod(0o640)
    small.chmod(0o750)
    decompress(small, tmp_path / "x")
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "x", tmp_path / "x" / MODEL)] == [0o750, 0o640]
    decompress(small / MODEL, tmp_path / "y")
    assert (tmp_path / "y").stat().st_mode & 0o777 == 0o640


def test_what_appears_meanwhile_stays(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def appear(descriptor: int) -> None:
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "x" / "mine").touch()

    monkeypatch.setattr(os, "fsync", appear)
    with pytest.raises(FileExistsError, match="has appeared meanwhile"):
        decompress(small, tmp_path / "x")
    assert tree_hashes(tmp_path / "x").keys() == {"mine"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "twice", "x"]


def test_progress_is_shown_on_a_terminal(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["decompress", str(small), "-o", str(tmp_path / "x")]) == 0
    lines = capsys.readouterr().err.split("\r")
    nbytes = sum(path.stat().st_size for path in (tmp_path / "x").rglob("*") if path.is_file())
    assert lines[-3] == f"{nbytes / 1e6:.1f} MB restored"
    assert not "".join(lines[-2:]).strip()


def test_a_file_that_appears_meanwhile_stays(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last moment too, behind the last look. A file system without hard links renames."""
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    (tmp_path / "x").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="has appeared meanwhile"):
        decompress(small / MODEL, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"mine"
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError))
    decompress(small / MODEL, tmp_path / "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "twice", "x", "y"]


def test_set_id_bits_are_not_kept(small: Path, tmp_path: Path) -> None:
    """The maker of a compressed directory gets no program that acts as the one who restores it."""
    (small / MODEL).chmod(0o6755)
    decompress(small, tmp_path / "x")
    assert (tmp_path / "x" / MODEL).stat().st_mode & 0o7777 == 0o755


def test_links_to_directories_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "model" / "sub").mkdir()
    (tmp_path / "model" / "sub" / "notes.txt").touch()
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    (tmp_path / "packed" / "sub").rename(tmp_path / "elsewhere")
    (tmp_path / "packed" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"'.*packed/sub' is a link to a directory"):
        decompress(tmp_path / "packed", tmp_path / "x")


def test_names_do_not_command_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "model" / "a\n\x1b[31m\u202e\u00e4").touch()
    compress_checkpoint(tmp_path / "model", tmp_path / "packed")
    next((tmp_path / "packed").glob("a\n*")).unlink()
    assert main(["decompress", str(tmp_path / "packed"), "-o", str(tmp_path / "x")]) == 3
    assert capsys.readouterr().err == "note: a\\n\\x1b[31m\\u202e\u00e4 is missing: left out\n"


def test_a_file_that_becomes_shorter(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(_: int) -> None:
        os.truncate(small / OTHER, 9)

    monkeypatch.setattr(os, "fsync", cut)  # behind the first file
    with pytest.raises(TruncatedDataError):
        decompress(small, tmp_path / "x")
    content = FileContent(small / MODEL)
    os.truncate(small / MODEL, 100)
    with pytest.raises(TruncatedDataError, match="has become shorter while it was read"):
        content[:]


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_nothing(small: Path, tmp_path: Path, number: str) -> None:
    program = (
        "import os, runpy, signal, sys\n"
        f"os.fsync = lambda _: os.kill(os.getpid(), signal.{number})\n"
        f"sys.argv = ['', 'decompress', {str(small)!r}, '-o', {str(tmp_path / 'x')!r}]\n"
        "runpy.run_module('reference.tensorwire_reference', run_name='__main__', alter_sys=True)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=False)
    assert run.returncode == 128 + getattr(signal, number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "twice"]


def test_bases_cost_no_more_than_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All deltas are relative to one anchor: of the others that are given, none is decoded on the way to it."""
    write(tmp_path / "anchor" / MODEL, tensors(0))
    for step in range(4):
        write(tmp_path / f"{step}" / MODEL, stepped(tensors(0), step))
        compress_checkpoint(tmp_path / f"{step}", tmp_path / f"delta-{step}", base=tmp_path / "anchor")
    decoded = []
    monkeypatch.setattr(tensor_files, "decode", lambda *given: decoded.append(1) or decode(*given))
    bases = [tmp_path / name for name in ("delta-1", "delta-2", "delta-3", "anchor")]
    decompress(tmp_path / "delta-0", tmp_path / "x", bases)
    assert contents(tmp_path / "x") == contents(tmp_path / "0")
    assert len(decoded) == len(load_file(tmp_path / "0" / MODEL))
    (tmp_path / "delta-3" / MODEL).unlink()
    command = ["decompress", str(tmp_path / "delta-0"), "-o", str(tmp_path / "y"), "--base", str(tmp_path / "delta-3")]
    assert main(command) == 2


def test_names_that_windows_cannot_hold() -> None:
    assert all(map(is_windows_name, ["a", "model.safetensors", ".gitattributes", "console", "com", "\u00e4"]))
    assert not any(map(is_windows_name, ["con", "NUL.txt", "a:b", "a.", "a ", "x\n", "lpt1.safetensors", "q?"]))


def test_a_plain_torch_file_is_no_base(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weights = torch.arange(40_000, dtype=torch.float32)
    for name in ("old.pt", "new.pt"):
        torch.save({"w": weights}, tmp_path / name)
        weights[5] += 1
    compress_checkpoint(tmp_path / "new.pt", tmp_path / "delta", base=tmp_path / "old.pt")
    with pytest.raises(BaseMismatchError, match="compress it, and name the result"):
        decompress(tmp_path / "delta", tmp_path / "x", [tmp_path / "old.pt"])
    compress_checkpoint(tmp_path / "old.pt", tmp_path / "packed")
    decompress(tmp_path / "delta", tmp_path / "x", [tmp_path / "packed"])
    assert (tmp_path / "x").read_bytes() == (tmp_path / "new.pt").read_bytes()
