"""A compressed tensor in the place of a dense one: the same bits, whatever is done with it."""

from __future__ import annotations

import copy
import io
import mmap
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import embedding, linear  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.torch import (  # noqa: E402
    CompressedTensor,
    compress_module,
    decompress_module,
    memory_report,
    set_linear_mode,
)
from tests.support.linear_models import same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
PROFILES = ["fast", "resident", "enec", "compact"]
ROWS, COLUMNS = 320, 256


def weights(dtype: Any = torch.bfloat16, rows: int = ROWS, columns: int = COLUMNS) -> Any:
    generator = torch.Generator().manual_seed(rows * columns)
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(dtype)


@pytest.fixture
def dense() -> Any:
    return weights()


@pytest.fixture
def compressed(dense: Any) -> CompressedTensor:
    return CompressedTensor.from_dense(dense)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_lives_compressed(dtype: Any, profile: Any) -> None:
    dense = weights(dtype)
    compressed = CompressedTensor.from_dense(dense, profile)
    assert (compressed.shape, compressed.dtype, compressed.device) == (dense.shape, dtype, dense.device)
    assert compressed.frame.numel() < dense.numel() * dense.element_size()
    assert same(compressed.decode(), dense)


def test_its_frame_is_a_frame_like_any_other(dense: Any, compressed: CompressedTensor) -> None:
    assert bytes(compressed.frame.numpy()) == tensorwire.compress(dense)
    assert same(CompressedTensor(compressed.frame).decode(), dense)


READS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda w: w[5:77],
    "a row": lambda w: w[7],
    "the last row": lambda w: w[-1],
    "no rows": lambda w: w[9:9],
    "all rows": lambda w: w[:],
    "a step": lambda w: w[1:99:7],
    "columns": lambda w: w[:, 3:9],
    "an element": lambda w: w[3, 4],
    "narrow": lambda w: w.narrow(0, 3, 4),
    "narrow columns": lambda w: w.narrow(1, 3, 4),
    "split": lambda w: torch.cat(w.split(100)[1:]),
    "split into other sizes": lambda w: torch.cat(w.split([200, 0, 20, 100])[::-1]),
    "split columns": lambda w: torch.cat(w.split(100, dim=-1)[1:], dim=1),
    "chunk": lambda w: w.chunk(3)[2],
    "unbind": lambda w: w.unbind()[11],
    "indices": lambda w: w[torch.tensor([1, 5, 5, -1])],
    "two-dimensional indices": lambda w: w[torch.tensor([[0, 1], [300, 2]])],
    "no indices": lambda w: w[torch.tensor([], dtype=torch.int64)],
    "a mask": lambda w: w[torch.arange(ROWS) % 3 == 0],
    "index_select": lambda w: w.index_select(0, torch.tensor([9, 2])),
    "transposed": lambda w: w.t(),
    "rows of the transpose": lambda w: w.t()[5:7],
    "transposed twice": lambda w: w.t().t() + 1,
    "a product with the transpose": lambda w: torch.ones(2, COLUMNS, dtype=w.dtype) @ w.t(),
    "with the transpose, added": lambda w: torch.addmm(torch.ones(2, 1).to(w), torch.ones(2, COLUMNS).to(w), w.t()),
    "the transpose, copied": lambda w: copy.deepcopy(w.t()),
    "the transpose, pickled": lambda w: pickle.loads(pickle.dumps(w.t())),
    "exported": lambda w: torch.from_dlpack(w),
    "the transpose, exported": lambda w: torch.from_dlpack(w.t()),
    "reshaped": lambda w: w.reshape(-1),
    "viewed": lambda w: w.view(2, -1),
    "added to": lambda w: w + 1,
    "negated": lambda w: -w,
    "converted": lambda w: w.to(torch.float32),
    "stacked": lambda w: torch.stack([w, w]),
    "a product": lambda w: torch.ones(2, ROWS, dtype=w.dtype) @ w,
    "copied from": lambda w: torch.empty(ROWS, COLUMNS, dtype=w.dtype).copy_(w),
}


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference_mode"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_give_the_bits_of_the_dense_tensor(
    dense: Any, compressed: CompressedTensor, read: Callable[[Any], Any], inference: bool
) -> None:
    with torch.inference_mode(inference):
        result = read(compressed)
        assert same(result.decode() if isinstance(result, CompressedTensor) else result, read(dense))


def test_the_transpose_stays_compressed(compressed: CompressedTensor) -> None:
    assert compressed.t().untyped_storage().nbytes() == 0


