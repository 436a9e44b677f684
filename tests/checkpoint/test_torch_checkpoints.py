"""Directories with torch files, as a trainer leaves them: compressed as a whole, restored, applied, described."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tensorwire.checkpoint import (
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    diff,
    inspect,
    replace_checkpoint,
    transcode_checkpoint,
    verify,
)
from tensorwire.checkpoint.directory.sources import MAX_KEPT_NBYTES, originals
from tensorwire.cli import main
from tensorwire.errors import CorruptDataError, FormatError, LimitExceededError
from tensorwire.files.torch_file import TorchFile
from tensorwire.storage.local import InputFile
from tests.support.acting import interrupt
from tests.support.checkpoint_models import tree_hashes
from tests.support.restored import restored
from tests.support.stores import faulty_store

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from tensorwire.checkpoint import CheckpointReport


def train(root: Path, steps: int) -> Path:
    """A directory with what a training writes; with `steps` more steps than one with fewer."""
    root.mkdir()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.ReLU(), torch.nn.Linear(200, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    for _ in range(steps):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    pytest.importorskip("safetensors.torch").save_file(model.state_dict(), root / "model.safetensors")
    (root / "config.json").write_text(json.dumps({"model_type": "bert"}))
    torch.save(optimizer.state_dict(), root / "optimizer.pt")
    torch.save(scheduler.state_dict(), root / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, root / "rng_state.pth")
    torch.save(Arguments(), root / "training_args.bin")
    (root / "trainer_state.json").write_text(json.dumps({"global_step": steps}))
    return root


class Arguments:
    """An object of a class that weights_only refuses."""


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return train(tmp_path / "step-3", 3)


def kinds(report: CheckpointReport) -> dict[str, str]:
    return {file.path: file.kind for file in report.files}


def test_replaced_in_place(tmp_path: Path) -> None:
    root = train(tmp_path / "x", 1)
    original = tree_hashes(root)
    compress_checkpoint(root, tmp_path / "packed")
    interrupt(replace_checkpoint, root)
    report = replace_checkpoint(root)
    assert any(file.resumed for file in report.files)
    assert tree_hashes(root) == tree_hashes(tmp_path / "packed")
    decompress_checkpoint(root, tmp_path / "back")
    assert tree_hashes(tmp_path / "back") == original


def test_first_looks_keep_only_so_much_of_torch_files(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is between storages may be 32 MiB in each of 256 files. Without room the file itself stays open."""
    compress_checkpoint(trained, tmp_path / "packed")
    for room, expected in ((MAX_KEPT_NBYTES, [TorchFile, TorchFile]), (7000, [InputFile, TorchFile])):
        monkeypatch.setattr("tensorwire.checkpoint.directory.sources.MAX_KEPT_NBYTES", room)
        views = {file.path: file.open() for file in originals(trained, ()).files}
        assert [type(views[path]) for path in ("optimizer.pt", "rng_state.pth")] == expected
        for view in views.values():
            view.close()
    compress_checkpoint(trained, tmp_path / "again")
    assert tree_hashes(tmp_path / "again") == tree_hashes(tmp_path / "packed")


EXPECTED = {
    "config.json": "replaced",
    "model.safetensors": "safetensors",
    "optimizer.pt": "torch",
    "rng_state.pth": "torch",
    "scheduler.pt": "copied",
    "tensorwire.json": "manifest",
    "trainer_state.json": "copied",
    "training_args.bin": "copied",
}


def test_a_directory_comes_back(trained: Path, tmp_path: Path) -> None:
    report = compress_checkpoint(trained, tmp_path / "packed")
    assert (kinds(report), report.notices) == (EXPECTED, ())
    by_path = {file.path: file for file in report.files}
    optimizer = by_path["optimizer.pt"]
    assert optimizer.nbytes_in == (trained / "optimizer.pt").stat().st_size
    # Two averages of two weights and of a bias of 800 bytes. The other bias has 256, and is among the rest.
    assert (optimizer.num_tensors, optimizer.num_compressed) == (6, 4)
    assert verify(tmp_path / "packed").exact
    assert decompress_checkpoint(tmp_path / "packed", tmp_path / "restored").exact
    assert tree_hashes(tmp_path / "restored") == tree_hashes(trained)


def test_an_older_reader_refuses_the_manifest(trained: Path, tmp_path: Path) -> None:
    compress_checkpoint(trained, tmp_path / "packed")
    assert json.loads((tmp_path / "packed" / "tensorwire.json").read_text())["required"] == "torch"
    (trained / "optimizer.pt").unlink()
    (trained / "rng_state.pth").unlink()
    compress_checkpoint(trained, tmp_path / "without")
    assert "required" not in json.loads((tmp_path / "without" / "tensorwire.json").read_text())


