"""How long a prompt takes: products with many inputs, for which weights are decoded first."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import torch

from benchmarks.device.llama import PROFILES, llama
from benchmarks.device.measure import LOAD_COLUMNS, load_of
from benchmarks.device.runner import Row, Section
from tensorwire.torch import ops, prepare, set_linear_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from benchmarks.device.measure import Bench


AHEAD, IN_TURN = "a weight ahead", "in turn"


def run(bench: Bench) -> Generator[Row, None, None]:
    models = {"dense": llama(bench.device, bench.quick)}
    for profile in PROFILES:
        models[f"exact, {profile}"] = llama(bench.device, bench.quick, profile)
        set_linear_mode(models[f"exact, {profile}"], "exact")
        prepare(models[f"exact, {profile}"])
    for length in (8,) if bench.quick else (512, 4096):
        tokens = torch.arange(1, length + 1, device=bench.device)[None] % 500
        operations: dict[tuple[str, str], Callable[[int], torch.Tensor]] = {}
        for what, model in models.items():

            def prompt(_: int, model: torch.nn.Module = model, tokens: torch.Tensor = tokens) -> torch.Tensor:
                with torch.no_grad():
                    logits: torch.Tensor = model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits
                return logits

            operations[what, "" if what == "dense" else AHEAD] = prompt
            if what != "dense":
                operations[what, IN_TURN] = _in_turn(prompt)
        expected = operations["dense", ""](0)
        same = {what: torch.equal(operation(0), expected) for what, operation in operations.items()}
        timed = bench.medians({what: bench.by_calls(operation, 1) for what, operation in operations.items()})
        for (what, how), found in timed.items():
            row: Row = {"what": what, "how": how, "tokens": length, "milliseconds": found["median"] * 1e3}
            row["same"] = same[what, how]
            yield {**row, "of_dense": found["median"] / timed["dense", ""]["median"], **load_of(found)}


def _in_turn(prompt: Callable[[int], torch.Tensor]) -> Callable[[int], torch.Tensor]:
    """The same without a second stream: each weight is decoded when it is needed."""

    def run_in_turn(number: int) -> torch.Tensor:
        with patch.object(ops, "side_stream_of", lambda device: None):
            return prompt(number)

    return run_in_turn


SECTION = Section(
    "prompts",
    25,
    "How long does a prompt take?",
    "The same model, one sequence, logits of its last token. Weights are decoded when they are needed, or one ahead on "
    "a second stream. Of dense is how many times as long as with dense weights.",
    (
        ("weights", "what", ""), ("decoded", "how", ""), ("tokens", "tokens", "d"), ("ms", "milliseconds", ".1f"),
        ("of dense", "of_dense", ".2f"), ("same logits", "same", ""), *LOAD_COLUMNS,
    ),
    run,
)  # fmt: skip
