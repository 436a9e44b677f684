"""What recorders tell of collectives, against what the probe tells of those that it times."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from tensorwire_job.page import native  # noqa: E402
from tensorwire_job.page.recorder_entries import operation_info  # noqa: E402
from tensorwire_job.rank.operation_timing import _KINDS, _Describer  # noqa: E402
from tensorwire_job.service.recorder_pickle import read_pickle  # noqa: E402

OWN, OTHER = torch.ones(4), torch.empty(4)
CALLS = {
    "allreduce_": lambda: dist.all_reduce(OWN),
    "broadcast_": lambda: dist.broadcast(OWN, 0),
    "reduce_": lambda: dist.reduce(OWN, 0),
    "allgather_": lambda: dist.all_gather([OTHER], OWN),
    "_allgather_base_": lambda: dist.all_gather_into_tensor(OTHER, OWN),
    "alltoall_": lambda: dist.all_to_all([OTHER], [OWN]),
    "alltoall_base_": lambda: dist.all_to_all_single(OTHER, OWN),
    "gather_": lambda: dist.gather(OWN, [OTHER], 0),
    "scatter_": lambda: dist.scatter(OTHER, [OWN], 0),
    "barrier": dist.barrier,
}


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_timed_call_has_the_signature_of_the_recorder(name: str) -> None:
    CALLS[name]()
    entry = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(True, False))["entries"][-1]  # type: ignore[attr-defined]
    kind = _KINDS[name]
    described = _Describer(kind)
    dtype = described._dtypes[OWN.dtype]
    timed = described._make(dtype, OWN.numel(), OWN.nbytes, 0)
    assert operation_info(entry).signature == timed.signature


def test_the_function_that_made_an_all_reduce_changes_its_name_alone() -> None:
    """It is not known of all ranks, and what they called has to be compared all the same."""
    dist.all_reduce(OWN)
    entry = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(True, False))["entries"][-1]  # type: ignore[attr-defined]
    plain, named = operation_info(entry), operation_info(entry, function="reduce_scatter")
    assert native.OPERATIONS[named.operation] == "reduce_scatter"
    assert (plain.signature, plain.numel, plain.sequence) == (named.signature, named.numel, named.sequence)
    assert operation_info(entry, function="all_reduce").operation == plain.operation


def test_a_dump_is_read_without_python_as_python_reads_it() -> None:
    dist.all_reduce(OWN)
    data = torch._C._distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
    assert read_pickle(data)["entries"]
    assert read_pickle(data) == pickle.loads(data)
