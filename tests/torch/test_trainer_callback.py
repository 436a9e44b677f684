"""Transformers' Trainer with `TensorwireCallback`: the same losses, kills, rotation, the best model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import tensorwire.torch  # noqa: E402
from tensorwire.checkpoint import compress_checkpoint  # noqa: E402
from tensorwire.torch.integrations import recoding  # noqa: E402
from tensorwire.torch.integrations.recoding import form_of  # noqa: E402
from tensorwire.torch.integrations.trainer import TensorwireCallback  # noqa: E402
from tests.support.acting import acting, raising  # noqa: E402
from tests.support.checkpoint_models import tree_hashes  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class Killed(BaseException):
    """Ends a training as a kill does: nothing catches it."""


class Losses(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.by_step: dict[int, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
        if "loss" in logs:
            self.by_step[state.global_step] = logs["loss"]


def arguments(root: Path, **options: Any) -> TrainingArguments:
    defaults = {
        "max_steps": 6, "save_steps": 1, "logging_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 1e-3,
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False,
    }  # fmt: skip
    return TrainingArguments(output_dir=str(root), **{**defaults, **options})


def trainer(root: Path, callback: TensorwireCallback | None = None, **options: Any) -> tuple[Trainer, dict[int, float]]:
    """A Trainer of a tiny model with dropout, whose random numbers count, and the losses of its steps."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, attention_dropout=0.1,
    )  # fmt: skip
    rows = torch.randint(0, 64, (16, 8), generator=torch.Generator().manual_seed(1)).tolist()
    data: Any = [{"input_ids": row, "labels": row} for row in rows]
    losses = Losses()
    callbacks = [losses] if callback is None else [losses, callback]
    made = Trainer(
        LlamaForCausalLM(config), arguments(root, **options), train_dataset=data, eval_dataset=data[:2],
        callbacks=callbacks,
    )  # fmt: skip
    return made, losses.by_step


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@torch_since(2, 6)  # with an older one Transformers reads no torch file
def test_a_killed_training_resumes_with_the_bits_of_the_dense_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense, expected = trainer(tmp_path / "dense")
    dense.train()
    callback = TensorwireCallback(anchor_every=3)
    first, before = trainer(tmp_path / "run", callback)
    verify = recoding.verify
    # In its third save, when checkpoint-3 is compressed and checkpoint-2 is not relative to it yet.
    turns = iter([verify, verify, verify, verify, raising(Killed)])
    with monkeypatch.context() as patch:
        patch.setattr(recoding, "verify", lambda *a, **o: next(turns)(*a, **o))
        with pytest.raises(Killed):
            first.train(resume_from_checkpoint=callback.restore())
    assert [form_of(tmp_path / "run" / f"checkpoint-{step}").base for step in (1, 2, 3)] == ["checkpoint-2", None, None]
    callback = TensorwireCallback(anchor_every=3)
    second, after = trainer(tmp_path / "run", callback)
    second.train(resume_from_checkpoint=callback.restore())
    assert {**before, **after} == expected
    assert sorted(before) == [1, 2, 3]
    assert sorted(after) == [4, 5, 6]
    for name, tensor in dense.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name].view(torch.int32), tensor.view(torch.int32))
    # All that Trainer wrote is there; what has no clock and no path in it is as the dense run wrote it.
    assert files(tmp_path / "run") == files(tmp_path / "dense") == [f"checkpoint-{step}" for step in range(1, 7)]
    for step in range(1, 7):
        callback.restore(tmp_path / "run" / f"checkpoint-{step}")
        ours, theirs = (tree_hashes(tmp_path / run / f"checkpoint-{step}") for run in ("run", "dense"))
        assert ours.keys() == theirs.keys()
        told = {"training_args.bin", "trainer_state.json"}
        assert {name for name in ours if ours[name] != theirs[name]} <= told


