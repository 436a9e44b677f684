"""A job whose ranks save in processes of their own, go on training meanwhile, and load.

Under torchrun: -m tests.support.async_saves DIRECTORY. Rank 0 prints "same" if the loaded state is that of the time of
the save.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = distribute_tensor(whole.clone(), mesh, [Shard(0)])
    saving = dcp.async_save(
        {"weight": weight, "step": 7},
        storage_writer=TensorwireWriter(folder),
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )
    weight.to_local().zero_()  # training goes on
    saving.result()
    state = {"weight": weight, "step": 0}
    dcp.load(state, storage_reader=TensorwireReader(folder))
    same = torch.equal(weight.full_tensor().view(torch.int16), whole.view(torch.int16)) and state["step"] == 7
    if dist.get_rank() == 0:
        print("same" if same else "different")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
