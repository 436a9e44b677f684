"""vLLM takes new weights while it serves, on its CPU backend. ``make vllm`` has the environment for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tensorwire
from tensorwire.sync import Publisher
from tests.support.vllm_cases import PROMPTS
from tests.support.vllm_server import expected, serving

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


def follow(store: Path, served: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tensorwire", "sync", "follow", str(store), str(served), *options]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def published(model: Path) -> dict[str, Any]:
    return tensorwire.load_file(model, framework="pt")


def test_a_server_follows_a_publisher_while_it_serves(
    models: Path, outcomes: dict[str, Any], repository: Path, tmp_path: Path
) -> None:
    store, served = tmp_path / "store", tmp_path / "served"
    publisher = Publisher(store)
    publisher.publish(published(models / "old"))
    assert follow(store, served, "--once").wait() == 0
    shutil.copy(models / "old" / "config.json", served)
    old, new = expected(outcomes["old"]), expected(outcomes["new"])
    reload = [sys.executable, str(repository / "examples" / "vllm_reload.py")]
    with serving(served, tmp_path) as server:
        assert [server.generate(prompt) for prompt in PROMPTS] == old
        assert server.cached_tokens() == 0
        assert [server.generate(prompt)[0] for prompt in PROMPTS] == [tokens for tokens, _ in old]
        assert server.cached_tokens() > 0  # so there is something old that a new answer could be made of

        follower = follow(store, served, "--exec", " ".join([*reload, server.url, str(served)]))
        publisher.publish(published(models / "new"))
        meanwhile = []
        while server.call("/weight_info") != {"weight_version": "1"} and follower.poll() is None:
            meanwhile.append(server.generate(PROMPTS[0])[0])
        follower.terminate()
        told = follower.communicate()
        assert "version 000001" in told[0], told
        assert meanwhile[0] == old[0][0]
        assert all(tokens in (old[0][0], new[0][0]) for tokens in meanwhile), "an answer of two versions"
        assert [server.generate(prompt) for prompt in PROMPTS] == new

        for file in served.glob("*.safetensors"):
            file.unlink()
        environment = {**os.environ, "TENSORWIRE_VERSION": "2"}
        command = [*reload, server.url, str(served)]
        failed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert failed.returncode == 1
        assert "/collective_rpc: HTTP Error 500" in failed.stderr
        assert server.call("/is_paused") == {"is_paused": True}
        assert server.call("/weight_info") == {"weight_version": "1"}
        server.call("/resume", {})
        assert server.generate(PROMPTS[3]) == new[3]
