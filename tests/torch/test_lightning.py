"""Lightning with `TensorwireCheckpointIO`: saved, removed, overwritten, resumed."""

from __future__ import annotations

import pickle
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from tensorwire.errors import BaseMismatchError  # noqa: E402
from tensorwire.torch.integrations import recoding  # noqa: E402
from tensorwire.torch.integrations.lightning import TensorwireCheckpointIO  # noqa: E402
from tensorwire.torch.integrations.recoding import Form, form_of  # noqa: E402
from tests.support.acting import raising  # noqa: E402
from tests.support.programs import Programs  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence


def state(step: int) -> dict[str, Any]:
    weight = torch.linspace(1, 2, 5000).sin()
    return {"global_step": step, "state_dict": {"w": weight * (1 + step * 1e-6)}, "hyper_parameters": Path("runs")}


def bases(folder: Path, names: Sequence[str]) -> list[str | None]:
    found = [form_of(folder / name) for name in names]
    assert all(form.compressed for form in found)
    return [form.base for form in found]


def assert_loads(io: TensorwireCheckpointIO, path: Path, step: int) -> None:
    loaded = io.load_checkpoint(path, weights_only=False)
    assert loaded["global_step"] == step
    assert loaded["hyper_parameters"] == Path("runs")
    assert torch.equal(loaded["state_dict"]["w"].view(torch.int32), state(step)["state_dict"]["w"].view(torch.int32))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_stands_alone_and_others_are_relative(tmp_path: Path) -> None:
    io = TensorwireCheckpointIO(anchor_every=3)
    for step in range(1, 6):
        io.save_checkpoint(state(step), tmp_path / f"{step}.ckpt")
    assert bases(tmp_path, [f"{step}.ckpt" for step in range(1, 6)]) == ["2.ckpt", "3.ckpt", None, "5.ckpt", None]
    for step in range(1, 6):
        assert_loads(io, tmp_path / f"{step}.ckpt", step)
    assert names(tmp_path) == [f"{step}.ckpt" for step in range(1, 6)]


def test_one_that_is_needed_may_be_removed_or_written_over(tmp_path: Path) -> None:
    io = TensorwireCheckpointIO()
    for step in (1, 2, 3):
        io.save_checkpoint(state(step), tmp_path / f"{step}.ckpt")
        io.save_checkpoint(state(step), tmp_path / "last.ckpt")  # as save_last=True does it
    assert bases(tmp_path, ["1.ckpt", "2.ckpt", "3.ckpt", "last.ckpt"]) == ["2.ckpt", "3.ckpt", "last.ckpt", None]
    assert (tmp_path / "3.ckpt").stat().st_size < (tmp_path / "last.ckpt").stat().st_size / 2  # they are equal
    io.remove_checkpoint(tmp_path / "2.ckpt")
    io.remove_checkpoint(tmp_path / "2.ckpt")
    assert names(tmp_path) == ["1.ckpt", "3.ckpt", "last.ckpt"]
    for name, step in {"1.ckpt": 1, "3.ckpt": 3, "last.ckpt": 3}.items():
        assert_loads(io, tmp_path / name, step)


def test_a_later_run_goes_on_and_reads_links_and_plain_files(tmp_path: Path) -> None:
    TensorwireCheckpointIO().save_checkpoint(state(1), tmp_path / "1.ckpt")
    torch.save(state(9), tmp_path / "of another tool.ckpt")
    (tmp_path / "1.ckpt").touch()
    (tmp_path / "last.ckpt").symlink_to("1.ckpt")
    (tmp_path / ".2.ckpt.12345678.tensorwire.partial").mkdir()  # what a kill left
    io = TensorwireCheckpointIO()
    io.save_checkpoint(state(2), tmp_path / "2.ckpt")
    assert bases(tmp_path, ["1.ckpt", "2.ckpt"]) == ["2.ckpt", None]
    for name, step in {"1.ckpt": 1, "last.ckpt": 1, "2.ckpt": 2}.items():
        assert_loads(io, tmp_path / name, step)
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):  # which code in a file does not get past either
        io.load_checkpoint(tmp_path / "2.ckpt", weights_only=True)
    assert_loads(io, tmp_path / "of another tool.ckpt", 9)
    assert names(tmp_path) == ["1.ckpt", "2.ckpt", "last.ckpt", "of another tool.ckpt"]
    io.teardown()


def test_what_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = TensorwireCheckpointIO()
    with pytest.raises(ValueError, match=r"writes files of this machine, got 's3://bucket/x\.ckpt'"):
        io.save_checkpoint(state(1), "s3://bucket/x.ckpt")
    with pytest.raises(TypeError, match="takes no storage_options"):
        io.save_checkpoint(state(1), tmp_path / "x.ckpt", storage_options={"a": 1})
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(tmp_path / "x.ckpt")
    with monkeypatch.context() as patch:
        patch.setattr(recoding, "compress_checkpoint", raising(OSError(28, "No space left on device")))
        with pytest.warns(UserWarning, match="stays as it is.*No space left"):
            io.save_checkpoint(state(1), tmp_path / "1.ckpt")
    assert form_of(tmp_path / "1.ckpt") == Form(False)
    io.save_checkpoint(state(2), tmp_path / "2.ckpt")
    assert bases(tmp_path, ["1.ckpt", "2.ckpt"]) == ["2.ckpt", None]
    io.save_checkpoint(state(3), tmp_path / "other" / "2.ckpt")
    (tmp_path / "other" / "2.ckpt").replace(tmp_path / "2.ckpt")
    with pytest.raises(BaseMismatchError):
        io.load_checkpoint(tmp_path / "1.ckpt")


@pytest.mark.slow
def test_lightning_trains_with_it_and_resumes_with_equal_bits(tmp_path: Path) -> None:
    """In a process of its own: Lightning imports for seconds, and warns of much."""
    if find_spec("lightning") is None:
        pytest.skip("needs the package lightning")
    with Programs("tensorwire.torch") as programs:
        done = programs.run(textwrap.dedent(LIGHTNING), tmp_path, seconds=200)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "equal"), done.stderr
    assert bases(tmp_path / "run", ["epoch=2.ckpt", "epoch=3.ckpt", "last.ckpt"]) == ["epoch=3.ckpt", "last.ckpt", None]


LIGHTNING = """
    import sys, warnings
    warnings.simplefilter("ignore")
    import torch
    from tensorwire.torch.integrations.lightning import TensorwireCheckpointIO
    import lightning.pytorch as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"layers": 1})
            self.layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
        def training_step(self, batch, _):
            return self.layer(batch[0]).square().mean()
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = torch.utils.data.TensorDataset(torch.randn(8, 64, generator=torch.Generator().manual_seed(1)))
    def fit(folder, epochs, plugins, **options):
        torch.manual_seed(0)
        model = Model()
        saver = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, save_last=True)
        trainer = L.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[saver], plugins=plugins,
        )
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4), **options)
        return torch.cat([each.flatten() for each in model.parameters()]).detach().numpy().tobytes()

    def run(folder, *io):
        fit(folder, 2, list(io))
        torch.manual_seed(5)
        return fit(folder, 4, list(io), ckpt_path=f"{folder}/last.ckpt", weights_only=False)

    root = sys.argv[1]
    dense, ours = run(f"{root}/dense"), run(f"{root}/run", TensorwireCheckpointIO())
    print("equal" if dense == ours else "different")
"""
