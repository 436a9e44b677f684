"""verl's checkpoint engine, with verl's own base class and registry. ``make verl`` has the environment for it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tensorwire

if TYPE_CHECKING:
    from torch import Tensor

safetensors_torch = pytest.importorskip("safetensors.torch")
base = pytest.importorskip("verl.checkpoint_engine.base", reason="verl is missing, which make verl installs apart")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tensorwire.torch.integrations.verl"

Weights = dict[str, torch.Tensor]


class Job:
    """The processes of a job as verl calls them, all in this one."""

    def __init__(self, root: Path, *, num_ranks: int = 2, num_rollouts: int = 2, **options: Any) -> None:
        given = {"store": root / "store", "directory": root / "directory", "timeout": 5.0, **options}
        trainer, rollouts = {**given}, {**given, "store": given.pop("rollouts", given["store"])}
        trainer.pop("rollouts", None), rollouts.pop("rollouts", None)
        self.directory = Path(rollouts["directory"])
        self.ranks = [engine(is_master=rank == 0, **trainer) for rank in range(num_ranks)]
        self.rollouts = [engine(**rollouts) for _ in range(num_rollouts)]
        self.figures: Any = None

    def prepare(self) -> None:
        every = [*self.ranks, *self.rollouts]
        metadata = [each.prepare() for each in every]
        topology = type(every[0]).build_topology(len(self.ranks), len(self.rollouts), metadata)
        for engines, calls in zip((self.ranks, self.rollouts), topology, strict=True):
            assert all(len(values) == len(engines) for values in calls.values())
            for number, each in enumerate(engines):
                each.init_process_group(**{name: values[number] for name, values in calls.items()})

    def update(self, weights: Weights, step: int = 0) -> list[Weights]:
        """What each rollout has received."""
        self.prepare()

        async def both() -> list[Any]:
            sent = [each.send_weights(iter(weights.items()), global_steps=step) for each in self.ranks]
            return await asyncio.gather(*sent, *(received(each, step) for each in self.rollouts))

        results = asyncio.run(both())
        for each in [*self.ranks, *self.rollouts]:
            each.finalize()
        self.figures, *others = results[: len(self.ranks)]
        assert others == [None] * len(others)
        return results[len(self.ranks) :]


def engine(**options: Any) -> Any:
    return base.CheckpointEngineRegistry.new("tensorwire", bucket_size=1 << 20, **options)


async def received(rollout: Any, step: int) -> Weights:
    return {name: tensor async for name, tensor in rollout.receive_weights(global_steps=step)}


def weights(change: float = 0) -> Weights:
    drawn = torch.Generator().manual_seed(0)
    found = {f"layers.{number}.weight": torch.randn(64, 96, generator=drawn).bfloat16() for number in range(3)}
    found["layers.0.weight"][0] += change
    return {**found, "norm": torch.ones(64), "steps": torch.tensor(7)}


def same(found: Weights, wanted: Weights) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in wanted.items()
    )


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    """As verl does it."""
    from verl.utils.import_utils import import_external_libs

    import_external_libs(MODULE)


def test_it_is_registered_with_all_that_the_base_class_asks_for(tmp_path: Path) -> None:
    cls = base.CheckpointEngineRegistry.get("tensorwire")
    assert issubclass(cls, base.CheckpointEngine)
    assert not cls.__abstractmethods__
    assert engine(store=tmp_path / "s", directory=tmp_path / "d").wire_format == "named_tensors"


def test_rollouts_have_the_weights_of_each_update_and_a_node_makes_them_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for step in range(3):
        new = weights(step)
        assert [same(each, new) for each in job.update(new, step)] == [True, True]
        assert job.figures["checkpoint_engine/anchor"] == (step == 0)
        assert job.figures["checkpoint_engine/changed_tensors"] == (1 if step else 5)
    assert job.figures["checkpoint_engine/payload_mbytes"] < 0.01
    assert len([each for each in (job.directory / ".tensorwire-sync").iterdir() if each.name[0] == "v"]) <= 2
    assert same(dict(tensorwire.load_file(job.directory, framework="pt")), new)


def test_an_update_without_a_change_gives_all_weights_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.update(weights())
    assert all(same(each, weights()) for each in job.update(weights()))
    assert job.figures["checkpoint_engine/changed_tensors"] == 0


def test_floating_tensors_are_cast_where_that_is_asked_for(tmp_path: Path) -> None:
    masters = {"weight": torch.randn(32, 33), "steps": torch.tensor([1, 2])}
    found = Job(tmp_path, rollout_dtype="bfloat16").update(masters)[0]
    assert same(found, {"weight": masters["weight"].bfloat16(), "steps": masters["steps"]})


@pytest.mark.parametrize("given", ["int32", "bf16", "nn", torch.int8])
def test_a_dtype_that_is_none_of_floats_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ValueError, match="a floating dtype as rollout_dtype, such as 'bfloat16'"):
        engine(store=tmp_path / "s", directory=tmp_path / "d", rollout_dtype=given)


def test_tensors_may_need_grad_and_lie_in_any_order(tmp_path: Path) -> None:
    given = {"a": torch.nn.Parameter(torch.randn(4, 6)), "b": torch.randn(6, 4).T, "c": torch.empty(0, 3)}
    assert same(Job(tmp_path).update(given)[0], {name: each.detach() for name, each in given.items()})


def test_a_rollout_that_stops_in_the_middle_is_whole_after_the_next_update(tmp_path: Path) -> None:
    job = Job(tmp_path, num_rollouts=1)
    job.update(weights())
    job.prepare()

    async def half() -> None:
        await job.ranks[0].send_weights(iter(weights(1).items()))
        pairs = job.rollouts[0].receive_weights()
        await anext(pairs)
        await pairs.aclose()

    asyncio.run(half())
    assert same(job.update(weights(1))[0], weights(1))


def test_a_rollout_that_comes_late_gets_all(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for change in range(3):
        job.update(weights(change))
    job.rollouts.append(engine(store=tmp_path / "store", directory=tmp_path / "another node"))
    assert all(same(each, weights(3)) for each in job.update(weights(3)))


def test_a_trainer_that_fails_in_the_middle_lets_other_ranks_end_and_sends_all_next(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.update(weights())
    job.prepare()
    gathered: list[str] = []

    def pairs() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in [("norm", torch.ones(64)), *weights(1).items(), ("last", torch.ones(1))]:
            gathered.append(name)
            yield name, tensor

    with pytest.raises(ValueError, match="norm"):
        asyncio.run(job.ranks[0].send_weights(pairs()))
    assert gathered[-2:] == ["steps", "last"]
    assert same(dict(tensorwire.load_file(job.directory, framework="pt")), weights())
    assert all(same(each, weights(1)) for each in job.update(weights(1)))
    assert job.figures["checkpoint_engine/anchor"]


def test_a_trainer_that_begins_anew_goes_on_behind_what_it_has_sent_whatever_its_step(tmp_path: Path) -> None:
    Job(tmp_path).update(weights(), step=40)
    again = Job(tmp_path)
    assert all(same(each, weights(1)) for each in again.update(weights(1), step=3))
    assert not again.figures["checkpoint_engine/anchor"]


def test_a_directory_of_another_run_becomes_that_of_this_one(tmp_path: Path) -> None:
    Job(tmp_path, store=tmp_path / "run 1").update({**weights(2), "gone": torch.ones(3)})
    assert all(same(each, weights()) for each in Job(tmp_path, store=tmp_path / "run 2").update(weights()))


def test_a_store_that_is_not_the_trainers_gives_no_weights(tmp_path: Path) -> None:
    Job(tmp_path, store=tmp_path / "other", directory=tmp_path / "other node").update(weights(5))
    job = Job(tmp_path)
    job.update(weights())
    job = Job(tmp_path, rollouts=tmp_path / "other", timeout=0.2)
    with pytest.raises(TimeoutError, match="does not have the trainer's store under that name"):
        job.update(weights(1))
    assert same(dict(tensorwire.load_file(job.directory, framework="pt")), weights())


def test_a_worker_that_hangs_with_the_lock_is_named(tmp_path: Path) -> None:
    """Another worker of the node holds the lock while this one's time runs out."""
    job = Job(tmp_path, num_rollouts=1, timeout=0.2)
    job.prepare()
    asyncio.run(job.ranks[0].send_weights(iter(weights().items())))
    job.directory.mkdir(parents=True)
    with (job.directory / ".tensorwire-verl").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="another worker of this node has held"):
            asyncio.run(received(job.rollouts[0], 1))