def test_it_says_how_it_is_set_in_a_line(tmp_path: Path) -> None:
    callback = TensorwireCallback("compact", anchor_every=3)
    assert repr(callback) == "<TensorwireCallback compact, anchor_every 3, not given to a Trainer>"
    callback.on_init_end(arguments(tmp_path), TrainerState(), TrainerControl())
    assert repr(callback) == f"<TensorwireCallback compact, anchor_every 3, {tmp_path}>"


def test_the_best_model_is_loaded_in_the_end(tmp_path: Path) -> None:
    options = {"max_steps": 3, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1}
    options |= {
        "metric_for_best_model": "loss",
        "greater_is_better": True,
        "save_total_limit": 2,
    }  # so the first is best
    dense, _ = trainer(tmp_path / "dense", **options)
    dense.train()
    compressed, _ = trainer(tmp_path / "run", TensorwireCallback(), **options)
    compressed.train()
    assert Path(compressed.state.best_model_checkpoint).name == Path(dense.state.best_model_checkpoint).name
    assert files(tmp_path / "run") == files(tmp_path / "dense")
    for name, tensor in dense.model.state_dict().items():
        assert torch.equal(compressed.model.state_dict()[name], tensor)
    assert all(form_of(path).compressed for path in (tmp_path / "run").iterdir())


@pytest.mark.slow
@torch_since(2, 6)  # as above
def test_after_install_trainer_reads_the_newest_as_it_is(tmp_path: Path) -> None:
    dense, expected = trainer(tmp_path / "dense")
    dense.train()
    first, before = trainer(tmp_path / "run", TensorwireCallback())
    with pytest.MonkeyPatch.context() as patch:
        acting(patch, Losses, "on_log", lambda *given, **_: kill_at(4, given[2]))
        with pytest.raises(Killed):
            first.train()
    assert form_of(tmp_path / "run" / "checkpoint-3") == (True, None)
    second, after = trainer(tmp_path / "run", TensorwireCallback())
    tensorwire.torch.install()
    try:
        second.train(resume_from_checkpoint=True)
    finally:
        tensorwire.torch.uninstall()
    assert {**before, **after} == expected
    assert sorted(after) == [4, 5, 6]


def kill_at(step: int, state: TrainerState) -> None:
    if state.global_step == step:
        raise Killed


def saved(root: Path, step: int) -> Path:
    """A checkpoint as Trainer leaves it, in small."""
    path = root / f"checkpoint-{step}"
    path.mkdir(parents=True)
    pytest.importorskip("safetensors.torch").save_file(
        {"w": torch.full((5000,), 1.0 + step)}, path / "model.safetensors"
    )
    (path / "trainer_state.json").write_text("{}")
    return path


def events(
    callback: TensorwireCallback, root: Path, **options: Any
) -> tuple[TrainingArguments, TrainerState, TrainerControl]:
    given = arguments(root, **options), TrainerState(), TrainerControl()
    callback.on_init_end(*given)
    return given


def test_the_best_is_dense_until_it_is_loaded(tmp_path: Path) -> None:
    """Trainer reads it itself. Its rotation keeps it while it removes newer ones."""
    callback = TensorwireCallback()
    given = events(callback, tmp_path, load_best_model_at_end=True, eval_strategy="steps", eval_steps=1, save_steps=1)
    state = given[1]
    for step in (1, 2, 3):
        path = saved(tmp_path, step)
        state.global_step = step
        state.best_model_checkpoint = str(tmp_path / "checkpoint-2" if step > 1 else path)
        callback.on_save(*given)
    found = [form_of(tmp_path / f"checkpoint-{step}") for step in (1, 2, 3)]
    assert [(form.compressed, form.base) for form in found] == [(True, "checkpoint-2"), (False, None), (True, None)]
    callback.on_train_end(*given)
    assert form_of(tmp_path / "checkpoint-2") == (True, None)
    callback.on_train_begin(*given)  # of a training that goes on
    assert form_of(tmp_path / "checkpoint-2") == (False, None)


