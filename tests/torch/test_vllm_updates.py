"""vLLM takes new weights while it serves, on its CPU backend. ``make vllm`` has the environment for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tensorwire

pytest.importorskip("vllm", reason="vLLM is missing, which make vllm installs apart from everything else")

from tests.support.vllm_models import OURS, damage, lose, run_cases, train, write_llama

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

DENSE = {**OURS, "model_loader_extra_config": {"weights": "dense"}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoints: old and new ones, and what is wrong with the new ones."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("", " tied"):
        write_llama(root / f"old{kind}", tied=bool(kind))
        train(root / f"old{kind}", root / f"new{kind}")
        for age in ("old", "new"):
            tensorwire.compress_checkpoint(root / f"{age}{kind}", root / f"{age}{kind} compressed")
    shutil.copytree(root / "new compressed", root / "damaged")
    damage(root / "damaged", "model.layers.1.mlp.up_proj.weight")
    shutil.copytree(root / "new", root / "incomplete")
    lose(root / "incomplete", "model.layers.1.mlp.up_proj.weight")
    shutil.copytree(root / "new", root / "file missing")
    sorted((root / "file missing").glob("*.safetensors"))[-1].unlink()
    return root


@pytest.fixture(scope="module")
def outcomes(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    def case(model: str, *updates: str, **arguments: Any) -> dict[str, Any]:
        return {"model": str(models / model), "updates": [str(models / update) for update in updates], **arguments}

    compiled = {"enforce_eager": False}
    cases = {
        "old": case("old"),
        "new": case("new"),
        "new compiled": case("new", **compiled),
        "update": case("old compressed", "new", **DENSE),
        "update of plain": case("old", "new compressed", **OURS),
        "tied": case("old tied compressed", "new tied", **DENSE),
        "update compiled": case("old compressed", "new", **DENSE, **compiled),
        "compressed": case("old compressed", "new", **OURS),
        "compressed by vLLM's loader": case("old", "new", quantization="tensorwire"),
        "file missing": case("old compressed", "file missing", **DENSE),
        "incomplete": case("old compressed", "incomplete", **DENSE),
        "damaged": case("old compressed", "damaged", **DENSE),
        "mended": case("old compressed", "damaged", "new", **DENSE),
    }
    return run_cases(cases, tmp_path_factory.mktemp("vllm"))


def updated(outcomes: dict[str, Any], case: str) -> dict[str, Any]:
    assert "error" not in outcomes[case], outcomes[case]["error"]
    result: dict[str, Any] = outcomes[case]["updated"]
    return result


@pytest.mark.parametrize(
    ("case", "reference"),
    [
        ("update", "new"),
        ("update of plain", "new"),
        ("update compiled", "new compiled"),
        ("mended", "new"),
    ],
)
def test_an_updated_engine_gives_the_bits_of_one_that_was_started_on_the_new_weights(
    outcomes: dict[str, Any], case: str, reference: str
) -> None:
    after = updated(outcomes, case)
    assert after["tokens"] == outcomes[reference]["tokens"]
    assert after["logprobs"] == outcomes[reference]["logprobs"]
    assert after["logprobs"] != outcomes[case]["logprobs"]
    assert after["errors"][-1] is None


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("compressed", "ValueError: vLLM cannot update weights that stay compressed"),
        ("tied", "ValueError: the model has tied weights"),
        ("file missing", "FileNotFoundError"),
        ("incomplete", "lacks 1 tensors of the checkpoint before it"),
    ],
)
def test_what_is_refused_leaves_the_weights_that_serve(outcomes: dict[str, Any], case: str, error: str) -> None:
    after = updated(outcomes, case)
    (told,) = after["errors"]
    assert error in told
    assert after["tokens"] == outcomes[case]["tokens"]
    assert after["logprobs"] == outcomes[case]["logprobs"]


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("damaged", "CorruptDataError"),
        ("compressed by vLLM's loader", "ValueError: vLLM cannot update weights that stay compressed"),
    ],
)
def test_an_update_that_ended_midway_gives_no_tokens(outcomes: dict[str, Any], case: str, error: str) -> None:
    after = updated(outcomes, case)
    assert error in after["errors"][0]
    assert "expected device meta" in after["tokens"]


@pytest.mark.parametrize("case", ["compressed", "compressed by vLLM's loader"])
def test_a_refusal_names_what_to_do(outcomes: dict[str, Any], case: str) -> None:
    assert "{'weights': 'dense'}" in updated(outcomes, case)["errors"][0]
