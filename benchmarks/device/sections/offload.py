"""Tokens a second of a model that stays on the host: dense weights that are copied ahead, and compressed ones."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.device.llama import DecodeStep, llama, resting_nbytes
from benchmarks.device.measure import LOAD_COLUMNS, load_of
from benchmarks.device.runner import Row, Section
from tensorwire.torch import set_linear_mode

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchmarks.device.measure import Bench

SEQUENCES = (1, 32)
CONTENDERS = (
    ("dense, copied a layer ahead", None, "exact"), ("dense, accelerate's cpu_offload", None, "exact"),
    ("exact, fast", "fast", "exact"), ("fused, resident", "resident", "fused"),
)  # fmt: skip
_STEPS = 4  # that are timed together


def run(bench: Bench) -> Generator[Row, None, None]:
    expected: dict[int, torch.Tensor] = {}
    dense: dict[int, float] = {}
    for what, profile, mode in CONTENDERS:
        model = copy.deepcopy(llama(bench.device, bench.quick, profile)).to("cpu")
        if profile is not None:
            set_linear_mode(model, mode)
        row: Row = {"what": what, "resting": resting_nbytes(model) / 1e9}
        with _offloaded(bench, what, model):
            for sequences in (1,) if bench.quick else SEQUENCES:
                step = DecodeStep(bench, model, sequences)
                for _ in range(2):  # the order is learned
                    step.reset()
                    logits = step(0)
                expected.setdefault(sequences, logits)
                timed = bench.by_calls(step, 1 if bench.quick else _STEPS, step.reset)
                found = bench.medians({"": timed})[""]
                tokens = sequences / found["median"]
                dense.setdefault(sequences, tokens)
                same = torch.equal(logits, expected[sequences])
                row |= {"sequences": sequences, "tokens": tokens, "of_dense": tokens / dense[sequences], "same": same}
                yield {**row, **load_of(found)}
                del step, logits
        del model
        bench.free()


@contextlib.contextmanager
def _offloaded(bench: Bench, what: str, model: Any) -> Generator[None, None, None]:
    """The model, which computes on the device. On a CPU the code of dense weights alone is tried."""
    if what.endswith("cpu_offload"):
        from accelerate import cpu_offload

        cpu_offload(model, execution_device=torch.device(bench.device))
        yield
    elif what.startswith("dense"):
        with _Copies(bench, model):
            yield
    elif bench.device == "cpu":
        yield
    else:
        from tensorwire.torch import offload

        with offload(model, bench.device):
            yield


class _Copies:
    """Dense weights of linear layers in pinned memory. Each is copied while the one before it is in use, to one of two
    places; everything else is on the device."""

    def __init__(self, bench: Bench, model: Any) -> None:
        self._layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
        self._cuda = bench.device == "cuda"
        hosts = [layer.weight.data for layer in self._layers]
        self._hosts = [host.pin_memory() if self._cuda else host for host in hosts]
        for layer in self._layers:
            layer.weight.data = torch.empty(0, dtype=torch.bfloat16)
        model.to(bench.device)
        most = max(host.numel() for host in hosts)
        self._places = [torch.empty(most, dtype=torch.bfloat16, device=bench.device) for _ in range(2)]
        self._stream = torch.cuda.Stream() if self._cuda else None
        self._ready = [torch.cuda.Event() for _ in range(2)] if self._cuda else []
        self._next = self._count = 0
        self._hooks = [
            layer.register_forward_pre_hook(lambda _, __, number=number: self._use(number))
            for number, layer in enumerate(self._layers)
        ]
        self._copy(0)

    def _use(self, number: int) -> None:
        """Layers come in the order of the model, again and again."""
        if number != self._next:
            raise RuntimeError(f"expected linear layer {self._next} of the model, got {number}")
        self._next, side = (number + 1) % len(self._layers), self._count % 2
        self._count += 1
        if self._cuda:
            torch.cuda.current_stream().wait_event(self._ready[side])
        host = self._hosts[number]
        self._layers[number].weight.data = self._places[side][: host.numel()].view(host.shape)
        self._copy(1 - side)

    def _copy(self, side: int) -> None:
        """The next weight, behind the use of the one that was there: all that was launched before now."""
        host = self._hosts[self._next]
        place = self._places[side][: host.numel()].view(host.shape)
        if self._stream is None:
            place.copy_(host)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            place.copy_(host, non_blocking=True)
            self._ready[side].record()

    def __enter__(self) -> _Copies:
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()


SECTION = Section(
    "offload",
    30,
    "How many tokens a second, if weights stay on the host?",
    "The same model, its weights in pinned memory; what is in use alone is on the device. Tokens step by step, by "
    "calls. Times dense is against dense weights that are copied a layer ahead, in this table.",
    (
        ("weights", "what", ""), ("sequences", "sequences", "d"), ("tokens/s", "tokens", ".1f"),
        ("times dense", "of_dense", ".2f"), ("same logits", "same", ""), ("GB on the host", "resting", ".2f"),
        *LOAD_COLUMNS,
    ),
    run,
)  # fmt: skip