@pytest.mark.slow
def test_rotation_by_the_trainer_takes_nothing_that_is_needed(tmp_path: Path) -> None:
    """As Trainer calls it: before the callback, by the times of directories, past the best one."""
    from transformers.trainer_utils import rotate_checkpoints

    callback = TensorwireCallback(anchor_every=4)
    given = events(callback, tmp_path, metric_for_best_model="loss")
    expected = {}
    for step in range(1, 11):
        path = saved(tmp_path, step)
        expected[path.name] = tree_hashes(path)
        given[1].best_model_checkpoint = str(tmp_path / f"checkpoint-{2 if step < 7 else 7}")
        if step > 1:
            rotate_checkpoints(str(tmp_path), 3, given[1].best_model_checkpoint, use_mtime=True)
        callback.on_save(*given)
        copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
        for name in files(copy):
            callback.restore(copy / name)
            assert tree_hashes(copy / name) == expected[name]
        shutil.rmtree(copy)
    assert files(tmp_path) == ["checkpoint-10", "checkpoint-7", "checkpoint-9"]


def test_training_does_not_write_over_compressed_checkpoints(tmp_path: Path) -> None:
    callback = TensorwireCallback()
    given = events(callback, tmp_path)
    compress_checkpoint(saved(tmp_path, 4), tmp_path / "packed")
    shutil.rmtree(tmp_path / "checkpoint-4")
    (tmp_path / "packed").rename(tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match=r"begins at step 0 and would write over .*checkpoint-4.*callback\.restore"):
        callback.on_train_begin(*given)
    given[1].global_step = 4
    callback.on_train_begin(*given)


def test_the_newest_that_was_saved_as_a_whole_is_restored(tmp_path: Path) -> None:
    callback = TensorwireCallback()
    with pytest.raises(RuntimeError, match="give the callback to a Trainer"):
        callback.restore()
    given = events(callback, tmp_path / "run")
    assert callback.restore() is None
    saved(tmp_path / "run", 9)
    saved(tmp_path / "run", 10)
    callback.on_save(*given)
    (tmp_path / "run" / "checkpoint-11").mkdir()  # what a kill leaves while Trainer saves
    (tmp_path / "run" / ".checkpoint-11.tensorwire.partial").mkdir()
    events(callback, tmp_path / "run")
    assert files(tmp_path / "run") == ["checkpoint-10", "checkpoint-11", "checkpoint-9"]
    assert callback.restore() == str(tmp_path / "run" / "checkpoint-10")
    assert [form_of(tmp_path / "run" / f"checkpoint-{step}").compressed for step in (9, 10)] == [True, False]


def test_a_checkpoint_that_cannot_be_compressed_stays_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = TensorwireCallback()
    given = events(callback, tmp_path)
    expected = tree_hashes(saved(tmp_path, 1))
    with monkeypatch.context() as patch:
        patch.setattr(recoding, "compress_checkpoint", raising(OSError(28, "No space left on device")))
        with pytest.warns(UserWarning, match="stays as it is.*No space left"):
            callback.on_save(*given)
    assert tree_hashes(tmp_path / "checkpoint-1") == expected
    callback.on_save(*given)
    assert form_of(tmp_path / "checkpoint-1").compressed


def test_only_one_process_compresses_and_the_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorwire.torch.integrations import trainer as module

    order: list[str] = []
    monkeypatch.setattr(module, "_wait", lambda: order.append("wait"))
    acting(monkeypatch, recoding.Recoder, "settle", lambda *_, **__: order.append("settle"))
    for is_writer, expected in ((True, ["wait", "settle", "wait"]), (False, ["wait", "wait"])):
        monkeypatch.setattr(TrainingArguments, "should_save", is_writer)
        callback = TensorwireCallback()
        given = events(callback, tmp_path)
        order.clear()
        callback.on_save(*given)
        assert order == expected


@pytest.mark.parametrize("strategy", ["checkpoint", "all_checkpoints"])
def test_uploads_of_checkpoints_are_refused_at_the_start(strategy: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"hub_strategy='{strategy}' uploads checkpoints while"):
        events(TensorwireCallback(), tmp_path, push_to_hub=True, hub_strategy=strategy)
    events(TensorwireCallback(), tmp_path, push_to_hub=True, hub_strategy="every_save")