def test_parts_of_a_split_do_not_keep_the_whole(dense: Any, compressed: CompressedTensor) -> None:
    """As those of a fused projection, of which one is used for longer than the others."""
    for part in (*compressed.split(100), *compressed.split([300, 20])):
        assert part.untyped_storage().nbytes() == part.numel() * 2
    for sizes in (0, -1, [300, 21], [-20, 340], []):
        with pytest.raises(RuntimeError) as expected:
            dense.split(sizes)
        with pytest.raises(RuntimeError) as found:
            compressed.split(sizes)
        assert str(found.value) == str(expected.value)


def test_rows_decode_their_blocks_alone() -> None:
    """Damage in the last block is not met by who reads the first rows."""
    dense = weights(rows=1024)
    frame = bytearray(tensorwire.compress(dense))
    frame[-100] ^= 1
    damaged = CompressedTensor(torch.frombuffer(frame, dtype=torch.uint8))
    assert same(damaged[:64], dense[:64])
    assert same(embedding(torch.tensor([3, 60]), damaged), dense[[3, 60]])
    with pytest.raises(tensorwire.CorruptDataError, match="block"):
        damaged[-1:]


def test_it_is_frozen(compressed: CompressedTensor) -> None:
    assert not compressed.requires_grad
    with pytest.raises(ValueError, match="frozen"):
        CompressedTensor(compressed.frame, requires_grad=True)


def test_copies_stay_compressed(dense: Any, compressed: CompressedTensor) -> None:
    for copied in (compressed.detach(), compressed.clone(), copy.deepcopy(compressed), compressed.to("cpu", copy=True)):
        assert isinstance(copied, CompressedTensor)
        assert same(copied.decode(), dense)
    assert compressed.to("meta").shape == dense.shape
    parameter = copy.deepcopy(nn.Parameter(compressed, requires_grad=False))
    assert isinstance(parameter, nn.Parameter)
    assert isinstance(parameter, CompressedTensor)


def test_saved_and_loaded_with_weights_only(dense: Any, compressed: CompressedTensor) -> None:
    file = io.BytesIO()
    torch.save({"w": compressed}, file)
    assert len(file.getvalue()) < dense.numel() * 2
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["w"]
    assert isinstance(loaded, CompressedTensor)
    assert same(loaded.decode(), dense)


def test_a_module_is_moved_into_shared_memory(dense: Any, compressed: CompressedTensor) -> None:
    module = nn.Linear(COLUMNS, ROWS, bias=False)
    module.weight = nn.Parameter(compressed, requires_grad=False)
    before = module.weight.frame
    for _ in range(2):
        module.share_memory()
        assert module.weight.is_shared()
        assert module.weight.frame.is_shared()
    assert same(module.weight.decode(), dense)
    assert not before.is_shared()
    address = module.weight.frame.data_ptr()
    ForkingPickler(io.BytesIO()).dump(module.weight)
    assert module.weight.frame.data_ptr() == address, "what is shared is sent as it is"
    assert same(module.weight.decode(), dense)


MEMORY: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda w: w.numpy(),
    "tolist": lambda w: w.tolist(),
    "save_file": lambda w: tensorwire.save_file({"w": w}, "nowhere"),
}


@pytest.mark.parametrize("read", MEMORY.values(), ids=MEMORY)
def test_what_reads_memory_is_refused(
    compressed: CompressedTensor, read: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((RuntimeError, tensorwire.UnsupportedTensorError), match=r"subclasses|memory of its own"):
        read(compressed)


def test_operators_obey_the_rules_of_torch(dense: Any, compressed: CompressedTensor) -> None:
    """Schemas, fake kernels and gradients, by torch's own checker."""
    ops, frame, shape = torch.ops.tensorwire, compressed.frame, list(dense.shape)
    x = weights(rows=3).requires_grad_()
    bias = torch.ones(ROWS, dtype=dense.dtype, requires_grad=True)
    torch.library.opcheck(ops.decode.default, (frame, dense.dtype, shape))
    torch.library.opcheck(ops.decode.default, (frame, dense.dtype, [2, COLUMNS], 7 * COLUMNS))
    torch.library.opcheck(ops.decode.out, (frame,), {"out": torch.empty_like(dense)})
    torch.library.opcheck(ops.rows.default, (frame, dense.dtype, shape, torch.tensor([[1, 2], [3, 3]])))
    torch.library.opcheck(ops.table.default, (frame, dense.dtype, shape, torch.tensor([[1, 2], [3, 3]])))
    torch.library.opcheck(ops.linear.default, (x, frame, dense.dtype, shape, bias, "exact"))
    torch.library.opcheck(ops.linear.default, (x, frame, dense.dtype, shape, bias, "fused"))
    torch.library.opcheck(ops.linear.default, (x.detach(), frame, dense.dtype, shape, None, "fused"))


def test_a_mask_of_bytes_is_a_mask(dense: Any, compressed: CompressedTensor) -> None:
    mask = (torch.arange(ROWS) % 3 == 0).to(torch.uint8)
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8"):
        assert same(compressed[mask], dense[mask])


def test_a_table_takes_the_memory_of_its_rows() -> None:
    rows, columns = 1 << 15, 1 << 10
    dense = torch.ones(rows, columns).bfloat16()
    compressed = CompressedTensor.from_dense(dense)

    def resident_nbytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    indices = torch.tensor([[7, -1], [7, 8]])
    before = resident_nbytes()
    table = torch.ops.tensorwire.table(compressed.frame, dense.dtype, dense.shape, indices)
    assert resident_nbytes() - before < dense.nbytes // 4
    assert same(table[indices], dense[indices])
    assert torch.count_nonzero(table) == 3 * columns


@pytest.mark.parametrize("what", [b"bytes", torch.zeros(8, 8), torch.zeros(8, 8, dtype=torch.uint8), None])
def test_what_is_no_frame_is_told_how_to_become_one(what: Any) -> None:
    """And not that it is damaged."""
    with pytest.raises(tensorwire.UnsupportedTensorError, match=r"uint8 tensor of one dimension, got .*from_dense"):
        CompressedTensor(what)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.uint8])
