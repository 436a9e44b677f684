"""Weights whose blocks stay in their files: the same bits, read ahead, and errors that say what happened."""

from __future__ import annotations

import copy
import ctypes
import errno
import fcntl
import io
import mmap
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch.nn.functional import embedding  # noqa: E402

from tensorwire.storage import direct  # noqa: E402
from tensorwire.torch import CompressedTensor, decode_ahead, memory_report, set_linear_mode  # noqa: E402
from tensorwire.torch.frames.blocks import FileBlocks  # noqa: E402
from tensorwire.torch.frames.open_frame import OpenFrame, opened  # noqa: E402
from tests.support.linear_models import NUM_LAYERS, WIDTH, chain, inputs, loaded, same, saved  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


@pytest.fixture(scope="module")
def reference() -> nn.Sequential:
    return chain()


@pytest.fixture(scope="module")
def file(reference: nn.Sequential, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(reference, tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture
def own_file(file: Path, tmp_path: Path) -> Path:
    """One that may be damaged."""
    (tmp_path / "model.safetensors").write_bytes(file.read_bytes())
    return tmp_path / "model.safetensors"


def frames_in_file(model: nn.Module) -> list[OpenFrame]:
    frames = [opened(p.frame) for p in model.parameters() if isinstance(p, CompressedTensor)]
    return [frame for frame in frames if not frame.blocks.in_memory]


@pytest.mark.parametrize("mode", ["exact", "fused"])
@pytest.mark.parametrize("cache", [False, True], ids=["direct", "page cache"])
def test_the_bits_are_the_same(
    reference: nn.Sequential, file: Path, mode: str, cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cache:
        monkeypatch.setattr(direct, "_open_directly", lambda number: None)
    model = set_linear_mode(loaded(file, resident_nbytes=0), mode)
    expected = set_linear_mode(loaded(file), mode) if mode == "fused" else reference
    assert len(frames_in_file(model)) == NUM_LAYERS
    for count in (1, 1, 3, 40, 1):
        assert same(model(inputs(count)), expected(inputs(count)))


def test_as_much_stays_in_memory_as_was_said(file: Path) -> None:
    frames = [p.frame.numel() for p in loaded(file).parameters()]
    in_file = []
    for share in (0, 1, 3, 6):
        nbytes = share * sum(frames) // 6
        model = loaded(file, resident_nbytes=nbytes)
        report = memory_report(model)
        in_file.append(len(frames_in_file(model)))
        headers = sum(frame.in_memory_nbytes for frame in frames_in_file(model))
        assert report.nbytes - headers <= nbytes
        assert headers < 0.01 * sum(frames)
    assert in_file == [6, 5, 3, 0]


def test_what_stays_in_files_is_spread_evenly(file: Path) -> None:
    """So that one is read while another one computes that need not be."""
    model = loaded(file, resident_nbytes=sum(p.frame.numel() for p in loaded(file).parameters()) * 11 // 20)
    in_file = [not opened(layer.weight.frame).blocks.in_memory for layer in model]
    assert in_file == [True, False] * 3


def test_from_the_second_pass_on_another_thread_reads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []
    own = threading.get_ident()
    read = FileBlocks.read

    def counted(blocks: FileBlocks, *arguments: Any) -> None:
        readers.append("caller" if threading.get_ident() == own else "thread")
        read(blocks, *arguments)

    monkeypatch.setattr(FileBlocks, "read", counted)
    model = loaded(file, resident_nbytes=0)
    reads = frames_in_file(model)[0].blocks._reads
    model(inputs())
    assert readers.count("caller") == NUM_LAYERS
    readers.clear()
    for _ in range(3):
        for layer in model:
            layer(inputs())
            while any(not entry.over and not entry.ready for entry in reads._entries):
                time.sleep(0.001)  # as a layer that computes for longer than the next one is read
    assert readers.count("caller") <= 1
    assert readers.count("thread") >= 3 * NUM_LAYERS - 1


def cached_share(path: Path) -> float:
    """How much of a file is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as opened_file, mmap.mmap(opened_file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        address = np.frombuffer(pages, np.uint8).ctypes.data
        found = (ctypes.c_ubyte * -(-len(pages) // mmap.PAGESIZE))()
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(pages)), found) == 0
        return sum(page & 1 for page in found) / len(found)


def forget(path: Path) -> None:
    """Have the page cache drop a file, where the file system is not itself in memory."""
    with path.open("rb") as opened_file:
        os.fsync(opened_file.fileno())
        os.posix_fadvise(opened_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def file_on_disk(file: Path, repository: Path) -> Iterator[Path]:
    """One that the page cache can drop: temporary files may lie in memory."""
    for place in (repository / "build", Path("/var/tmp")):
        if os.access(place, os.W_OK):
            with tempfile.TemporaryDirectory(dir=place) as folder:
                path = Path(folder) / "model.safetensors"
                path.write_bytes(file.read_bytes())
                forget(path)  # once before pages of it are mapped
                if cached_share(path) < 0.1:
                    yield path
                    return
    pytest.skip("build and /var/tmp are in memory")


@pytest.mark.parametrize("direct_reads", ["taken", "not opened", "refused"])
def test_the_page_cache_is_left_to_others(
    file_on_disk: Path, reference: nn.Sequential, direct_reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def refuse(number: int, buffers: Any, offset: int) -> int:
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return preadv(number, buffers, offset)

    if direct_reads == "not opened":
        monkeypatch.setattr(direct, "_open_directly", lambda number: None)
    elif direct_reads == "refused":
        monkeypatch.setattr(os, "preadv", refuse)
    model = loaded(file_on_disk, resident_nbytes=0)
    forget(file_on_disk)
    assert cached_share(file_on_disk) < 0.1
    for _ in range(3):
        assert same(model(inputs()), reference(inputs()))
    assert cached_share(file_on_disk) < 0.2


def test_rows_read_their_blocks_alone(file: Path, reference: nn.Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(file, resident_nbytes=0)
    monkeypatch.setattr(FileBlocks, "read", None)  # of whole frames
    weight = model[2].weight
    dense = reference[2].weight
    assert same(embedding(torch.tensor([5, 900]), weight), dense[[5, 900]])
    assert same(weight[10:12], dense[10:12])


def test_gradients_flow_through(file: Path, reference: nn.Sequential) -> None:
    model = loaded(file, resident_nbytes=0)
    found = []
    for layers in (reference, model):
        x = inputs(4).requires_grad_()
        layers(x).float().square().sum().backward()
        found.append(x.grad)
    assert same(*found)


def test_compiled(file: Path, reference: nn.Sequential) -> None:
    model = loaded(file, resident_nbytes=0)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for _ in range(3):
            assert same(compiled(inputs()), reference(inputs()))


def test_copies_and_pickles_hold_the_blocks(own_file: Path, reference: nn.Sequential) -> None:
    model = loaded(own_file, resident_nbytes=0)
    copies = [model[0].weight.clone(), copy.deepcopy(model)[0].weight, model[0].weight.to("cpu", copy=True)]
    pickled = io.BytesIO()
    torch.save(model[0].weight.data, pickled)
    assert len(pickled.getvalue()) < WIDTH * WIDTH * 2, "one frame, not the file"
    own_file.write_bytes(b"")
    pickled.seek(0)
    for twin in (*copies, torch.load(pickled, weights_only=True)):
        assert same(twin.decode(), reference[0].weight)


def test_several_threads(file: Path, reference: nn.Sequential) -> None:
    model = loaded(file, resident_nbytes=0)
    expected = reference(inputs())
    with ThreadPoolExecutor(3) as pool:
        assert all(same(found, expected) for found in pool.map(lambda _: model(inputs()), range(9)))


def test_with_decode_ahead(file: Path, reference: nn.Sequential) -> None:
    model = loaded(file, resident_nbytes=2_000_000)
    with decode_ahead(model) as handle:
        for _ in range(4):
            assert same(model(inputs()), reference(inputs()))
        assert all(frame.ahead is None for frame in frames_in_file(model)), "they are read ahead"
        assert len(handle._frames) == 1