def test_the_reference_restores_torch_files(trained: Path, tmp_path: Path) -> None:
    compress_checkpoint(trained, tmp_path / "packed")
    files = {path.name: path.read_bytes() for path in (tmp_path / "packed").iterdir()}
    assert restored(files) == {path.name: path.read_bytes() for path in trained.iterdir()}
    compress_checkpoint(trained / "optimizer.pt", tmp_path / "alone")
    assert restored({"": (tmp_path / "alone").read_bytes()}) == {"": (trained / "optimizer.pt").read_bytes()}


def test_inspect_and_diff_see_the_storages(trained: Path, tmp_path: Path) -> None:
    compress_checkpoint(trained, tmp_path / "packed")
    plain, packed = inspect(trained), inspect(tmp_path / "packed")
    assert plain.files == packed.files == ("model.safetensors", "optimizer.pt", "rng_state.pth")
    found = [{(t.file, t.name, t.dtype, t.nbytes) for t in report.tensors} for report in (plain, packed)]
    assert found[0] == found[1]
    assert not diff(trained, tmp_path / "packed").tensors
    newer = train(tmp_path / "step-4", 4)
    changed = {tensor.file_b for tensor in diff(tmp_path / "packed", newer).tensors}
    assert changed == {"model.safetensors", "optimizer.pt", "rng_state.pth"}


def test_a_delta_of_a_directory(trained: Path, tmp_path: Path) -> None:
    newer = train(tmp_path / "step-4", 4)
    plain = compress_checkpoint(newer, tmp_path / "plain")
    report = compress_checkpoint(newer, tmp_path / "delta", base=trained)
    sizes = [next(f.nbytes_out for f in r.files if f.path == "optimizer.pt") for r in (plain, report)]
    assert sizes[1] < sizes[0]
    assert next(file.num_relative for file in report.files if file.path == "optimizer.pt")
    decompress_checkpoint(tmp_path / "delta", tmp_path / "restored", base=trained)
    assert tree_hashes(tmp_path / "restored") == tree_hashes(newer)
    compress_checkpoint(trained, tmp_path / "base")
    decompress_checkpoint(tmp_path / "delta", tmp_path / "again", base=tmp_path / "base")
    assert tree_hashes(tmp_path / "again") == tree_hashes(newer)


def test_a_delta_is_applied_in_place(trained: Path, tmp_path: Path) -> None:
    newer = train(tmp_path / "step-4", 4)
    compress_checkpoint(newer, tmp_path / "delta", base=trained)
    apply_checkpoint(tmp_path / "delta", trained)
    assert tree_hashes(trained) == tree_hashes(newer)
    report = apply_checkpoint(tmp_path / "delta", trained)
    assert all(file.resumed for file in report.files)


def test_a_directory_without_safetensors(trained: Path, tmp_path: Path) -> None:
    (trained / "model.safetensors").unlink()
    report = compress_checkpoint(trained, tmp_path / "packed")
    # Nothing loads compressed weights out of a torch file, so no config.json says that there are any.
    assert kinds(report)["config.json"] == "copied"
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    assert tree_hashes(tmp_path / "restored") == tree_hashes(trained)


def test_objects_beside_the_tensors_hinder_nothing(trained: Path, tmp_path: Path) -> None:
    state = torch.load(trained / "optimizer.pt", weights_only=True)
    torch.save({**state, "arguments": Arguments()}, trained / "optimizer.pt")
    report = compress_checkpoint(trained, tmp_path / "packed")
    assert (kinds(report), report.notices) == (EXPECTED, ())
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    assert tree_hashes(tmp_path / "restored") == tree_hashes(trained)


