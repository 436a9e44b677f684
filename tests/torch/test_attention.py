"""Torch's attention modules, whose fast path has other bits than the slow one: the compressed model takes the same."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tensorwire.torch import CompressedTensor, compress_module, decode_ahead  # noqa: E402
from tests.support.linear_models import same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")

WIDTH, HEADS, LENGTH, BATCH = 64, 4, 7, 3
LENGTHS = torch.tensor([[7], [4], [2]])
PADDING = torch.arange(LENGTH) >= LENGTHS
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


CONTEXTS: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast switched off": lambda: torch.autocast("cpu", torch.bfloat16, enabled=False),
}


def pair(make: Callable[[], Any], dtype: Any = torch.float32) -> tuple[Any, Any]:
    """The dense frozen model and the compressed one."""
    torch.manual_seed(0)
    dense = make().to(dtype).eval().requires_grad_(False)
    compressed = compress_module(copy.deepcopy(dense), min_numel=1)
    assert sum(isinstance(p, CompressedTensor) for p in compressed.parameters()) >= 2
    return dense, compressed


def sequence(dtype: Any = torch.float32, length: int = LENGTH) -> Any:
    return torch.randn(BATCH, length, WIDTH, generator=torch.Generator().manual_seed(length)).to(dtype)


def all_same(ours: Any, theirs: Any) -> bool:
    if theirs is None or isinstance(theirs, str):
        return bool(ours == theirs)
    if isinstance(theirs, torch.Tensor):
        return bool(same(*(t.to_padded_tensor(0.0) if t.is_nested else t for t in (ours, theirs))))
    return all(all_same(*both) for both in zip(ours, theirs, strict=True))


def outcome(model: Any, *arguments: Any, **masks: Any) -> Any:
    """What it returns, or torch's words for what it refuses: under autocast its fast path does not take all dtypes."""
    try:
        return model(*arguments, **masks)
    except (AssertionError, RuntimeError) as error:
        if not torch.is_autocast_enabled("cpu"):
            raise
        return str(error)


def encoder_layer(**options: Any) -> Any:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 96, **{"batch_first": True, **options})


LAYERS: dict[str, Callable[[], Any]] = {
    "plain": encoder_layer,
    "gelu": lambda: encoder_layer(activation="gelu"),
    "norm first": lambda: encoder_layer(norm_first=True),
    "slow: no bias": lambda: encoder_layer(bias=False),
    "slow: batch second": lambda: encoder_layer(batch_first=False),
    "slow: another activation": lambda: encoder_layer(activation=torch.tanh),
}
MASKS: dict[str, dict[str, Any]] = {
    "no mask": {},
    "padding": {"src_key_padding_mask": PADDING},
    "padding of numbers": {"src_key_padding_mask": torch.zeros(BATCH, LENGTH).masked_fill(PADDING, -torch.inf)},
    "causal": {"src_mask": CAUSAL},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_an_encoder_layer_has_the_bits_of_the_dense_one(make: Any, masks: Any) -> None:
    dense, compressed = pair(make)
    x = sequence() if dense.self_attn.batch_first else sequence().transpose(0, 1)
    for name, context in CONTEXTS.items():
        with context():
            assert all_same(outcome(compressed, x, **masks), outcome(dense, x, **masks)), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("nested", [False, True], ids=["padded", "nested"])
def test_an_encoder_has_the_bits_of_the_dense_one(nested: bool, dtype: Any) -> None:
    """With nested tensors inside, as by default, the dense one zeroes what is padding."""
    dense, compressed = pair(lambda: nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=nested), dtype)
    x = sequence(dtype)
    for name, context in CONTEXTS.items():
        with context():
            expected = outcome(dense, x, src_key_padding_mask=PADDING)
            assert all_same(outcome(compressed, x, src_key_padding_mask=PADDING), expected), name
            if not torch.is_autocast_enabled("cpu"):
                assert expected[PADDING].any() != nested


