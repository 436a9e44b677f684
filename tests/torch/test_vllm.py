"""The vLLM plug-in, for real, on vLLM's CPU backend. ``make vllm`` has the environment for it."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import tensorwire
from tests.support import vllm_cases

vllm = pytest.importorskip("vllm", reason="vLLM is missing, which make vllm installs apart from everything else")

from tests.support.vllm_models import OURS, SIZES, damage, lose, run_cases, write_llama  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All cases in one process: vLLM takes seconds to import."""
    root = tmp_path_factory.mktemp("vllm")
    for name in ("untied", "tied"):
        write_llama(root / name, tied=name == "tied")
        tensorwire.compress_checkpoint(root / name, root / f"{name}-compressed")
    shutil.copytree(root / "untied-compressed", root / "damaged")
    damage(root / "damaged", "model.layers.1.mlp.up_proj.weight")
    for name, lost in (("incomplete", "up_proj"), ("more incomplete", "down_proj")):
        shutil.copytree(root / "untied", root / name)
        lose(root / name, f"model.layers.1.mlp.{lost}.weight")
    small = str(root / "untied-compressed")
    choices = "model_loader_extra_config"
    cases = {
        "dense": {"model": str(root / "untied")},
        "dense tied": {"model": str(root / "tied")},
        "dense compiled": {"model": str(root / "untied"), "enforce_eager": False},
        "at load": {"model": small, **OURS, choices: {"weights": "dense"}},
        "exact": {"model": small, **OURS},
        "exact tied": {"model": str(root / "tied-compressed"), **OURS},
        "exact compiled": {"model": small, **OURS, "enforce_eager": False},
        "resident": {"model": small, **OURS, choices: {"profile": "resident"}},
        "fused": {"model": small, **OURS, choices: {"linear_mode": "fused"}},
        "plain checkpoint": {"model": str(root / "untied"), "quantization": "tensorwire"},
        "other loader": {"model": small},
        "unknown key": {"model": small, **OURS, choices: {"fused": True}},
        "unknown value": {"model": small, **OURS, choices: {"weights": "sparse"}},
        "damaged": {"model": str(root / "damaged"), **OURS},
        "incomplete": {"model": str(root / "incomplete"), "quantization": "tensorwire"},
        "more incomplete": {"model": str(root / "more incomplete"), **OURS},
    }
    return run_cases(cases, root)


def outcome(outcomes: dict[str, Any], name: str) -> dict[str, Any]:
    result: dict[str, Any] = outcomes[name]
    assert "error" not in result, result["error"]
    return result


def test_weights_decoded_at_load_give_the_bits_of_the_dense_model(outcomes: dict[str, Any]) -> None:
    dense, ours = outcome(outcomes, "dense"), outcome(outcomes, "at load")
    assert ours["tokens"] == dense["tokens"]
    assert ours["logprobs"] == dense["logprobs"]
    assert ours["parameters"] == dense["parameters"]


@pytest.mark.parametrize(
    ("case", "reference"),
    [
        ("exact", "dense"),
        ("exact tied", "dense tied"),
        ("exact compiled", "dense compiled"),
        ("resident", "dense"),
        ("fused", "dense"),
        ("plain checkpoint", "dense"),
    ],
)
def test_compressed_weights_give_the_tokens_of_the_dense_model(
    outcomes: dict[str, Any], case: str, reference: str
) -> None:
    ours, dense = outcome(outcomes, case), outcome(outcomes, reference)
    assert ours["tokens"] == dense["tokens"]
    assert {len(sequence) for sequence in ours["tokens"]} == {vllm_cases.NUM_TOKENS}
    if "tied" not in case:  # where the embedding is the head, every token is followed by itself
        assert len({token for sequence in ours["tokens"] for token in sequence}) > 10
    for step, expected in zip(steps(ours), steps(dense), strict=True):
        shared = step.keys() & expected.keys()
        assert shared
        for token in shared:  # vLLM has kernels of its own, and logits are BF16
            assert math.isclose(step[token], expected[token], rel_tol=2**-6, abs_tol=0.5)


