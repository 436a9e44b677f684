"""A job of verl on CPUs, by verl's own manager, worker groups and rollout worker: `python verl_job.py STORE DIRECTORY`.

Two trainer ranks hold the shards of a model by FSDP2, and two replicas receive it. verl's own trainer needs a GPU, so
the trainer here has its methods alone, as in verl's tests; a replica takes note of what it is given. Prints the figures
of each update as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

import ray
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig

MODULE = "tensorwire.torch.integrations.verl"


class Trainer(Worker):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__()
        initialize_global_process_group_ray(backend="gloo")
        import_external_libs(config.custom_backend_module)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 33)).bfloat16()
        fully_shard(self.model, mesh=init_device_mesh("cpu", (self.world_size,)))
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend,
            is_master=self.rank == 0,
            bucket_size=config.update_weights_bucket_megabytes << 20,
            **config.engine_kwargs[config.backend],
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self) -> dict[str, Any]:
        for parameter in self.model.parameters():
            parameter.data.to_local()[:1] += 1
        return {name: shard.full_tensor().float().numpy() for name, shard in self.model.state_dict().items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        pairs = ((name, shard.full_tensor()) for name, shard in self.model.state_dict().items())
        return await self.checkpoint_engine.send_weights(pairs, global_steps=global_steps) or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)


class Server:
    """In the place of vLLM's or SGLang's."""

    replica_rank, is_leader_rank = 0, True

    async def update_weights(self, weights: Any, global_steps: int, wire_format: str) -> None:
        assert wire_format == "named_tensors"
        self.received = {name: tensor.float().numpy() async for name, tensor in weights}


class Rollout(CheckpointEngineWorker):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config, None, server_adapter=Server())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def received(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server_adapter.received
        return found


async def _nothing() -> None:
    """What a replica does around an update: it ends requests, and makes room."""


def replica(worker: Any) -> Any:
    calls = ("release_kv_cache", "resume_kv_cache", "resume_generation")
    return SimpleNamespace(
        workers=[worker], abort_all_requests=lambda reject_request: _nothing(), **dict.fromkeys(calls, _nothing)
    )


def workers(cls: type, num: int, config: Any) -> Any:
    made = RayClassWithInitArgs(cls=ray.remote(cls), config=config)
    pool = RayResourcePool([num], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=made, use_gpu=False)


async def main(store: str, directory: str) -> None:
    ray.init(num_cpus=4, include_dashboard=False)
    options = {"store": store, "directory": directory}
    config = CheckpointEngineConfig(
        backend="tensorwire", custom_backend_module=MODULE, engine_kwargs={"tensorwire": options}
    )
    trainer = workers(Trainer, 2, config)
    rollout = workers(Rollout, 2, RolloutConfig(name="vllm", checkpoint_engine=config))
    manager = CheckpointEngineManager(config, trainer, [replica(worker) for worker in rollout.workers])
    for step in range(3):
        wanted = trainer.step()[0]
        print(json.dumps(await manager.update_weights(global_steps=step)), flush=True)
        for received in rollout.received():
            assert received.keys() == wanted.keys()
            assert all((received[name] == array).all() for name, array in wanted.items())
    ray.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