def test_what_cannot_be_looked_into_is_copied_and_said(trained: Path, tmp_path: Path) -> None:
    """Nothing is said of a small file: it has little to gain."""
    state = torch.load(trained / "optimizer.pt", weights_only=True)
    torch.save(state, trained / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("optimizer.pt", "rng_state.pth"):
        content = (trained / name).read_bytes()
        (trained / name).write_bytes(content[:-30])
    report = compress_checkpoint(trained, tmp_path / "packed")
    changed = dict.fromkeys(("optimizer.pt", "old.pt", "rng_state.pth"), "copied")
    assert kinds(report) == {**EXPECTED, **changed}
    assert [notice.split(": ")[1] for notice in report.notices] == ["old.pt", "optimizer.pt"]
    for notice, reason in zip(report.notices, ("before torch 1.6", "zip archive is damaged"), strict=True):
        assert notice.startswith("copied, not compressed: ")
        assert reason in notice
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    assert tree_hashes(tmp_path / "restored") == tree_hashes(trained)


def test_torch_files_whose_records_no_manifest_holds_are_copied_and_said(trained: Path, tmp_path: Path) -> None:
    """Three have 9 MiB each that cannot be packed, and one fits. The small ones that come after it fit too."""
    names = ("large-0.pt", "large-1.pt", "large-2.pt")
    for name in names:
        shutil.copy(trained / "optimizer.pt", trained / name)
        with zipfile.ZipFile(trained / name, "a") as archive:
            archive.writestr("optimizer/other", os.urandom(9 << 20))
    report = compress_checkpoint(trained, tmp_path / "packed")
    assert kinds(report) == {**EXPECTED, "large-0.pt": "torch", "large-1.pt": "copied", "large-2.pt": "copied"}
    copied = [notice for notice in report.notices if notice.startswith("copied")]
    for notice, name in zip(copied, names[1:], strict=True):
        assert notice.startswith(f"copied, not compressed: {name}: expected a torch file whose record fits")
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    assert tree_hashes(tmp_path / "restored") == tree_hashes(trained)


def test_a_torch_file_whose_names_collide_is_copied_and_said(trained: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(trained / "optimizer.pt", "a") as archive:
        for name in (".0", "._0_tensorwire"):
            archive.writestr(f"optimizer/data/{name}", bytes(400))
    report = compress_checkpoint(trained, tmp_path / "packed")
    assert kinds(report) == {**EXPECTED, "optimizer.pt": "copied"}
    assert [notice.split(": ")[1] for notice in report.notices] == ["optimizer.pt"]
    assert "needs; rename it" in report.notices[0]
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    assert tree_hashes(tmp_path / "restored") == tree_hashes(trained)


def optimizer_file(path: Path) -> int:
    """Write a file with 40 storages of 100,000 bytes among small ones, as an optimizer has them; return its size."""
    generator = torch.Generator().manual_seed(3)
    averages = [(torch.randn(50_000, generator=generator) * 1e-3).bfloat16() for _ in range(40)]
    torch.save({index: {"step": torch.tensor(7.0), "exp_avg": each} for index, each in enumerate(averages)}, path)
    return path.stat().st_size


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_file_in_a_store_is_fetched_once(is_directory: bool, tmp_path: Path) -> None:
    """Also in a directory, where it is looked at twice."""
    nbytes = optimizer_file(tmp_path / "optimizer.pt")
    fetched: list[int] = []

    def fetch(own: Any, key: str, start: Any, stop: Any, **options: Any) -> bytes:
        data: bytes = own(key, start, stop, **options)
        fetched.append(len(data))
        return data

    with faulty_store() as store:
        store.pipe_file("/s/optimizer.pt", (tmp_path / "optimizer.pt").read_bytes())
        store.faults["cat_file"] = fetch
        compress_checkpoint("faulty://s" + "/optimizer.pt" * (not is_directory), tmp_path / "packed")
    assert nbytes <= sum(fetched) < 1.05 * nbytes
    decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    restored = tmp_path / "restored" / "optimizer.pt" if is_directory else tmp_path / "restored"
    assert restored.read_bytes() == (tmp_path / "optimizer.pt").read_bytes()


def test_an_interrupted_run_goes_on(trained: Path, tmp_path: Path) -> None:
    interrupt(compress_checkpoint, trained, tmp_path / "packed", at="rng_state.pth")
    report = compress_checkpoint(trained, tmp_path / "packed")
    assert next(file.resumed for file in report.files if file.path == "optimizer.pt")
    compress_checkpoint(trained, tmp_path / "expected")
    assert tree_hashes(tmp_path / "packed") == tree_hashes(tmp_path / "expected")


def test_a_damaged_file_is_found(trained: Path, tmp_path: Path) -> None:
    compress_checkpoint(trained, tmp_path / "packed")
    path = tmp_path / "packed" / "optimizer.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert [problem.file for problem in verify(tmp_path / "packed").problems] == ["optimizer.pt"]
    with pytest.raises(FormatError):
        decompress_checkpoint(tmp_path / "packed", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_damaged_record_is_found(trained: Path, tmp_path: Path) -> None:
    """Bits of the structure, which no hash of a tensor covers."""
    packed = tmp_path / "optimizer.pt"
    compress_checkpoint(trained / "optimizer.pt", packed)
    restored = tmp_path / "restored.pt"
    decompress_checkpoint(packed, restored)
    assert restored.read_bytes() == (trained / "optimizer.pt").read_bytes()
    content = packed.read_bytes()
    place = content.index(b"tensorwire.original_torch") + 1000
    packed.write_bytes(content[:place] + (b"A" if content[place : place + 1] != b"A" else b"B") + content[place + 1 :])
    with pytest.raises(FormatError):
        decompress_checkpoint(packed, tmp_path / "again.pt")


def test_a_compressed_torch_file_among_originals_is_refused(trained: Path, tmp_path: Path) -> None:
    compress_checkpoint(trained / "optimizer.pt", tmp_path / "packed.pt")
    shutil.copy(tmp_path / "packed.pt", trained / "optimizer.pt")
    with pytest.raises(ValueError, match=r"compressed already: optimizer\.pt"):
        compress_checkpoint(trained, tmp_path / "packed")


def test_an_original_is_never_replaced(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        compress_checkpoint(trained / "optimizer.pt", trained / "rng_state.pth", force=True)
    compress_checkpoint(trained, tmp_path / "packed")
    (tmp_path / "packed" / "optimizer.pt").write_bytes((trained / "optimizer.pt").read_bytes())
    with pytest.raises(FileExistsError):
        compress_checkpoint(trained, tmp_path / "packed", force=True)


def test_a_file_alone_out_of_a_directory_gives_its_storages(trained: Path, tmp_path: Path) -> None:
    compress_checkpoint(trained, tmp_path / "packed")
    shutil.copy(tmp_path / "packed" / "optimizer.pt", tmp_path / "alone.pt")
    report = decompress_checkpoint(tmp_path / "alone.pt", tmp_path / "storages.safetensors")
    assert not report.exact
    assert not diff(tmp_path / "storages.safetensors", trained / "optimizer.pt").tensors


FILES = ("optimizer.pt", "model.safetensors", "step/optimizer.pt")


@pytest.fixture
def nested(trained: Path, tmp_path: Path) -> Path:
    """A compressed directory with the same content twice, so that one of both is relative to the other."""
    (trained / "step").mkdir()
    shutil.copy(trained / "optimizer.pt", trained / "step")
    compress_checkpoint(trained, tmp_path / "packed")
    assert (tmp_path / "packed/step/optimizer.pt").stat().st_size < 16_384
    return tmp_path / "packed"


@pytest.mark.parametrize("name", FILES)
def test_a_file_in_its_directory_comes_back(nested: Path, trained: Path, tmp_path: Path, name: str) -> None:
    """The directory has the records of its files."""
    original, back = (trained / name).read_bytes(), tmp_path / "back"
    report = decompress_checkpoint(nested / name, back)
    assert (back.read_bytes(), report.exact) == (original, True)
    assert report.files[0].kind == ("safetensors" if name.endswith("safetensors") else "torch")
    assert verify(nested / name).exact
    assert inspect(nested / name).restorable
    transcode_checkpoint(nested / name, tmp_path / "compact", profile="compact")
    decompress_checkpoint(tmp_path / "compact", tmp_path / "from-compact")
    assert (tmp_path / "from-compact").read_bytes() == original
    (tmp_path / "link").symlink_to(nested / name)
    assert decompress_checkpoint(tmp_path / "link", back, force=True).exact


def test_a_file_in_its_directory_comes_back_at_the_command_line(
    nested: Path, trained: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    original = (trained / "optimizer.pt").read_bytes()
    assert main(["decompress", str(nested / "step/optimizer.pt"), str(tmp_path / "back.pt")]) == 0
    assert (tmp_path / "back.pt").read_bytes() == original
    assert b"note:" not in capfdbinary.readouterr().out
    assert (
        main(["decompress", str(nested / "optimizer.pt"), str(nested / "step/optimizer.pt"), "-o", f"{tmp_path}/all"])
        == 2
    )
    assert (
        main(["decompress", str(nested / "optimizer.pt"), str(nested / "model.safetensors"), "-o", f"{tmp_path}/all"])
        == 0
    )
    assert (tmp_path / "all/optimizer.pt").read_bytes() == original
    capfdbinary.readouterr()
    assert main(["decompress", "--quiet", str(nested / "optimizer.pt"), "-"]) == 0
    assert capfdbinary.readouterr().out == original


def test_a_file_of_a_delta_comes_back(trained: Path, tmp_path: Path) -> None:
    newer = train(tmp_path / "newer", 2)
    compress_checkpoint(newer, tmp_path / "delta", base=trained)
    decompress_checkpoint(tmp_path / "delta/optimizer.pt", tmp_path / "back.pt", base=trained)
    assert (tmp_path / "back.pt").read_bytes() == (newer / "optimizer.pt").read_bytes()
    apply_checkpoint(tmp_path / "delta/optimizer.pt", trained / "optimizer.pt")
    assert (trained / "optimizer.pt").read_bytes() == (newer / "optimizer.pt").read_bytes()


def test_a_file_of_a_directory_in_a_store_comes_back(nested: Path, trained: Path, tmp_path: Path) -> None:
    with faulty_store() as store:
        store.put(str(nested), "/packed", recursive=True)
        for name in FILES:
            decompress_checkpoint(f"faulty://packed/{name}", tmp_path / "back", force=True)
            assert (tmp_path / "back").read_bytes() == (trained / name).read_bytes()


def test_what_a_directory_only_copied_is_no_compressed_file(trained: Path, tmp_path: Path) -> None:
    (trained / "model.gguf").write_bytes(b"GGUF" + bytes(5000))
    compress_checkpoint(trained, tmp_path / "packed")
    with pytest.raises(FormatError, match="got a GGUF file"):
        decompress_checkpoint(tmp_path / "packed/model.gguf", tmp_path / "back")
    shutil.copy(trained / "optimizer.pt", tmp_path / "packed")
    with pytest.raises(ValueError, match="is not compressed"):
        decompress_checkpoint(tmp_path / "packed/optimizer.pt", tmp_path / "back")


def test_a_file_that_is_not_the_one_of_the_manifest_is_told(trained: Path, tmp_path: Path) -> None:
    compress_checkpoint(trained, tmp_path / "packed")
    compress_checkpoint(train(tmp_path / "newer", 2), tmp_path / "other")
    shutil.copy(tmp_path / "other/optimizer.pt", tmp_path / "packed")
    with pytest.raises(CorruptDataError, match="SHA-256"):
        decompress_checkpoint(tmp_path / "packed/optimizer.pt", tmp_path / "back.pt")
    manifest = tmp_path / "packed/tensorwire.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    with pytest.raises(FormatError, match=r"tensorwire\.json"):
        decompress_checkpoint(tmp_path / "packed/optimizer.pt", tmp_path / "back.pt")
    assert not (tmp_path / "back.pt").exists()


def test_a_result_on_standard_output(trained: Path, tmp_path: Path) -> None:
    from tensorwire.checkpoint.operations.stream import convert_stream

    source = trained / "optimizer.pt"
    for operation, target in ((compress_checkpoint, "packed"), (decompress_checkpoint, "restored")):
        with (tmp_path / target).open("wb") as stream:
            convert_stream(operation, source, stream)
        source = tmp_path / target
    assert (tmp_path / "restored").read_bytes() == (trained / "optimizer.pt").read_bytes()


def test_a_file_that_is_written_to_meanwhile(trained: Path, tmp_path: Path) -> None:
    """A storage that stays plain is read twice; what it was at first is what the SHA-256 tells."""
    path = tmp_path / "state.pt"
    torch.save({"a": torch.randint(0, 256, (1 << 20,), dtype=torch.uint8), "b": torch.zeros(1 << 20)}, path)
    place = path.read_bytes().index(torch.load(path)["a"].numpy().tobytes())

    def write(done: int, _total: int, _path: str) -> None:
        if done:
            with path.open("r+b") as file:
                file.seek(place)
                file.write(os.urandom(8))

    compress_checkpoint(path, tmp_path / "packed", progress=write)
    assert verify(tmp_path / "packed").exact


def test_the_command_line(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(trained / "optimizer.pt")
    assert main(["compress", str(trained)]) == 0
    assert "4 of 6 tensors" in capsys.readouterr().out
    assert main(["compress", path]) == 0
    Path(path).rename(trained / "original")
    assert main(["decompress", f"{path}.tensorwire"]) == 0
    assert Path(path).read_bytes() == (trained / "original").read_bytes()


def test_a_record_that_no_manifest_holds(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorwire.checkpoint.directory import manifest

    monkeypatch.setattr(manifest, "MAX_JSON_NBYTES", 2000)
    with pytest.raises(LimitExceededError, match="manifest"):
        compress_checkpoint(trained, tmp_path / "packed")