def steps(result: dict[str, Any]) -> list[dict[str, float]]:
    """The logarithms of the likelihood of a few tokens, step by step."""
    return [step for sequence in result["logprobs"] for step in sequence]


def test_the_bits_do_not_depend_on_how_weights_are_compressed(outcomes: dict[str, Any]) -> None:
    exact = outcome(outcomes, "exact")["logprobs"]
    assert outcome(outcomes, "resident")["logprobs"] == exact
    assert outcome(outcomes, "plain checkpoint")["logprobs"] == exact


@pytest.mark.parametrize("case", ["exact", "exact tied", "exact compiled", "resident", "fused", "plain checkpoint"])
def test_all_matrices_stay_compressed(outcomes: dict[str, Any], case: str) -> None:
    parameters = outcome(outcomes, case)["parameters"]
    matrices = {name: kind for name, kind in parameters.items() if "norm" not in name}
    expected = {"embed_tokens", "qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    expected |= set() if "tied" in case else {"lm_head"}
    assert {name.split(".")[-2] for name in matrices} == expected
    assert {dtype for dtype, _ in matrices.values()} == {"torch.uint8"}
    columns, rows = SIZES["hidden_size"], {"qkv_proj": 512, "o_proj": 256, "gate_up_proj": 1408}
    for name, (_, nbytes) in matrices.items():
        for layer, count in rows.items():
            if layer in name:
                assert 0.6 < nbytes / (2 * count * columns) < 0.85, name


def test_a_graph_compiled_for_other_frames_is_not_taken(outcomes: dict[str, Any]) -> None:
    """Sizes of frames and the mode are constants in it; vLLM finds it again by this hash."""
    hashes = {name: outcome(outcomes, name)["configuration"] for name in ("exact", "resident", "fused")}
    assert len(set(hashes.values())) == 3


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("other loader", "load_format='tensorwire'"),
        ("unknown key", "weights, linear_mode, profile, got 'fused'"),
        ("unknown value", "compressed, dense, got 'sparse'"),
        ("damaged", "CorruptDataError"),
        ("damaged", "model.layers.1.mlp.up_proj.weight"),
        ("incomplete", "lacks a part of model.layers.1.mlp.gate_up_proj"),
        ("more incomplete", "lacks 1 tensors of the model: ['model.layers.1.mlp.down_proj"),
    ],
)
def test_what_is_wrong_is_said(outcomes: dict[str, Any], case: str, error: str) -> None:
    assert error in outcomes[case]["error"]


def test_a_quantized_model_inside_is_refused() -> None:
    from tensorwire.torch.integrations.vllm import TensorwireConfig

    with pytest.raises(ValueError, match=r"fp8.*tensorwire decompress"):
        TensorwireConfig.from_config({"quant_method": "tensorwire", "version": 1, "wrapped": {"quant_method": "fp8"}})


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    from tensorwire.torch.integrations.vllm import TensorwireConfig

    TensorwireConfig.from_config({"quant_method": "tensorwire", "version": 1, "later": "skip me"})
    for later in ({"version": 2}, {"version": 1, "required": "tables"}):
        with pytest.raises(tensorwire.UnsupportedVersionError):
            TensorwireConfig.from_config({"quant_method": "tensorwire", **later})


def test_the_entry_point_registers_once() -> None:
    from importlib.metadata import entry_points

    from vllm.model_executor.layers.quantization import get_quantization_config

    from tensorwire.torch.integrations.vllm import TensorwireConfig

    (point,) = entry_points(group="vllm.general_plugins", name="tensorwire")
    register = point.load()
    register()
    register()
    assert get_quantization_config("tensorwire") is TensorwireConfig


def test_the_example_runs(repository: Path, tmp_path: Path) -> None:
    """With vLLM's engine in a process of its own, as by default."""
    command = [sys.executable, str(repository / "examples" / "vllm_compressed.py")]
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "equal tokens: yes" in done.stdout
