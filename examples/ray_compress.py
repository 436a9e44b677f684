"""A checkpoint that is compressed on a Ray cluster, a task for each file of tensors, while one of two nodes goes away.

Then a training under Ray Train whose checkpoint is compressed while it is uploaded:

    python examples/ray_compress.py

It starts both nodes on this machine, and needs ray[train], torch, fsspec and safetensors. The exit code is 1 if the
result has other bytes than one process gives.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import ray
import ray.train
from ray.cluster_utils import Cluster
from ray.train.torch import TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from safetensors.numpy import save_file

import tensorwire

NUM_SHARDS, SHAPE = 12, (1024, 4096)


@ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=[BlockingIOError])
def compress_part(src: str, dst: str, file: str) -> str:
    """One file of tensors. Ray runs it again if its node goes away; another run may then still hold the part."""
    tensorwire.compress_checkpoint(src, dst, files=[file], threads=1)
    return str(ray.get_runtime_context().get_node_id())


@ray.remote(num_cpus=1)
def noop() -> None:
    """Start a worker."""


def compress_on_cluster(
    src: str, dst: str, progress: Callable[[int, int, str], object]
) -> tensorwire.checkpoint.CheckpointReport:
    """`src` and `dst` are paths on a file system that all nodes share; `src` may be a URL.

    `progress` is called with the number of parts that are done and of all, and with the node that made the last one.
    """
    store, root = fsspec.url_to_fs(src)
    files = [path[len(root) + 1 :] for path in store.find(root) if path.endswith(".safetensors")]
    waiting = [compress_part.remote(src, dst, file) for file in files]
    while waiting:
        done, waiting = ray.wait(waiting)
        progress(len(files) - len(waiting), len(files), ray.get(done[0]))
    return tensorwire.compress_checkpoint(src, dst)


def upload_compressed(checkpoint: ray.train.Checkpoint, name: str, *, run: str) -> ray.train.Checkpoint:
    """A `checkpoint_upload_fn` of Ray Train, for the one worker that reports a checkpoint.

    `run` is the path or URL of the run: the `storage_path` and the `name` of its RunConfig.
    """
    place = f"{run}/{name}"
    with checkpoint.as_directory() as directory:
        tensorwire.compress_checkpoint(directory, place)
    return ray.train.Checkpoint(place)


def train(config: dict[str, Any]) -> None:
    """A step that writes a checkpoint, which Ray Train uploads."""
    with tempfile.TemporaryDirectory() as directory:
        save_file({"weight": weights(0)}, Path(directory, "model.safetensors"))
        checkpoint = ray.train.Checkpoint.from_directory(directory)
        upload = partial(upload_compressed, run=config["run"])
        ray.train.report({"loss": 0.5}, checkpoint=checkpoint, checkpoint_upload_fn=upload)


def weights(seed: int) -> np.ndarray[Any, np.dtype[np.float16]]:
    return np.random.default_rng(seed).normal(0, 0.02, SHAPE).astype(np.float16)


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def main(folder: Path) -> bool:
    model, whole = folder / "model", folder / "whole"
    model.mkdir()
    for shard in range(NUM_SHARDS):
        save_file({f"layer.{shard}": weights(shard)}, model / f"model-{shard:05}.safetensors")
    (model / "config.json").write_text('{"model_type": "llama"}')
    tensorwire.compress_checkpoint(model, whole)

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    going = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

    for node in ray.nodes():  # both have a worker before the work begins
        ray.get(noop.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote())

    def progress(done: int, total: int, node: str) -> None:
        print(f"{done} of {total} parts, the last one on node {node[:6]}", flush=True)
        if node == going.node_id and going in cluster.worker_nodes:
            print(f"node {node[:6]} is removed", flush=True)
            cluster.remove_node(going, allow_graceful=False)

    report = compress_on_cluster(str(model), str(folder / "parts"), progress)
    print(f"adopted: {sum(file.resumed for file in report.files)} of {NUM_SHARDS} files of tensors")
    same = contents(folder / "parts") == contents(whole)

    storage = ray.train.RunConfig(storage_path=str(folder), name="run")
    trainer = TorchTrainer(
        train,
        train_loop_config={"run": str(folder / "run")},
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=storage,
    )
    saved = trainer.fit().checkpoint.path
    print(f"Ray Train uploaded {saved}, ratio {tensorwire.inspect(saved).ratio:.3f}")
    same = same and np.array_equal(tensorwire.load_file(saved)["weight"].view(np.uint16), weights(0).view(np.uint16))
    ray.shutdown()
    cluster.shutdown()
    return same


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        is_same = main(Path(place))
    print(f"bit-identical: {'yes' if is_same else 'no'}")
    sys.exit(not is_same)
