"""The rows of the tables: each is checked bit for bit before it is timed."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from benchmarks.device.measure import by_calls, by_graph, compressed, copy_bandwidth, medians, rotation, weights
from benchmarks.device.model import INSTRUCTIONS, WORD_NBYTES
from tensorwire.torch import CompressedTensor, decompress_module, set_linear_mode
from tensorwire.torch.device.linear import DeviceWeight

if TYPE_CHECKING:
    from benchmarks.tables import Row

INPUTS = (1, 2, 4, 8)


def decoding(quick: bool) -> list[Row]:
    rows = []
    for shape in [(256, 512)] if quick else [(4096, 4096), (14336, 4096), (28672, 8192)]:
        nbytes = shape[0] * shape[1] * WORD_NBYTES
        dense = weights(*shape, 2 if quick else rotation(nbytes))
        for profile in INSTRUCTIONS:
            held = compressed(dense, profile)
            ratio = nbytes * len(held) / sum(each.frame.numel() for each in held)
            times = medians(
                {
                    "graph": by_graph(lambda k, held=held: held[k].decode(), len(held)),
                    "calls": by_calls(lambda k, held=held: held[k % len(held)].decode(), 20),
                }
            )
            seconds = times["graph"]["median"]
            rows.append(
                {
                    "what": profile,
                    "shape": f"{shape[0]} x {shape[1]}",
                    "ratio": ratio,
                    "microseconds": seconds * 1e6,
                    "output": nbytes / seconds / 1e12,
                    "moved": nbytes * (1 + 1 / ratio) / seconds / copy_bandwidth(),
                    "by_call": times["calls"]["median"] * 1e6,
                }
            )
    return rows


def products(quick: bool) -> list[Row]:
    rows = []
    for shape in [(256, 512)] if quick else [(4096, 4096), (14336, 4096), (4096, 14336)]:
        dense = weights(*shape, 2 if quick else rotation(shape[0] * shape[1] * WORD_NBYTES))
        held = {f"fused, {profile}": compressed(dense, profile, "fused") for profile in INSTRUCTIONS}
        held["exact, fast"] = compressed(dense, "fast")
        contenders: dict[str, list[Any]] = {"dense": dense, **held}
        for count in INPUTS:
            x = torch.randn(count, shape[1], device="cuda").to(torch.bfloat16)
            # The kernels of enec are compiled for each set of parameters, which takes long.
            contenders = {name: each for name, each in contenders.items() if count == 1 or "enec" not in name}
            check(x, contenders)
            graphs = {
                name: by_graph(lambda k, every=every, x=x: linear(x, every[k]), len(dense))
                for name, every in contenders.items()
            }
            calls = {
                f"{name}, calls": by_calls(lambda k, every=every, x=x: linear(x, every[k % len(every)]), 20)
                for name, every in contenders.items()
                if count == 1
            }
            times = {name: each["median"] for name, each in medians({**graphs, **calls}).items()}
            rows += [
                {
                    "what": name,
                    "shape": f"{shape[0]} x {shape[1]}",
                    "inputs": count,
                    "microseconds": times[name] * 1e6,
                    "of_dense": times["dense"] / times[name],
                    "by_call": times[f"{name}, calls"] * 1e6 if count == 1 else None,
                }
                for name in contenders
            ]
    return rows


def check(x: torch.Tensor, contenders: dict[str, list[Any]]) -> None:
    """RuntimeError if an exact product has other bits than torch's, or a fused one is further from float64."""
    weight = contenders["dense"][0]
    dense, exactly = linear(x, weight), x.double() @ weight.double().T
    for name, (held, *_) in contenders.items():
        found = linear(x, held)
        if name.startswith("fused"):
            wrong = (found - exactly).abs().max() > 2 * (dense - exactly).abs().max()
        else:
            wrong = not torch.equal(found, dense)
        if wrong:
            raise RuntimeError(f"{name}: the product of {tuple(x.shape)} is wrong")


def models(quick: bool) -> list[Row]:
    """A Llama as large as those of 8 billion weights, but with a quarter of the layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 512} if quick else {
        "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256
    }  # fmt: skip
    config = LlamaConfig(
        **sizes, num_hidden_layers=2 if quick else 8, num_attention_heads=32 if not quick else 4,
        num_key_value_heads=8 if not quick else 2, dtype=torch.bfloat16,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    tokens = torch.randint(1, config.vocab_size, (1, 64), device="cuda")
    count = 4 if quick else 32
    num_weights = sum(each.numel() for each in model.parameters())
    rows, expected = [], None
    for name, profile, mode in (
        ("dense", None, None), ("exact, fast", "fast", "exact"), ("fused, fast", "fast", "fused"),
        ("exact, resident", "resident", "exact"), ("fused, resident", "resident", "fused"),
    ):  # fmt: skip
        row: Row = {"what": name, "weights": num_weights / 1e9}
        if mode == "exact":
            decompress_module(model)
            row |= compress(model, profile)
        if mode is not None:
            set_linear_mode(model, mode)
        logits, _ = run(model, tokens, 2)
        if expected is None:
            expected = logits
        elif mode == "exact" and not torch.equal(logits, expected):
            raise RuntimeError(f"{name}: the logits have other bits")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        row["resting"] = torch.cuda.memory_allocated() / 1e9
        taken = [run(model, tokens, count + 1)[1] - run(model, tokens, 1)[1] for _ in range(3)]
        row["tokens"] = count / statistics.median(taken)
        row["peak"] = torch.cuda.max_memory_allocated() / 1e9
        rows.append(row)
    return rows


@torch.no_grad()
def run(model: Any, tokens: torch.Tensor, count: int) -> tuple[torch.Tensor, float]:
    """The logits of the prompt, and how long it takes to generate so many tokens."""
    logits = model(input_ids=tokens).logits
    torch.cuda.synchronize()
    began = time.perf_counter()
    model.generate(tokens, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
    torch.cuda.synchronize()
    return logits, time.perf_counter() - began


def compress(model: Any, profile: Any) -> Row:
    """Compress its matrices, and open the frames; says how long a gigabyte of dense weights takes for the latter."""
    places = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dim() == 2
    ]
    with ThreadPoolExecutor(8) as pool:
        every = pool.map(lambda place: CompressedTensor.from_dense(place[2], profile), places)
        for (module, name, _), held in zip(places, every, strict=True):
            module._parameters[name] = torch.nn.Parameter(held, requires_grad=False)
    dense_nbytes = sum(parameter.numel() * WORD_NBYTES for _, _, parameter in places)
    frames = [module._parameters[name].frame for module, name, _ in places]
    DeviceWeight(frames[0])  # compiles the kernels
    torch.cuda.synchronize()
    began = time.perf_counter()
    for frame in frames:
        DeviceWeight(frame)
    torch.cuda.synchronize()
    return {"opening": (time.perf_counter() - began) / dense_nbytes * 1e12}
