"""New weights for vLLM while it serves: the weight transfer engine beside ``reload_weights``, in turns."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import environment
from benchmarks.tables import Row, Table
from benchmarks.verdicts import Verdict
from tensorwire.sync import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE = "weight engine"
UPDATES = 20
FAULTS = {4: "load", 9: "convert", 14: "stage", 19: "end"}
"""By update what fails first: in the midst of the tensors, in a layer, before anything is written, after all of it."""
SIZES = {
    "vocab_size": 8000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
STEP = 1e-6


def measure(quick: bool) -> list[Row]:
    updates = 3 if quick else UPDATES
    faults = {2: "load"} if quick else FAULTS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nbytes, dense = _trained(folder, updates, {} if quick else SIZES)
        fresh = {str(number): {"model": str(folder / str(number))} for number in range(updates + 1)}
        steps = list(_steps(folder, updates, faults))
        found = _run(folder, "vllm_weight_cases", {"followed": {"model": str(folder / "0"), "steps": steps}})
        expected = _run(folder, "vllm_cases", fresh)
    if "error" in found["followed"]:
        raise RuntimeError(found["followed"]["error"])
    pairs = list(zip(steps, found["followed"]["steps"], strict=True))
    whole = [(given, step) for given, step in pairs if "fault" not in given and "init" not in given]
    if told := [step["error"] for _, step in whole if step["error"]]:
        raise RuntimeError(told[0])
    failed = sum(step["error"] is not None for given, step in pairs if "fault" in given)
    ours = [(expected[str(given["update"])], step) for given, step in whole if "update" in given]
    theirs = [(expected[Path(given["reload"]).name], step) for given, step in whole if "reload" in given]
    turns = [number for number in range(1, updates + 1) if number not in faults]
    seconds = [[each[number - 1][1]["seconds"] for number in turns] for each in (ours, theirs)]
    ratio = median(one / other for one, other in zip(*seconds, strict=True))
    return [
        _row(ENGINE, ours, seconds[0], sum(nbytes) / len(nbytes), failed, ratio),
        _row("`reload_weights`", theirs, seconds[1], dense, None, 1.0),
    ]


def _row(way: str, taken: list[Any], seconds: list[float], nbytes: float, failed: int | None, ratio: float) -> Row:
    equal = [(fresh["tokens"], fresh["logprobs"]) == (step["tokens"], step["logprobs"]) for fresh, step in taken]
    return {
        "way": way,
        "updates": len(taken),
        "failures": failed,
        "equal": sum(equal),
        "megabytes": nbytes / 1e6,
        "seconds": median(seconds),
        "range": [min(seconds), max(seconds)],
        "of_reload": ratio,
    }


WEIGHTS = Table(
    "weights",
    "New weights for vLLM while it serves",
    "vLLM on its CPU backend, a Llama of 32 million parameters in BF16, versions a step of AdamW apart. Each version "
    "is taken in two ways, in turns: by the weight engine, once its thread has staged the "
    "version, and by reload_weights from a checkpoint that is in the page cache. The pause is the time of the calls "
    "that make the weights new. Behind each of them, tokens and likelihoods of four prompts are compared in bits with "
    "those of an engine that was started on the checkpoint. Failures were put in before four of the updates: in the "
    "midst of the tensors, while a layer is converted, before anything is written, and behind it all. These turns "
    "count for equality alone.",
    (
        ("way", "way", ""),
        ("updates", "updates", "d"),
        ("failures put in", "failures", "d"),
        ("equal to a fresh engine", "equal", "d"),
        ("MB read", "megabytes", ".2f"),
        ("pause, s", "seconds", ".3f"),
        ("least to most", "range", ".3f"),
        ("of reload_weights, by turns", "of_reload", ".3f"),
    ),
    measure,
    missing=partial(environment.lacks, "vllm"),
)


TABLES = (WEIGHTS,)


def evaluate(results: dict[str, Any]) -> list[Verdict]:
    found = {row["way"]: row for row in results.get(WEIGHTS.name, ())}.get(ENGINE, {})
    equal = found and found["equal"] == found["updates"]
    return [
        Verdict("equal to a fresh engine, in bits", "vLLM", equal if found else None, True),
        Verdict("pause, beside reload_weights", "vLLM", found.get("of_reload"), 1.0, at_most=True, note="by turns"),
    ]


def _trained(folder: Path, updates: int, sizes: dict[str, int]) -> tuple[list[int], int]:
    """Write a checkpoint of each version, and publish it; return the bytes of each version, and of all weights."""
    from transformers import LlamaForCausalLM

    from tests.support.vllm_models import write_llama

    write_llama(folder / "0", **sizes)
    model = LlamaForCausalLM.from_pretrained(folder / "0", dtype=torch.bfloat16).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=STEP, betas=(0.9, 0.95), weight_decay=0.0)
    publisher = Publisher(folder / "store")
    nbytes = []
    for number in range(updates + 1):
        if number:
            tokens = torch.randint(3, 500, (4, 32), generator=torch.Generator().manual_seed(number))
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
        published = publisher.publish(state)
        nbytes += [published.nbytes] if number else []
        if number:
            weights = LlamaForCausalLM(model.config).to(torch.bfloat16)
            weights.load_state_dict(state)
            weights.save_pretrained(folder / str(number))
    return nbytes, sum(tensor.nbytes for tensor in state.values())


def _steps(folder: Path, updates: int, faults: dict[int, str]) -> Iterator[dict[str, Any]]:
    """Each version by the engine and from its checkpoint; which comes first changes. Behind a fault the engine
    does, which is what has to mend it."""
    yield {"init": {"store": str(folder / "followed")}, "silent": True}
    for number in range(1, updates + 1):
        name = f"weight_v{number:06d}"
        publish = [str(folder / store / name) for store in ("store", "followed")]
        turns = [
            {"update": number, "staged": number not in faults},
            {"reload": str(folder / str(number))},
        ]
        if number in faults:
            turns.insert(0, {"update": number, "fault": faults[number], "silent": True})
        elif number % 2 == 0:
            turns.reverse()
        turns[0]["publish"] = publish
        yield from turns


def _run(folder: Path, program: str, cases: dict[str, Any]) -> Any:
    """Cases of `tests.support`, in the environment of vLLM."""
    given, results = folder / "cases.json", folder / f"{program}.json"
    given.write_text(json.dumps(cases))
    command = [environment.interpreter("vllm"), "-m", f"tests.support.{program}", given, results]
    variables = {**os.environ, "VLLM_CACHE_ROOT": str(folder / "cache"), "VLLM_LOGGING_LEVEL": "ERROR"}
    subprocess.run(command, env=variables, cwd=environment.ROOT, check=True, stdout=subprocess.DEVNULL)
    return json.loads(results.read_text())
