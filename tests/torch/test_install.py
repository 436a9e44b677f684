"""`tensorwire.torch.install`: what reads compressed files afterwards, and that nothing of it is left behind."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import sys
import threading
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
pytest.importorskip("safetensors.numpy")

from safetensors import SafetensorError, safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import tensorwire.torch  # noqa: E402
from tensorwire.torch import install, uninstall  # noqa: E402
from tensorwire.torch.installed import installation  # noqa: E402
from tensorwire.torch.integrations.after_import import after_import  # noqa: E402
from tests.support.command_line import damage  # noqa: E402
from tests.support.versions import is_torch_before  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


HOMES = {
    "safetensors.deserialize", "safetensors.numpy.deserialize", "safetensors.numpy.safe_open", "safetensors.safe_open",
    "safetensors.torch.deserialize", "safetensors.torch.safe_open", "torch.load", "torch.serialization.load",
}  # fmt: skip


def ours() -> list[str]:
    """Where something of the installation can be found."""
    found = [
        f"{module.__name__}.{name}"
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and not module.__name__.startswith("tensorwire.")
        for name, thing in list(vars(module).items())
        if thing is not install and thing is not uninstall and is_ours(thing)
    ]
    if diffusers := sys.modules.get("diffusers.configuration_utils"):
        found += [name for name, thing in vars(diffusers.ConfigMixin).items() if is_ours(thing)]
    late = ("diffusers.", "transformers.trainer_utils")
    return found + [str(hook) for hook in sys.meta_path if getattr(hook, "_name", "").startswith(late)]


def is_ours(thing: Any) -> bool:
    """Whether its code stands there; functions that take the place of others say that they are these."""
    if type(thing) is classmethod:
        thing = thing.__func__
    if type(thing) is FunctionType:
        return "tensorwire/torch/installed/" in thing.__code__.co_filename
    return issubclass(type(thing), type) and str(thing.__module__).startswith("tensorwire.torch.installed.")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = (safe_open, safetensors.deserialize, torch.load)
    yield
    uninstall()
    assert (safe_open, safetensors.deserialize, torch.load) == before
    assert ours() == []


@pytest.fixture
def installed() -> tuple[str, ...]:
    return install()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tensors in a safetensors file, a training state in torch files, plain and compressed; the directory of both."""
    made = tmp_path_factory.mktemp("install")
    (made / "dense" / "deep").mkdir(parents=True)
    save_file(tensors(), made / "dense" / "model.safetensors", metadata={"format": "pt"})
    for name in ("optimizer.pt", "deep/state.pth"):
        torch.save(state(), made / "dense" / name)
    tensorwire.compress_checkpoint(made / "dense", made / "compressed")
    for name in ("model.safetensors", "optimizer.pt"):
        tensorwire.compress_checkpoint(made / "dense" / name, made / name)
    return made


def tensors() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((96, 128), generator=generator)
    return {"layer.bias": torch.ones(3), "layer.weight": weight.bfloat16(), "other.weight": weight.half()}