def test_rows_have_whole_numbers(compressed: CompressedTensor, dtype: torch.dtype) -> None:
    """A model that was cast as a whole has rounded them: other rows would come without a word."""
    numbers = torch.ones(2).to(dtype)
    with pytest.raises(RuntimeError, match="xpected tensor for argument #1 'indices'"):
        torch.nn.functional.embedding(numbers, compressed)
    with pytest.raises(RuntimeError, match="xpected dtype int32 or int64"):
        compressed.index_select(0, numbers)
    with pytest.raises(IndexError, match="supposed to be a vector"):
        compressed.index_select(0, torch.tensor([[1]]))


def test_operators_refuse_what_is_not_the_frames(compressed: CompressedTensor) -> None:
    with pytest.raises(ValueError, match="expected elements within"):
        torch.ops.tensorwire.decode(compressed.frame, torch.float16, [1])
    with pytest.raises(ValueError, match="expected elements within"):
        torch.ops.tensorwire.decode(compressed.frame, torch.bfloat16, [2], ROWS * COLUMNS - 1)
    with pytest.raises(
        ValueError, match=r"expected contiguous memory on cpu to decode into, got strides \(2,\) on cpu"
    ):
        torch.ops.tensorwire.decode.out(compressed.frame, 0, out=torch.empty(8, dtype=torch.bfloat16)[::2])
    with pytest.raises(ValueError, match="exact, fused"):
        compressed.set_linear_mode("quick")
    with pytest.raises(tensorwire.FormatError):
        CompressedTensor(torch.zeros(1000, dtype=torch.uint8))


@pytest.mark.parametrize(
    "inputs", [(1, COLUMNS), (3, COLUMNS), (2, 5, COLUMNS), (40, COLUMNS), (COLUMNS,), (0, COLUMNS)]
)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_exact_linear_has_the_bits_of_torch(dtype: Any, bias: bool, inputs: tuple[int, ...]) -> None:
    for rows in (ROWS, 5000):  # 5000 rows are more than one slab
        dense = weights(dtype, rows, COLUMNS)
        x, b = torch.randn(inputs).to(dtype), torch.randn(rows).to(dtype) if bias else None
        assert same(linear(x, CompressedTensor.from_dense(dense), b), linear(x, dense, b))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1000, 1024), (77, 300), (3, 28672), (5, 1)])
