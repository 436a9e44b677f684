"""Frames written on a device, and read there: pages, tensors, changes of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import tensorwire
from benchmarks.device.measure import LOAD_COLUMNS, WORD_NBYTES, load_of, same_bits
from benchmarks.device.runner import Row, Section
from benchmarks.device.splitzip import SplitZip
from tensorwire.torch.device import DevicePages, apply_, encode_into

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from benchmarks.device.measure import Bench

_TOKENS = (16, 64, 256)
_TOKEN_WORDS = 256  # keys of a layer of a model with 2 heads of 128, as tensor parallelism leaves them
_COUNTS = (1, 8, 64)
_SHAPE, _QUICK_SHAPE = (28672, 8192), (64, 512)
_CHANGED = 0.0185
OTHER = "SplitZip's scheme, ours"
INDEX_AND_VALUE = "index and value"
COPY = "copy of dense weights"


def _nothing() -> None:
    pass


class _Operation(NamedTuple):
    """What is timed.

    Attributes:
        right: whether its results were those that are wanted.
        ratio: of what it writes or reads.
        before: puts things back, and is not timed.
    """

    call: Callable[[int], Any]
    right: bool
    ratio: float
    before: Callable[[], Any] = _nothing


def run(bench: Bench) -> Generator[Row, None, None]:
    yield from _tensors(bench)
    bench.free()
    yield from _changes(bench)
    bench.free()
    for tokens in _TOKENS[:1] if bench.quick else _TOKENS:
        for count in _COUNTS[:1] if bench.quick else _COUNTS:
            yield from _pages(bench, tokens, count)
    bench.free()


def _timed(bench: Bench, operations: dict[str, _Operation], nbytes: int, what: Row) -> Generator[Row, None, None]:
    graphs = {name: bench.by_graph(each.call, 1, each.before) for name, each in operations.items() if each.right}
    seconds = bench.medians(graphs)
    for name, operation in operations.items():
        row: Row = {"what": name, **what, "ratio": operation.ratio}
        if not operation.right:
            yield {**row, "error": "other bits"}
            continue
        median = seconds[name]["median"]
        yield {**row, "microseconds": median * 1e6, "input": nbytes / median / 1e12, **load_of(seconds[name])}


def _pages(bench: Bench, tokens: int, count: int) -> Generator[Row, None, None]:
    words = tokens * _TOKEN_WORDS
    pool, ids = bench.weights(count, words, 1)[0], torch.arange(count, dtype=torch.int32, device=bench.device)
    pages, back = DevicePages(words), torch.zeros_like(pool)
    slots = torch.empty((count, pages.slot_nbytes), dtype=torch.uint8, device=bench.device)
    sizes = torch.empty(count, dtype=torch.int32, device=bench.device)
    status = torch.empty_like(sizes)
    pages.encode(pool, ids, slots, sizes)
    pages.decode(slots, back, ids, status)
    bench.settle()
    right = same_bits(pool, back) and bool((sizes == pages.frame_nbytes).all()) and not bool(status.any())
    nbytes = pool.nbytes
    ratio = words * WORD_NBYTES / pages.frame_nbytes
    operations = {
        "pages: encode": _Operation(lambda _: pages.encode(pool, ids, slots, sizes), right, ratio),
        "pages: decode": _Operation(lambda _: pages.decode(slots, back, ids, status), right, ratio),
        COPY: _Operation(lambda _: back.copy_(pool), True, 1.0),
    }
    yield from _timed(bench, operations, nbytes, {"shape": f"{tokens} tokens, {count} pages"})
    began = bench.by_calls(lambda _: SplitZip(pool), 1)  # which the host waits for, so no graph has it
    taken = bench.medians({OTHER: began})[OTHER]
    coded = SplitZip(pool)
    row = {"what": f"{OTHER}: encode", "shape": f"{tokens} tokens, {count} pages", "ratio": nbytes / coded.nbytes}
    yield {**row, "microseconds": taken["median"] * 1e6, "input": nbytes / taken["median"] / 1e12}


def _tensors(bench: Bench) -> Generator[Row, None, None]:
    shape = _QUICK_SHAPE if bench.quick else _SHAPE
    (weight,) = bench.weights(*shape, 1)
    operations: dict[str, _Operation] = {}
    for profile in ("resident", "fast"):
        slot, size = _slot(bench, weight, profile)
        hashes = torch.zeros((1, 16), dtype=torch.uint8, device=bench.device)
        encode_into([weight], [slot], size, profile=profile)
        nbytes = int(size)
        right, ratio = _is_right(slot[:nbytes], weight), weight.nbytes / max(nbytes, 1)
        operations[f"`{profile}`: encode"] = _Operation(
            lambda _, slot=slot, size=size, profile=profile: encode_into([weight], [slot], size, profile=profile),
            right,
            ratio,
        )
        if bench.device == "cuda":  # the core hashes what it reads
            encode_into([weight], [slot], size, profile=profile, hashes=hashes)
            operations[f"`{profile}`: encode, content hash known"] = _Operation(
                lambda _, slot=slot, size=size, profile=profile, hashes=hashes: encode_into(
                    [weight], [slot], size, profile=profile, hashes=hashes
                ),
                right,
                ratio,
            )
    copy = torch.empty_like(weight)
    operations[COPY] = _Operation(lambda _: copy.copy_(weight), True, 1.0)
    yield from _timed(bench, operations, weight.nbytes, {"shape": f"{shape[0]} x {shape[1]}"})


def _changes(bench: Bench) -> Generator[Row, None, None]:
    """As a step of training leaves them: few words changed, by few steps."""
    shape = _QUICK_SHAPE if bench.quick else _SHAPE
    (base,) = bench.weights(*shape, 1)
    generator = torch.Generator(bench.device).manual_seed(1)
    new = base.clone()
    chosen = torch.rand(shape, generator=generator, device=bench.device) < _CHANGED
    new.view(torch.int16)[chosen] += 1
    slot, size = _slot(bench, new, "fast")
    encode_into([new], [slot], size, profile="fast", base=[base])
    held, status = base.clone(), torch.empty(1, dtype=torch.int32, device=bench.device)
    apply_([slot], [held], status)
    right, ratio = same_bits(held, new) and int(status) == 0, new.nbytes / max(int(size), 1)

    def wire(_: int) -> Any:
        """What vLLM, verl and TRL send: 32 bits of place and 16 of value."""
        places = (new != base).flatten().nonzero()[:, 0].to(torch.int32)
        return places, new.flatten()[places]

    def put_back() -> None:
        held.copy_(base)

    operations = {
        "sparse: encode": _Operation(
            lambda _: encode_into([new], [slot], size, profile="fast", base=[base]), right, ratio
        ),
        "sparse: apply, checked": _Operation(lambda _: apply_([slot], [held], status), right, ratio, put_back),
        "sparse: apply": _Operation(lambda _: apply_([slot], [held], status, verify=False), right, ratio, put_back),
    }
    what = {"shape": f"{shape[0]} x {shape[1]}, {_CHANGED:.2%} changed"}
    yield from _timed(bench, operations, new.nbytes, what)
    taken = bench.medians({INDEX_AND_VALUE: bench.by_calls(wire, 1)})[INDEX_AND_VALUE]
    places, values = wire(0)
    row = {"what": f"{INDEX_AND_VALUE}: encode", **what, "ratio": new.nbytes / (places.nbytes + values.nbytes)}
    yield {**row, "microseconds": taken["median"] * 1e6, "input": new.nbytes / taken["median"] / 1e12}


def _slot(bench: Bench, tensor: torch.Tensor, profile: Any) -> tuple[torch.Tensor, torch.Tensor]:
    nbytes = tensorwire.compress_bound(dtype="BF16", shape=tuple(tensor.shape), profile=profile)
    return (
        torch.empty(nbytes, dtype=torch.uint8, device=bench.device),
        torch.empty(1, dtype=torch.int64, device=bench.device),
    )


def _is_right(frame: torch.Tensor, weight: torch.Tensor) -> bool:
    found = tensorwire.decompress(frame.cpu(), framework="pt")
    return same_bits(found, weight.cpu())


SECTION = Section(
    "writing",
    60,
    "How fast are frames written on the device, and read there?",
    "TB/s are those of the dense words that are encoded, or decoded, by replays of a graph. A page has its whole "
    "frame: header, index, block checksum and content hash, and a size that is known before. SplitZip's scheme, and "
    "what finds indices and values, make the host wait, so calls are timed there.",
    (
        ("what", "what", ""), ("of", "shape", ""), ("ratio", "ratio", ".3f"), ("µs", "microseconds", ".1f"),
        ("TB/s", "input", ".3f"), *LOAD_COLUMNS, ("error", "error", ""),
    ),
    run,
)  # fmt: skip