def test_a_damaged_version_leaves_the_weights_of_before(tmp_path: Path) -> None:
    job = Job(tmp_path, num_rollouts=1)
    job.update(weights())
    job.prepare()
    asyncio.run(job.ranks[0].send_weights(iter(weights(1).items())))
    damage(max((tmp_path / "store").glob("weight_v*")))
    with pytest.raises(tensorwire.FormatError):
        asyncio.run(received(job.rollouts[0], 1))
    assert same(dict(tensorwire.load_file(job.directory, framework="pt")), weights())


def damage(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)


def test_calls_out_of_order_say_what_is_missing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.update(weights())
    with pytest.raises(RuntimeError, match="expected init_process_group before"):
        asyncio.run(job.ranks[0].send_weights(iter(())))
    with pytest.raises(RuntimeError, match="expected init_process_group before"):
        asyncio.run(received(job.rollouts[0], 1))
    with pytest.raises(ValueError, match="expected is_master=True on rank 0 of the trainer"):
        type(job.ranks[0]).build_topology(1, 1, [{}, {}])


def test_a_directory_with_another_checkpoint_is_left_alone(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.directory.mkdir()
    safetensors_torch.save_file({"mine": torch.ones(3)}, job.directory / "model.safetensors")
    with pytest.raises(FileExistsError, match="name another directory"):
        job.update(weights())
    assert list(tensorwire.load_file(job.directory, framework="pt")) == ["mine"]


def test_the_directory_may_be_removed_between_updates(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.update(weights())
    shutil.rmtree(job.directory)
    assert all(same(each, weights(1)) for each in job.update(weights(1)))


def test_verls_own_workers_call_it_so(tmp_path: Path) -> None:
    """`update_weights` of verl's trainer and of its rollout worker, without the GPU that their constructors need."""
    from verl.workers.engine_workers import ActorRolloutRefWorker

    job = Job(tmp_path, num_ranks=1, num_rollouts=1)
    job.prepare()
    trainer = ActorRolloutRefWorker.__new__(ActorRolloutRefWorker)
    trainer.config = SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=SimpleNamespace(backend="tensorwire")))
    trainer.actor = SimpleNamespace(engine=SimpleNamespace(get_per_tensor_param=lambda: (weights().items(), None)))
    trainer.checkpoint_engine = job.ranks[0]
    sent = asyncio.run(unwrapped(ActorRolloutRefWorker.update_weights)(trainer, global_steps=17))
    assert sent["checkpoint_engine/anchor"] == 1

    server = Server()
    rollout = base.CheckpointEngineWorker.__new__(base.CheckpointEngineWorker)
    rollout.checkpoint_engine, rollout.server_adapter = job.rollouts[0], server
    asyncio.run(unwrapped(base.CheckpointEngineWorker.update_weights)(rollout, global_steps=17))
    assert same(server.found, weights())


class Server:
    """In the place of vLLM's or SGLang's."""

    async def update_weights(self, pairs: Any, global_steps: int, wire_format: str) -> None:
        assert (global_steps, wire_format) == (17, "named_tensors")
        self.found = {name: tensor async for name, tensor in pairs}


def unwrapped(method: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = method.__wrapped__
    return found


def test_a_job_of_ray_with_verls_manager_and_worker_groups(tmp_path: Path) -> None:
    """Two ranks that hold shards, two replicas, three updates; the job compares the bits."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "verl_job.py")]
    places = [str(tmp_path / name) for name in ("store", "directory")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RAY_DEDUP_LOGS": "0"}
    done = subprocess.run(
        [*command, *places], capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [each["checkpoint_engine/anchor"] for each in figures] == [1, 0, 0]


def test_the_file_that_is_locked_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "another's").write_text("content")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / ".tensorwire-verl").symlink_to(tmp_path / "another's")
    with pytest.raises(OSError, match="symbolic links"):
        Job(tmp_path, num_rollouts=1).update(weights())
    assert (tmp_path / "another's").read_text() == "content"
