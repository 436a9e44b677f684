"""Compressed tensors in other processes: they have the same bits there, however they came and whoever has ended."""

from __future__ import annotations

import gc
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

from tensorwire.torch import CompressedTensor  # noqa: E402
from tensorwire.torch.frames.open_frame import sendable  # noqa: E402
from tests.support.linear_models import chain, loaded, same, saved  # noqa: E402
from tests.support.ranks import PRELOAD  # noqa: E402
from tests.support.sent_tensors import Rows, answer, bits  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("ranks")  # whose server is the one of this file
NUM_LAYERS = 2
STRATEGIES = ["file_descriptor", "file_system"]


@pytest.fixture(autouse=True, scope="module")
def _server_with_torch() -> None:
    """The one process from which the method "forkserver" forks imports torch once, for ranks too."""
    torch.multiprocessing.set_forkserver_preload(PRELOAD)


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.fixture(scope="module")
def dense() -> Any:
    return chain(num_layers=NUM_LAYERS)[1].weight.detach()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(chain(num_layers=NUM_LAYERS), tmp_path_factory.mktemp("weights") / "chain.safetensors")


def made(how: str, file: Path, dense: Any) -> CompressedTensor:
    if how == "in memory":
        return CompressedTensor.from_dense(dense)
    return loaded(file, NUM_LAYERS, resident_nbytes=0 if how == "streamed" else None)[1].weight.data


def answered(pipe: Connection) -> Any:
    assert pipe.poll(60), "the other process says nothing"
    return pipe.recv()


KINDS = ["in memory", "mapped", "streamed"]
OTHERS = [pytest.param("spawn", strategy, marks=pytest.mark.slow) for strategy in STRATEGIES]


@pytest.mark.parametrize(
    ("method", "strategy"), [*(("forkserver", strategy) for strategy in STRATEGIES), *OTHERS], indirect=["strategy"]
)
def test_it_is_sent_and_sent_back(method: str, strategy: str, file: Path, dense: Any) -> None:
    """By arguments, a queue and a pipe; several times; and in the end nobody but the other process has it."""
    expected = bits(dense)
    context = torch.multiprocessing.get_context(method)
    tensors: dict[str, Any] = {kind: made(kind, file, dense) for kind in KINDS}
    tensors["parameter"] = nn.Parameter(made("mapped", file, dense), requires_grad=False)
    tensors["dense"] = dense.clone()
    layers = [loaded(file, NUM_LAYERS, resident_nbytes=0)[1], loaded(file, NUM_LAYERS)[1].share_memory()]
    described = {name: (type(t).__name__, name == "parameter", expected) for name, t in tensors.items()}
    queue, back = context.Queue(), context.Queue()
    ours, theirs = context.Pipe()
    twice = {f"{name} again": tensor for name, tensor in tensors.items()}
    sent = {**tensors, **twice, "a module": layers[0], "a shared module": layers[1]}
    child = context.Process(target=answer, args=(sent, queue, back, theirs), daemon=True)
    by_queue, by_pipe = tensors["streamed"], tensors["mapped"]
    del tensors, twice, sent
    child.start()
    try:
        del layers
        gc.collect()
        ours.send("go on: the copies of this process are gone")
        found = answered(ours)
        for name, what in described.items():
            assert found[name] == found[f"{name} again"] == what
        assert found["a module"] == found["a shared module"] == ("CompressedTensor", True, expected)
        queue.put(by_queue)
        ours.send("go on")
        assert answered(ours) == described["streamed"]
        returned = [back.get(timeout=60), back.get(timeout=60)]
        ours.send("go on")
        ours.send(by_pipe)
        assert answered(ours) == described["mapped"]
        returned += [back.get(timeout=60), back.get(timeout=60)]
        for tensor in (by_queue, by_pipe, *returned):
            assert isinstance(tensor, CompressedTensor)
            assert bits(tensor) == expected
        ours.send("end")
        child.join(60)
        assert child.exitcode == 0
        assert all(bits(tensor) == expected for tensor in returned), "the sender is gone"
    finally:
        child.kill()
        child.join()


def test_a_message_that_nobody_holds_any_more(strategy: str, file: Path, dense: Any) -> None:
    """The process that it is for starts when its tensor is gone here."""
    context = torch.multiprocessing.get_context("forkserver")
    queue, back = context.Queue(), context.Queue()
    ours, theirs = context.Pipe()
    queue.put(made("in memory", file, dense))
    ours.send("go on")
    ours.send("go on")
    gc.collect()
    child = context.Process(target=answer, args=({}, queue, back, theirs), daemon=True)
    child.start()
    try:
        assert answered(ours) == {}
        assert answered(ours) == ("CompressedTensor", False, bits(dense))
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *zip(["forkserver", "forkserver", "fork"], KINDS, strict=True),
        pytest.param("spawn", "in memory", marks=pytest.mark.slow),
    ],
)
def test_workers_of_a_data_loader(method: str, kind: str, file: Path, dense: Any) -> None:
    dataset = Rows(made(kind, file, dense))
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
    for index, item in enumerate(loader):
        assert same(item["row"], dense[index])
        x = torch.full((1, dense.shape[1]), 0.5 + index, dtype=dense.dtype)
        assert same(item["product"], linear(x, dense))
        assert isinstance(item["weight"], CompressedTensor)
        assert same(item["weight"].decode(), dense)
    assert same(dataset.weight.decode(), dense)


def test_threads_that_send_it_at_once_send_the_same(strategy: str, dense: Any) -> None:
    """Else what one of them sends would be gone before it came."""
    frame = CompressedTensor.from_dense(dense).frame
    start = threading.Barrier(8)

    def send() -> Any:
        start.wait()
        return sendable(frame)

    with ThreadPoolExecutor(8) as pool:
        sent = [future.result() for future in [pool.submit(send) for _ in range(8)]]
    assert all(copy is sent[0] for copy in sent)
    assert sendable(sent[0]) is sent[0]


def test_another_strategy_moves_nothing_that_is_read(strategy: str, dense: Any) -> None:
    """Torch moves memory that it has shared in one way when it sends it in the other."""
    tensor = CompressedTensor.from_dense(dense).share_memory_()
    readers = [tensor.frame]
    for other in reversed(STRATEGIES):
        torch.multiprocessing.set_sharing_strategy(other)
        address = readers[-1].data_ptr()
        message = io.BytesIO()
        ForkingPickler(message).dump(tensor)
        received = ForkingPickler.loads(message.getvalue())
        assert same(received.decode(), dense)
        assert readers[-1].data_ptr() == address
        readers.append(tensor.frame)
    for frame in readers:
        assert same(CompressedTensor(frame).decode(), dense)