def state() -> dict[str, Any]:
    weight = tensors()["layer.weight"].float()
    return {"moments": weight, "view": weight[3:5], "step": torch.tensor(3.0), "groups": [{"lr": 0.1}]}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(a.dtype == b.dtype and torch.equal(a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


# What it changes


def test_what_torch_says_without_it(tmp_path: Path) -> None:
    """docs/pytorch-files.md quotes it, and that its advice leads nowhere."""
    torch.save({"w": torch.zeros(100, 100)}, tmp_path / "plain.pt")
    tensorwire.compress_checkpoint(tmp_path / "plain.pt", tmp_path / "small.pt")
    first = (tmp_path / "small.pt").read_bytes()[0]
    for weights_only, text in ((True, "Weights only load failed"), (False, f"invalid load key, '{chr(first)}'")):
        with pytest.raises(pickle.UnpicklingError, match=text):
            torch.load(tmp_path / "small.pt", weights_only=weights_only)


def test_it_names_what_it_changes(installed: tuple[str, ...]) -> None:
    assert set(installed) >= HOMES
    assert f"{__name__}.safe_open" in installed, "imported by name before"
    assert install() == installed


def test_without_it_nothing_is_changed() -> None:
    assert ours() == []
    uninstall()
    uninstall()
    assert ours() == []


def test_a_module_that_is_imported_meanwhile_gets_its_own_back(monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    late = ModuleType("late")
    exec("from safetensors import safe_open\nfrom torch import load", late.__dict__)
    monkeypatch.setitem(sys.modules, "late", late)
    assert "late.load" in install()
    uninstall()
    assert vars(late)["safe_open"] is safe_open
    assert vars(late)["load"] is torch.load


def test_what_lies_among_modules_and_is_none_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "strange", SimpleNamespace(load=torch.load))
    install()
    uninstall()


def test_without_safetensors_torch_loads_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    assert {"torch.load", "torch.serialization.load"} <= set(install())
    assert safetensors.safe_open is safe_open


# safetensors


def load_model(path: Path) -> dict[str, Any]:
    model = torch.nn.Module()
    model.layer, model.other = torch.nn.Linear(128, 96).bfloat16(), torch.nn.Linear(128, 96, bias=False).half()
    model.layer.bias = torch.nn.Parameter(torch.zeros(3))
    assert safetensors.torch.load_model(model, path) == (set(), [])
    return dict(model.state_dict())


def opened(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt", device="cpu") as file:
        assert isinstance(file, safe_open)
        return {name: file.get_tensor(name) for name in file.offset_keys()}


def sliced(path: Path) -> dict[str, Any]:
    with safe_open(str(path), "pt") as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - the original has no iteration
        assert found["layer.weight"].get_dtype() == "BF16"
        assert found["layer.weight"].get_shape() == [96, 128]
        return {name: torch.cat([tensor[:1], tensor[1:]]) for name, tensor in found.items()}


READS = {
    "load_file": load_file,
    "load_file, pread": lambda path: load_file(path, backend="pread"),
    "load": lambda path: safetensors.torch.load(path.read_bytes()),
    "load_model": load_model,
    "safe_open": opened,
    "get_slice": sliced,
    "torch.load": lambda path: torch.load(path, map_location="cpu"),
}


@pytest.mark.parametrize("place", ["dense", "compressed", "."])
def test_safetensors_reads(installed: tuple[str, ...], folder: Path, place: str) -> None:
    for name, read in READS.items():
        if name != "torch.load" or not is_torch_before(2, 13):  # which reads no safetensors files
            found = read(folder / place / "model.safetensors")
            assert equal(dict(sorted(found.items())), tensors()), name


def test_numpy_reads(installed: tuple[str, ...], tmp_path: Path) -> None:
    array = tensors()["other.weight"].numpy()
    tensorwire.save_file({"x": array}, tmp_path / "x.safetensors")
    assert (safetensors.numpy.load_file(tmp_path / "x.safetensors")["x"] == array).all()
    assert (safetensors.numpy.load((tmp_path / "x.safetensors").read_bytes())["x"] == array).all()


def test_an_open_file_is_used_as_the_originals(installed: tuple[str, ...], folder: Path) -> None:
    dense, compressed = (safe_open(folder / place / "model.safetensors", "pt") for place in ("dense", "compressed"))
    assert type(dense).__module__ == "builtins", "it is opened by safetensors"
    assert type(compressed) is not type(dense)
    assert isinstance(dense, safe_open)
    assert isinstance(compressed, safe_open)
    assert not isinstance(folder, safe_open)
    assert {name for name in dir(dense) if name[0] != "_"} <= set(dir(compressed))
    assert dense.keys() == compressed.keys()
    assert dense.metadata() == compressed.metadata() == {"format": "pt"}
    assert equal(*(dict(sorted(file.get_tensors().items())) for file in (dense, compressed)))
    assert callable(safe_open.get_tensor)
    piece = compressed.get_slice("layer.weight")
    with compressed:
        pass
    for call in (
        lambda file: file.get_tensor("layer"),
        lambda file: file.get_slice("layer"),
    ):
        for file in (dense, safe_open(folder / "model.safetensors", "pt")):
            with pytest.raises(SafetensorError):
                call(file)
    for framework, kind in (("pt", IndexError), ("np", SafetensorError)):
        for path in (folder / "dense" / "model.safetensors", folder / "model.safetensors"):
            with safe_open(path, framework) as file, pytest.raises(kind):
                file.get_slice("other.weight")[96]
    for call in (compressed.keys, compressed.metadata, compressed.get_tensors, lambda: piece[0]):
        with pytest.raises(SafetensorError, match="closed"):
            call()


def test_files_of_others_are_left_to_safetensors(installed: tuple[str, ...], tmp_path: Path) -> None:
    """The name of this project in a header makes no file compressed, nor does an escape."""
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors", metadata={"tensorwire": "ü\n"})
    assert type(safe_open(tmp_path / "x.safetensors", "pt")).__module__ == "builtins"
    (tmp_path / "x").write_bytes(b"nothing")
    for path, kind in ((tmp_path, OSError), (tmp_path / "x", SafetensorError), (tmp_path / "none", OSError)):
        with pytest.raises(kind):
            safe_open(path, "pt")
    with pytest.raises(TypeError):
        safe_open()
    with pytest.raises(TypeError):
        safetensors.deserialize(3)


# torch.load


def test_torch_loads(installed: tuple[str, ...], folder: Path) -> None:
    for name in ("compressed/optimizer.pt", "compressed/deep/state.pth", "optimizer.pt", "dense/optimizer.pt"):
        path = folder / name
        with path.open("rb") as file:
            assert equal(torch.load(file, weights_only=True), state()), name
        for found in (
            torch.load(path, weights_only=True),
            torch.load(str(path), map_location="cpu", weights_only=True),
            torch.load(f=path, weights_only=False),
            torch.load(path, mmap=True, weights_only=True),
            torch.load(path, map_location=lambda storage, place: storage, weights_only=True),
        ):
            assert equal(found, state()), name
            assert found["view"].untyped_storage().data_ptr() == found["moments"].untyped_storage().data_ptr(), name
        assert torch.load(path, map_location="meta", weights_only=True)["moments"].is_meta, name


def test_torch_loads_from_memory(installed: tuple[str, ...], folder: Path) -> None:
    """Bytes have no directory, so the record has to be in them."""
    assert equal(torch.load(io.BytesIO((folder / "optimizer.pt").read_bytes()), weights_only=True), state())
    with pytest.raises(tensorwire.FormatError, match="load it by its path in the directory") as caught:
        torch.load(io.BytesIO((folder / "compressed" / "optimizer.pt").read_bytes()), weights_only=True)
    assert caught.value.file is None
    with pytest.raises(ValueError, match="mmap"):
        torch.load(io.BytesIO((folder / "optimizer.pt").read_bytes()), mmap=True, weights_only=True)


def test_torch_loads_through_links(installed: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """A hub's cache has links in a folder to files of other names elsewhere."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot" / "deep").mkdir(parents=True)
    for number, name in enumerate(("optimizer.pt", "deep/state.pth", "tensorwire.json")):
        shutil.copy(folder / "compressed" / name, tmp_path / "blobs" / str(number))
        (tmp_path / "snapshot" / name).symlink_to(
            os.path.relpath(tmp_path / "blobs" / str(number), (tmp_path / "snapshot" / name).parent)
        )
    assert equal(torch.load(tmp_path / "snapshot" / "optimizer.pt", weights_only=True), state())


def test_a_torch_file_without_its_directory(installed: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    lone = Path(shutil.copy(folder / "compressed" / "optimizer.pt", tmp_path))
    with pytest.raises(tensorwire.FormatError, match=r"tensorwire\.json of its directory"):
        torch.load(lone, weights_only=True)


def test_what_torch_refuses_it_refuses(installed: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"x")
    with pytest.raises(Exception, match=r"\w"):
        torch.load(tmp_path / "x.pt", weights_only=True)
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "none.pt", weights_only=True)
    with pytest.raises(AttributeError):
        torch.load(3, weights_only=True)
    with pytest.raises(RuntimeError, match="pickle_module"):
        torch.load(folder / "optimizer.pt", pickle_module=shutil, weights_only=True)


# Bad input


def test_damage_has_a_name_and_a_way_out(installed: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    bad = {name: Path(shutil.copy(folder / name, tmp_path)) for name in ("model.safetensors", "optimizer.pt")}
    for path in bad.values():
        with tensorwire.open_file(path) as file:
            entry = max((t.entry for t in file.files[0].tensors.values()), key=lambda entry: entry.nbytes)
            damage(path, file.files[0].header.data_start + entry.stop - entry.nbytes // 2)
    with pytest.raises(SafetensorError, match=r"model\.safetensors', tensor '.*weight', block .* fetch it again"):
        load_file(bad["model.safetensors"])
    with pytest.raises(SafetensorError, match="block"):
        safetensors.torch.load(bad["model.safetensors"].read_bytes())
    with pytest.raises(tensorwire.CorruptDataError, match=r"optimizer\.pt', tensor 'data/0', block .* fetch it again"):
        torch.load(bad["optimizer.pt"], weights_only=True)
    damage(bad["model.safetensors"], 40)
    with pytest.raises(SafetensorError, match="the data is damaged"):
        load_file(bad["model.safetensors"])


def test_deltas_are_named(installed: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.pt"
    torch.save(state() | {"moments": state()["moments"] + 1e-4}, newer)
    tensorwire.compress_checkpoint(newer, tmp_path / "delta.pt", base=folder / "dense" / "optimizer.pt")
    with pytest.raises(tensorwire.BaseMismatchError, match=r"relative to 'optimizer\.pt'.*decompress DELTA DST --base"):
        torch.load(tmp_path / "delta.pt", weights_only=True)
    changed = {name: tensor + 0.01 for name, tensor in tensors().items()}
    base = folder / "dense" / "model.safetensors"
    tensorwire.save_file(changed, tmp_path / "delta.safetensors", base=base)
    with pytest.raises(SafetensorError, match=r"a base '.*' in 'model\.safetensors'.*decompress DELTA DST --base"):
        load_file(tmp_path / "delta.safetensors")


def test_tensors_that_other_files_of_the_directory_hold(installed: tuple[str, ...], tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / "run" / f"step-{step}").mkdir(parents=True)
        save_file(weights(step), tmp_path / "run" / f"step-{step}" / "model.safetensors")
        torch.save(weights(step), tmp_path / "run" / f"step-{step}" / "pytorch_model.bin")
    tensorwire.compress_checkpoint(tmp_path / "run", tmp_path / "small", chain=True)
    step = tmp_path / "small" / "step-2"
    assert (step / "pytorch_model.bin").stat().st_size < 4096
    assert equal(torch.load(step / "pytorch_model.bin", weights_only=True), weights(2))
    with (step / "pytorch_model.bin").open("rb") as file:
        assert equal(torch.load(file, weights_only=True), weights(2))
    assert equal(load_file(step / "model.safetensors"), weights(2))

    content = (step / "pytorch_model.bin").read_bytes()
    with pytest.raises(tensorwire.FormatError, match="load it by its path in the directory"):
        torch.load(io.BytesIO(content), weights_only=True)
    (tmp_path / "small" / "step-1" / "model.safetensors").unlink()
    with pytest.raises(SafetensorError, match=r"there is no file .*step-1/model\.safetensors.* fetch that file"):
        load_file(step / "model.safetensors")
    with pytest.raises(tensorwire.BaseMismatchError, match=r"there is no file .*step-1/model\.safetensors.* fetch"):
        torch.load(step / "pytorch_model.bin", weights_only=True)


def weights(step: int) -> dict[str, Any]:
    return {"weight": torch.randn((96, 128), generator=torch.Generator().manual_seed(0)) + (step == 2) * 1e-6}


def test_what_others_exchanged_before_is_called_and_comes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    own = torch.load

    def theirs(f: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(f)
        return own(f, *arguments, **options)

    monkeypatch.setattr(torch, "load", theirs)
    install()
    assert equal(torch.load(folder / "optimizer.pt", weights_only=True), state())
    assert equal(torch.load(folder / "dense" / "optimizer.pt", weights_only=True), state())
    assert len(calls) == 2
    uninstall()
    assert torch.load is theirs


def test_what_others_exchanged_later_is_left_and_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.load
    monkeypatch.setattr(torch, "load", own)  # what comes back in the end
    install()
    kept = torch.load

    def theirs(f: Any, **options: Any) -> Any:
        return kept(f, **options)

    monkeypatch.setattr(torch, "load", theirs)
    assert equal(torch.load(folder / "optimizer.pt", weights_only=True), state())
    with pytest.warns(UserWarning, match=r"torch\.load, which is .*theirs"):
        uninstall()
    assert torch.load is theirs
    assert equal(torch.load(folder / "dense" / "optimizer.pt", weights_only=True), state())
    with pytest.raises(Exception, match=r"\w"):
        torch.load(folder / "optimizer.pt", weights_only=True)
    install()  # over theirs, which calls the old one
    assert equal(torch.load(folder / "optimizer.pt", weights_only=True), state())
    uninstall()
    monkeypatch.setattr(torch, "load", own)


@pytest.mark.parametrize(("module", "name"), [("torch", "safe_open"), ("numpy", "deserialize"), ("", "deserialize")])
def test_a_version_that_does_not_fit_is_refused(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = getattr(safetensors, module) if module else safetensors
    monkeypatch.delattr(owner, name)
    monkeypatch.setattr(safetensors, "__version__", "9.8.7")
    before = torch.load
    with pytest.raises(ImportError, match=rf"{owner.__name__}\.{name}, which safetensors 9\.8\.7 has not"):
        install()
    assert torch.load is before
    assert ours() == []
    monkeypatch.undo()


def test_a_failure_half_way_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    fixed = Fixed("fixed")
    fixed.__dict__["load"] = torch.load
    monkeypatch.setitem(sys.modules, "fixed", fixed)
    with pytest.raises(AttributeError):
        install()
    assert ours() == []


def test_threads_load_while_it_comes_and_goes(folder: Path) -> None:
    dense, compressed = (folder / place / "model.safetensors" for place in ("dense", "compressed"))
    errors: list[BaseException] = []
    ended = threading.Event()

    def read() -> None:
        try:
            while not ended.is_set():
                assert equal(load_file(dense), tensors())
                assert equal(torch.load(folder / "dense" / "optimizer.pt", weights_only=True), state())
                try:
                    assert equal(dict(sorted(load_file(compressed).items())), tensors())
                except SafetensorError as error:
                    assert "F6_E2M3" in str(error)  # noqa: PT017 - without it safetensors refuses the file
        except BaseException as error:
            errors.append(error)

    def change() -> None:
        try:
            for _ in range(2):
                install()
                uninstall()
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    changers = [threading.Thread(target=change) for _ in range(2)]
    for thread in [*readers, *changers]:
        thread.start()
    for thread in changers:
        thread.join()
    ended.set()
    for thread in readers:
        thread.join()
    assert errors == []


def test_an_import_that_is_waited_for_is_forgotten() -> None:
    before = list(sys.meta_path)
    forget = after_import("tests.no_module", lambda: None)
    assert len(sys.meta_path) == len(before) + 1
    forget()
    forget()
    assert sys.meta_path == before