def test_fused_linear_is_the_same_for_all_threads_and_inputs(shape: Any, dtype: Any, profile: Any) -> None:
    """Threads share the rows otherwise; eight inputs are multiplied together, then one by one."""
    compressed = CompressedTensor.from_dense(weights(dtype, *shape), profile, linear_mode="fused")
    x = torch.randn(8, shape[1]).to(dtype)
    fused = linear(x, compressed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert same(torch.stack([linear(row, compressed) for row in x]), fused)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("columns", [300, 1024, 4100])
def test_fused_linear_is_as_near_to_the_truth_as_torch(columns: int, dtype: Any) -> None:
    dense, x = weights(dtype, 1000, columns), torch.randn(4, columns).to(dtype)
    truth = x.double() @ dense.double().t()

    def error(y: Any) -> float:
        return float((y.double() - truth).square().mean().sqrt())

    fused = linear(x, CompressedTensor.from_dense(dense, linear_mode="fused"))
    assert error(fused) <= 1.02 * error(linear(x, dense))


def test_a_wrong_input_has_torchs_own_error(dense: Any, compressed: CompressedTensor) -> None:
    for x in (torch.ones(1, COLUMNS + 1, dtype=dense.dtype), torch.ones(1, COLUMNS)):
        with pytest.raises(RuntimeError) as expected:
            linear(x, dense)
        with pytest.raises(RuntimeError) as got:
            linear(x, compressed)
        assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference_mode"])
def test_a_use_in_another_dtype_compresses_nothing(inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast converts the weight at each use, and so do some models."""
    dense, x = weights(torch.float32), torch.randn(2, COLUMNS)
    compressed = CompressedTensor.from_dense(dense)
    monkeypatch.setattr("tensorwire.torch.frames.new_frame.compress", None)
    with torch.inference_mode(inference):
        with torch.autocast("cpu", torch.bfloat16):
            assert same(linear(x, compressed), linear(x, dense))
        assert same(linear(x.bfloat16(), compressed.bfloat16()), linear(x.bfloat16(), dense.bfloat16()))
        assert same(linear(x.half(), compressed.to(torch.float16)), linear(x.half(), dense.half()))


def test_what_was_converted_is_compressed_once_it_is_kept() -> None:
    dense = weights(torch.float32)
    compressed = CompressedTensor.from_dense(dense, "resident")
    converted = compressed.bfloat16()
    with torch.no_grad():
        compressed.copy_(dense * 2)
    parameter = nn.Parameter(converted)
    assert bytes(parameter.frame.numpy()) == tensorwire.compress(dense.bfloat16(), profile="resident")
    assert parameter.frame is converted.frame


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference_mode"])
@pytest.mark.parametrize("kind", ["nested", "jagged", "sparse"])
def test_an_input_of_another_layout(kind: str, inference: bool) -> None:
    layer = nn.Linear(COLUMNS, ROWS).requires_grad_(False)
    rows = torch.randn(5, COLUMNS)
    make: dict[str, Callable[[], Any]] = {
        "nested": lambda: torch.nested.nested_tensor([rows[:2], rows[2:]]),
        "jagged": lambda: torch.nested.nested_tensor([rows[:2], rows[2:]], layout=torch.jagged),
        "sparse": lambda: rows.to_sparse(),
    }
    with torch.inference_mode(inference):
        expected = layer(make[kind]())
        got = compress_module(copy.deepcopy(layer), min_numel=1)(make[kind]())
        assert got.layout == expected.layout
        assert same(*(torch.cat(t.unbind()) for t in (got, expected)))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(500, 256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    layers.append(nn.Linear(256, 500, bias=False))
    layers[4].weight = layers[0].weight  # tied
    return layers.to(torch.bfloat16)


IDS = torch.tensor([[1, 499, 7, 7]])


def test_a_module_stays_compressed_and_bit_identical() -> None:
    reference = model()
    compressed = compress_module(model(), min_numel=1000)
    weight = compressed[0].weight
    assert isinstance(weight, CompressedTensor)
    assert weight is compressed[4].weight
    assert same(compressed(IDS), reference(IDS))
    report = memory_report(compressed)
    assert report.dense_nbytes == sum(p.numel() * 2 for p in reference.parameters())
    assert report.nbytes == sum(
        p.frame.numel() if isinstance(p, CompressedTensor) else p.numel() * 2 for p in compressed.parameters()
    )
    assert report.ratio > 1.3
    assert "total" in str(report)
    set_linear_mode(compressed, "fused")
    assert torch.allclose(compressed(IDS), reference(IDS), rtol=0.05, atol=0.01)
    dense = decompress_module(compressed)
    assert dense[0].weight is dense[4].weight
    assert same(dense(IDS), reference(IDS))


def test_state_dicts_go_both_ways() -> None:
    reference, compressed = model(), compress_module(model(), min_numel=1000)
    state = compressed.state_dict()
    assert isinstance(state["1.weight"], CompressedTensor)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(2)
    compressed.load_state_dict(reference.state_dict())
    assert isinstance(compressed[1].weight, CompressedTensor)
    assert same(compressed(IDS), reference(IDS))
    reference.load_state_dict(state)
    compressed.load_state_dict(state)
    assert same(compressed(IDS), reference(IDS))
    with pytest.raises(RuntimeError, match="size mismatch"):
        nn.Linear(3, 3).load_state_dict({"weight": state["1.weight"], "bias": torch.zeros(3)})


@pytest.mark.parametrize("mode", [pytest.param("exact", marks=pytest.mark.slow), "fused"])
def test_compiled_in_one_graph(mode: str) -> None:
    compressed = set_linear_mode(compress_module(model(), min_numel=1000), mode)
    compiled = torch.compile(compressed, fullgraph=True, backend="aot_eager")
    assert same(compiled(IDS), compressed(IDS))
    with torch.no_grad():
        assert same(compiled(IDS), compressed(IDS))