def test_an_encoder_whose_weights_may_be_trained_takes_the_slow_path_as_the_dense_one() -> None:
    """A gradient by a bias or a norm, which are left dense, is wanted."""
    torch.manual_seed(0)
    dense = nn.TransformerEncoder(encoder_layer(), 2).eval()
    compressed = compress_module(copy.deepcopy(dense), min_numel=1000)
    for parameter in dense.parameters():  # torch multiplies by a weight that is to be trained in another way
        parameter.requires_grad_(parameter.numel() < 1000)
    x = sequence()
    expected, ours = dense(x, src_key_padding_mask=PADDING), compressed(x, src_key_padding_mask=PADDING)
    assert expected[PADDING].all()
    assert same(ours, expected)
    expected.square().sum().backward()
    ours.square().sum().backward()
    for theirs, mine in zip(dense.parameters(), compressed.parameters(), strict=True):
        assert isinstance(mine, CompressedTensor) or same(mine.grad, theirs.grad)


@pytest.mark.parametrize("mode", ["exact", "fused"])
def test_the_fast_path_needs_the_dense_weights_in_every_mode(mode: str) -> None:
    dense, compressed = pair(lambda: nn.TransformerEncoder(encoder_layer(), 2))
    for parameter in compressed.parameters():
        if isinstance(parameter, CompressedTensor):
            parameter.set_linear_mode(mode)
    with torch.no_grad(), decode_ahead(compressed):
        for _ in range(3):
            assert same(compressed(sequence()), dense(sequence()))


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_nested_input(dtype: Any, context: Any) -> None:
    dense, compressed = pair(encoder_layer, dtype)
    x = torch.nested.nested_tensor([row[: int(length)] for row, length in zip(sequence(dtype), LENGTHS, strict=True)])
    with context():
        assert all_same(outcome(compressed, x), outcome(dense, x))


ATTENTIONS: dict[str, dict[str, Any]] = {
    "batch first": {"batch_first": True},
    "batch second": {},
    "no bias": {"batch_first": True, "bias": False},
    "biases of keys and values": {"batch_first": True, "add_bias_kv": True},
    "zero attention": {"batch_first": True, "add_zero_attn": True},
    "odd heads": {"batch_first": True, "num_heads": 1},
}
CALLS: dict[str, dict[str, Any]] = {
    "weights": {},
    "no weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "padding": {"key_padding_mask": PADDING},
    "padding, no weights": {"key_padding_mask": PADDING, "need_weights": False},
    "mask": {"attn_mask": CAUSAL},
    "mask of numbers": {"attn_mask": torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, -torch.inf)},
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("options", ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention_has_the_bits_of_the_dense_one(options: Any, call: Any) -> None:
    dense, compressed = pair(lambda: nn.MultiheadAttention(WIDTH, **{"num_heads": HEADS, **options}))
    x = sequence() if dense.batch_first else sequence().transpose(0, 1).contiguous()
    for name, context in CONTEXTS.items():
        with context():
            assert all_same(compressed(x, x, x, **call), dense(x, x, x, **call)), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [{}, {"kdim": 32, "vdim": 48}], ids=["", "sizes of their own"])
def test_attention_to_another_sequence(sizes: Any, dtype: Any) -> None:
    dense, compressed = pair(lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **sizes), dtype)
    x, memory = sequence(dtype), sequence(dtype, 5)
    key, value = memory[..., : sizes.get("kdim", WIDTH)], memory[..., : sizes.get("vdim", WIDTH)]
    for name, context in CONTEXTS.items():
        with context():
            assert all_same(compressed(x, key, value), dense(x, key, value)), name
            assert all_same(compressed(x[0], key[0], value[0]), dense(x[0], key[0], value[0])), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_transformer_with_both_halves(training: bool, dtype: Any) -> None:
    dense, compressed = pair(lambda: nn.Transformer(WIDTH, HEADS, 2, 2, 96, dropout=0.0, batch_first=True), dtype)
    x, target = sequence(dtype), sequence(dtype, 5)
    masks = {
        "src_key_padding_mask": PADDING,
        "memory_key_padding_mask": PADDING,
        "tgt_mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
    }
    for name, context in CONTEXTS.items():
        with context():
            expected = outcome(dense.train(training), x, target, **masks)
            assert all_same(outcome(compressed.train(training), x, target, **masks), expected), name


def test_the_fast_path_can_be_switched_off_for_both() -> None:
    dense, compressed = pair(lambda: nn.TransformerEncoder(encoder_layer(), 2))
    fast = dense(sequence(), src_key_padding_mask=PADDING)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        slow = dense(sequence(), src_key_padding_mask=PADDING)
        assert same(compressed(sequence(), src_key_padding_mask=PADDING), slow)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert not same(fast, slow)
