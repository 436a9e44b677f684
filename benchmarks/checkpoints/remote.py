"""Files and distributed checkpoints in S3: requests and bytes, ours and others'."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed.checkpoint as dcp

import tensorwire
from benchmarks.data import minilm_path
from benchmarks.tables import Row, Table
from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter
from tests.support import s3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.s3 import Asked

SHARD_SHAPE, SHARD_TENSORS = (8832, 1536), 3
ROUNDS = 3
SHARD, MINILM = "a shard, BF16", "all-MiniLM-L6-v2, F32"
OURS, DENSE = "tensorwire", "safetensors"
OPEN, FIRST_ROW, ROW, ROWS = "open", "first row of a tensor", "another row", "100 rows"
LOAD, SAVE = "load all", "save"


def measure_files(quick: bool) -> list[Row]:
    with s3.running() as options, tempfile.TemporaryDirectory() as folder:
        return [
            row
            for name, weights in ((SHARD, _shard(quick)), (MINILM, _minilm()))
            for row in _file(name, weights, options, Path(folder), 1 if quick else ROUNDS)
        ]


def _minilm() -> dict[str, Any]:
    from safetensors.numpy import load_file

    return {name: array for name, array in load_file(minilm_path() / "model.safetensors").items() if array.ndim}


def _shard(quick: bool) -> dict[str, Any]:
    random = np.random.default_rng(0)
    rows, width = SHARD_SHAPE
    shape = (rows // 16 if quick else rows, width)
    return {
        f"layers.{index}.weight": (random.standard_normal(shape, np.float32) * 0.02).astype(ml_dtypes.bfloat16)
        for index in range(SHARD_TENSORS)
    }


def _file(name: str, weights: dict[str, Any], options: dict[str, Any], folder: Path, rounds: int) -> Iterator[Row]:
    """The same file compressed and dense, each in the store; rounds in turns."""
    from s3fs import S3FileSystem
    from safetensors.numpy import load_file, save_file

    store = S3FileSystem(**options)
    key = f"{s3.BUCKET}/{name.partition(',')[0].replace(' ', '-')}"
    ours, dense = f"s3://{key}.tw.safetensors", f"{key}.safetensors"
    local, copy = folder / "dense.safetensors", folder / "copy.safetensors"
    save_file(weights, local)
    tensor = max(weights, key=lambda each: weights[each].nbytes)
    found: dict[tuple[str, str], list[Asked]] = {}

    def count(who: str, what: str, work: Callable[[], Any]) -> Any:
        with s3.counted() as asked:
            answer = work()
        found.setdefault((who, what), []).append(asked)
        return answer

    def open_and_slice() -> None:
        reader = count(OURS, OPEN, lambda: tensorwire.open_file(ours, storage_options=options))
        with reader:
            for what, rows in ((FIRST_ROW, (100, 101)), (ROW, (500, 501)), (ROWS, (300, 400))):
                part = count(OURS, what, lambda rows=rows: reader.get_slice(tensor)[slice(*rows)])
                _check(part, weights[tensor][slice(*rows)])

    def load_dense() -> dict[str, Any]:
        store.get_file(dense, str(copy))
        return load_file(copy)

    for _ in range(rounds):
        count(OURS, SAVE, lambda: tensorwire.save_file(weights, ours, storage_options=options))
        count(DENSE, SAVE, lambda: store.put_file(str(local), dense))
        open_and_slice()
        count(DENSE, ROW, lambda: _row_by_open(store, dense, tensor))
        for who, load in (
            (OURS, lambda: tensorwire.load_file(ours, storage_options=options)),
            (DENSE, load_dense),
        ):
            for each, array in count(who, LOAD, load).items():
                _check(array, weights[each])
    store.invalidate_cache()
    sizes = {OURS: store.info(ours)["size"], DENSE: local.stat().st_size}
    for (who, what), asked in found.items():
        yield {"file": name, "with": who, "what": what, "size": sizes[who], **_figures(asked, sizes[who])}


def _row_by_open(store: Any, path: str, tensor: str) -> bytes:
    """A row of a dense file through a file object of fsspec, with its own cache: what most readers do."""
    with store.open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        facts = json.loads(file.read(length))[tensor]
        row = (facts["data_offsets"][1] - facts["data_offsets"][0]) // facts["shape"][0]
        file.seek(8 + length + facts["data_offsets"][0] + 500 * row)
        found: bytes = file.read(row)
        return found


def _check(found: Any, expected: Any) -> None:
    if found.tobytes() != expected.tobytes():
        raise AssertionError("other bytes came back")


def _figures(asked: list[Asked], size: int) -> Row:
    last = asked[-1]
    return {
        "requests": len(last.requests), "received": last.received, "sent": last.sent,
        "part": (last.received or last.sent) / size, "seconds": median(each.seconds for each in asked),
    }  # fmt: skip


def measure_checkpoints(quick: bool) -> list[Row]:
    """One rank saves the weights and states that look as AdamW's, and loads them."""
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

    state = _state(quick)
    nbytes = sum(each.nbytes for each in state.values())
    rows = []
    with s3.running() as options:
        for name, writer, reader in (
            ("TensorwireWriter", _with(TensorwireWriter, options), _with(TensorwireReader, options)),
            ("torch's FsspecWriter", lambda url: FsspecWriter(url, **options), lambda u: FsspecReader(u, **options)),
        ):
            url = f"s3://{s3.BUCKET}/{name.partition(' ')[0].replace(chr(39), '')}"
            with s3.counted() as saved:
                dcp.save(state, storage_writer=writer(url), no_dist=True)
            empty = {key: torch.zeros_like(each) for key, each in state.items()}
            with s3.counted() as loaded:
                dcp.load(empty, storage_reader=reader(url), no_dist=True)
            for key, each in state.items():
                _check(empty[key].view(torch.uint8).numpy(), each.view(torch.uint8).numpy())
            rows += [
                {"with": name, "what": what, **_figures([asked], nbytes)}
                for what, asked in ((SAVE, saved), (LOAD, loaded))
            ]
    return rows


def _with(make: Any, options: dict[str, Any]) -> Callable[[str], Any]:
    return lambda url: make(url, storage_options=options)


def _state(quick: bool) -> dict[str, torch.Tensor]:
    """Weights of the real model as BF16, and moments of normal gradients."""
    torch.manual_seed(0)
    state = {}
    for name, array in _minilm().items():
        if array.dtype != np.float32:
            continue
        weight = torch.from_numpy(array)
        if quick and weight.numel() > 1 << 16:
            continue
        gradient = torch.randn_like(weight) * 1e-3
        state |= {f"model.{name}": weight.bfloat16(), f"exp_avg.{name}": gradient.bfloat16()}
        state[f"exp_avg_sq.{name}"] = (gradient * gradient).bfloat16()
    return state


FILES = Table(
    "files",
    "Files in S3",
    f"{SHARD}: {SHARD_TENSORS} tensors {list(SHARD_SHAPE)} of normal numbers. {MINILM}: the real model. Each file is "
    "in the store compressed by tensorwire, and dense as safetensors, which fsspec's put_file and get_file copy; a row "
    "of it is read through fsspec's file object. Requests and bytes of objects are those of s3fs. The server is moto's "
    "on this machine: seconds have its work in them, and no network. The targets of opening are those of the shard: "
    "the header of the model's file does not fit into what is read at first, so it takes a request more.",
    (("file", "file", ""), ("with", "with", ""), ("what", "what", ""), ("bytes of the file", "size", ",d"),
     ("requests", "requests", "d"), ("bytes received", "received", ",d"), ("bytes sent", "sent", ",d"),
     ("of the file", "part", ".4f"), ("seconds", "seconds", ".3f")),
    measure_files,
)  # fmt: skip
CHECKPOINTS = Table(
    "checkpoints",
    "Distributed checkpoints in S3",
    "One rank saves the weights of all-MiniLM-L6-v2 as BF16, with moments of normal gradients, and loads them. Bytes "
    "as a part of those of the tensors.",
    (("with", "with", ""), ("what", "what", ""), ("requests", "requests", "d"), ("bytes received", "received", ",d"),
     ("bytes sent", "sent", ",d"), ("of the tensors", "part", ".4f"), ("seconds", "seconds", ".3f")),
    measure_checkpoints,
)  # fmt: skip
TABLES = (FILES, CHECKPOINTS)
