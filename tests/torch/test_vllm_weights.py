"""vLLM takes versions of a store by the weight transfer engine. ``make vllm`` has the environment for it."""

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
from tests.support.vllm_weight_cases import DIED, HALF, WHOLE

pytest.importorskip("vllm", reason="vLLM is missing, which make vllm installs apart from everything else")

from tests.support.vllm_models import OURS, damage, lose, run_cases, train, write_llama, write_mixtral

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]

DENSE = {**OURS, "model_loader_extra_config": {"weights": "dense"}}
MODELS = ["0", "1", "2"]
"""Checkpoints, each a step of training behind the one before; versions of a store have the same numbers."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints, and stores: `store` has versions 0 to 2, and 3 is damaged. `no anchor` is a copy which lacks what
    only a follower without a base reads."""
    root = tmp_path_factory.mktemp("models")
    write_llama(root / "0", tied=False)
    write_llama(root / "tied", tied=True)
    write_mixtral(root / "experts")
    train(root / "0", root / "1")
    train(root / "1", root / "2", frozen="norm")
    tensorwire.compress_checkpoint(root / "0", root / "0 compressed")
    shutil.copytree(root / "2", root / "incomplete")
    lose(root / "incomplete", "model.layers.1.mlp.up_proj.weight")
    for store, checkpoints in (("store", MODELS), ("other", ["tied"]), ("incomplete store", ["0", "incomplete"])):
        publisher = Publisher(root / store)
        for name in checkpoints:
            publisher.publish(tensors(root / name))
    Publisher(root / "store").publish(tensors(root / "1"))
    damage(root / "store" / "weight_v000003", "model.layers.1.mlp.up_proj.weight")
    shutil.copytree(root / "store", root / "no anchor")
    for file in (root / "no anchor" / "weight_v000000").glob("*.safetensors"):
        file.unlink()
    return root


def tensors(model: Path) -> dict[str, Any]:
    return tensorwire.load_file(model, framework="pt")


@pytest.fixture(scope="module")
def fresh(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What engines generate that were started on each of the checkpoints."""
    cases = {name: {"model": str(models / name)} for name in MODELS}
    cases["1 compiled"] = {"model": str(models / "1"), "enforce_eager": False}
    found: dict[str, Any] = run_cases(cases, tmp_path_factory.mktemp("fresh"))
    assert len({str(found[name]["logprobs"]) for name in MODELS}) == len(MODELS)
    return found


def steps_of_failures() -> list[dict[str, Any]]:
    """Each fault in an update to version 2, and an update to version 1 behind it; a whole one is looked at before."""
    found = []
    for fault in (*WHOLE, *HALF):
        found.append({"update": 2, "fault": fault, "silent": fault in HALF})
        found.append({"update": 1})
    return found


@pytest.fixture(scope="module")
def outcomes(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    def begin(store: str = "store", **info: Any) -> dict[str, Any]:
        return {"init": {"store": str(models / store), **info}}

    def case(model: str, *steps: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        return {"model": str(models / model), "steps": list(steps), **arguments}

    def updates(*versions: Any) -> list[dict[str, Any]]:
        return [{"update": version} for version in versions]

    root = tmp_path_factory.mktemp("died")
    run_cases({"died": case("0", begin(), {"update": 1, "fault": "die"})}, root, "vllm_weight_cases", DIED)
    unknown = {"init": {"store": str(models / "store"), "mode": "fast"}}
    cases = {
        "refused": case(
            "0", *updates(1), begin(in_place=True), begin(in_place="false"), unknown, begin(), *updates(7, 3, "1"),
            begin("other"), *updates(0), begin("incomplete store"), *updates(1), begin(), *updates(2),
            {"shutdown": None}, *updates(1), begin(), *updates(1),
        ),
        "failures": case("0", begin(), *steps_of_failures()),
        "back": case("0", begin(), *updates(2, 1, 1, 2)),
        "compressed": case("0 compressed", begin("no anchor", threads=2), *updates(1), **DENSE),
        "another base": case("2", begin(), *updates(1, 2)),
        "compiled": case("0", begin("no anchor"), *updates(1), enforce_eager=False),
        "stays compressed": case("0 compressed", begin(), *updates(1), **OURS),
        "tied": case("tied", begin(), *updates(1)),
        "experts": case("experts", begin(), *updates(1)),
        "in place": case(
            "0", begin(in_place=True), *updates(1, 2), {"update": 1, "fault": "load", "silent": True},
            *updates(2, 1, 0), as_on_gpu=True,
        ),
        "fresh in place": case("2", as_on_gpu=True),
    }  # fmt: skip
    found: dict[str, Any] = run_cases(cases, tmp_path_factory.mktemp("weights"), "vllm_weight_cases")
    return found


def steps(outcomes: dict[str, Any], case: str) -> list[dict[str, Any]]:
    assert "error" not in outcomes[case], outcomes[case]["error"]
    found: list[dict[str, Any]] = outcomes[case]["steps"]
    return found


def generated(result: dict[str, Any]) -> tuple[Any, Any]:
    """In bits: JSON keeps those of a float."""
    return result["tokens"], result["logprobs"]


@pytest.mark.parametrize("case", ["back", "compressed", "another base"])
def test_an_update_gives_the_bits_of_a_fresh_engine(outcomes: dict[str, Any], fresh: dict[str, Any], case: str) -> None:
    found = steps(outcomes, case)
    assert [step["error"] for step in found] == [None] * len(found)
    for step in found[1:]:
        assert generated(step) == generated(fresh[step["version"]]), step["version"]


def test_a_compiled_engine_takes_an_update(outcomes: dict[str, Any], fresh: dict[str, Any]) -> None:
    assert generated(steps(outcomes, "compiled")[1]) == generated(fresh["1 compiled"])


def test_a_failure_at_any_call_leaves_the_old_weights_or_is_mended_by_the_next_update(
    outcomes: dict[str, Any], fresh: dict[str, Any]
) -> None:
    """The process that died in the middle of an update, before all this, has left nothing: the store is as it was."""
    before = fresh["0"]
    failed, mended = steps(outcomes, "failures")[1::2], steps(outcomes, "failures")[2::2]
    for fault, step, after in zip((*WHOLE, *HALF), failed, mended, strict=True):
        assert step["error"] == f"FaultError: {fault}"
        assert after["error"] is None
        assert step["version"] != "2"
        if fault in WHOLE:
            assert step["names"] == []
            assert generated(step) == generated(before), fault
        assert generated(after) == generated(fresh["1"]), fault
        before = fresh["1"]


REFUSED = {
    0: "RuntimeError: expected init_weight_transfer_engine",
    1: "ValueError: expected a GPU with in_place, got cpu",
    2: "ValueError: expected true or false as in_place, got 'false'",
    3: "ValueError: Invalid init_info",
    5: "version 000007 is not in this store",
    6: "CorruptDataError",
    7: "expected a whole number",
    9: "to have the tensors of",
    11: "none named 'model.layers.1.mlp.up_proj.weight'",
    14: None,
    15: "RuntimeError: expected init_weight_transfer_engine",
}
"""By step of the case "refused" what is told."""


def test_what_is_refused_writes_nothing(outcomes: dict[str, Any], fresh: dict[str, Any]) -> None:
    found = steps(outcomes, "refused")
    for number, step in enumerate(found):
        error = REFUSED.get(number)
        assert step["error"] is None if error is None else error in step["error"], (number, step["error"])
        assert bool(step["names"]) == (number in (13, 17)), number
        version = "0" if number < 13 else "2" if number < 17 else "1"
        assert generated(step) == generated(fresh[version]), number


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("stays compressed", "vLLM cannot update weights that stay compressed"),
        ("tied", "the model has tied weights"),
        ("experts", "vLLM's CPU backend cannot update model.layers.0.block_sparse_moe"),
    ],
)
def test_a_model_that_takes_no_update_is_refused_at_the_beginning(
    outcomes: dict[str, Any], case: str, error: str
) -> None:
    for step in steps(outcomes, case):
        assert error in step["error"] or "expected init_weight_transfer_engine" in step["error"]
        assert step["names"] == []
        assert generated(step) == generated(outcomes[case])
    assert error in steps(outcomes, case)[0]["error"]


def test_in_place_changed_tensors_alone_are_written(outcomes: dict[str, Any], models: Path) -> None:
    """On a double of a GPU. The first update writes all, and so does the one behind a half one."""
    found = steps(outcomes, "in place")[1:]
    assert [step["error"] for step in found] == [None, None, "FaultError: load", None, None, None]
    given = {number: tensors(models / number) for number in MODELS}
    changed = sorted(name for name in given["1"] if not given["1"][name].equal(given["2"][name]))
    assert len(changed) < len(given["0"])
    assert [step["names"] for step in found[:2]] == [sorted(given["0"]), changed]
    assert found[3]["names"] == sorted(given["0"])
    for number in (1, 3):
        assert generated(found[number]) == generated(outcomes["fresh in place"])
    assert generated(found[4]) == generated(found[0])
    assert generated(found[5]) == generated(outcomes["in place"])


def test_a_trainer_publishes_and_a_server_takes_it(models: Path, fresh: dict[str, Any], tmp_path: Path) -> None:
    """Over HTTP. A server that was killed, and started again on the first checkpoint, takes the newest version."""
    from transformers import LlamaForCausalLM
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory

    from tensorwire.torch.integrations.vllm_weights import TensorwireTrainerInitInfo

    trained = LlamaForCausalLM.from_pretrained(models / "0", dtype="bfloat16")
    store, backend = tmp_path / "store", ("--weight-transfer-config", '{"backend": "tensorwire"}')

    def trainer(server: Any) -> Any:
        client = HTTPVLLMWeightSyncClient(server.url)
        info = TensorwireTrainerInitInfo(store=str(store), rank=0)
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(trained))

    def answers(server: Any) -> list[Any]:
        return [server.generate(prompt) for prompt in PROMPTS]

    with serving(models / "0", tmp_path, *backend) as server:
        assert answers(server) == expected(fresh["0"])
        engine = trainer(server)
        for number in ("1", "2"):
            trained.load_state_dict(tensors(models / number))
            published = engine.publish()
            assert published.is_anchor == (number == "1")
            server.call("/pause?mode=wait", {})
            engine.update()
            server.call("/resume", {})
            assert answers(server) == expected(fresh[number])
            assert server.call("/weight_info") == {"weight_version": str(published.version)}
    shutil.copytree(store / "weight_v000001", tmp_path / "whole")
    damage(store / "weight_v000001", "model.layers.1.mlp.up_proj.weight")
    with serving(models / "0", tmp_path, *backend) as server:
        engine = trainer(server)
        with pytest.raises(Exception, match="500"):
            engine.update()
        assert answers(server) == expected(fresh["0"])
        shutil.copytree(tmp_path / "whole", store / "weight_v000001", dirs_exist_ok=True)
        engine.update()
        server.call("/reset_prefix_cache", {})
        assert answers(server) == expected(fresh["2"])


def test_an_engine_of_another_form_is_refused_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    from tensorwire.torch.integrations import vllm_weights

    vllm_weights.check_form()

    class Older:
        def __init__(self, config: Any, parallel_config: Any, model: Any) -> None:
            pass

    def trainer_init(config: Any, init_info: Any, *, client: Any, source: Any) -> None:
        pass

    expected = ("config", "vllm_config", "device", "model")
    for form, error in (
        ({Older: expected}, r"Older\(config, vllm_config, device, model\).*got \(config, parallel_config, model\)"),
        ({trainer_init: ("init_info", "client", "source")}, r"got \(config, init_info, client, source\)"),
    ):
        monkeypatch.setattr(vllm_weights, "_FORMS", form)
        with pytest.raises(ImportError, match=error + f".*in vLLM {vllm.__version__}"):
            vllm_weights.check_form()


def test_the_trainer_keeps_its_ranks_in_step(tmp_path: Path) -> None:
    """Sources run collectives: a rank that fails, or has nothing to publish, goes through all tensors as well."""
    import torch
    from vllm.distributed.weight_transfer import ModuleSource

    from tensorwire.torch.integrations import vllm_weights

    class Source(ModuleSource):
        def __iter__(self) -> Any:
            for pair in super().__iter__():
                seen.append(pair[0])
                yield pair

    class Client:
        def __getattr__(self, name: str) -> Any:
            def call(*given: Any) -> None:
                calls.append((name, *given))
                if name == "update_weights" and fails:
                    raise OSError("a worker has no room")

            return call

    layer = torch.nn.Linear(64, 64)
    calls: list[Any] = []
    fails: list[int] = []
    seen: list[str] = []

    def trainer(rank: int) -> Any:
        info = vllm_weights.TensorwireTrainerInitInfo(store=str(tmp_path / "store"), rank=rank)
        make = vllm_weights.TensorwireTrainerWeightTransferEngine.trainer_init
        return make(info, client=Client(), source=Source(layer))

    trainer(1).send_weights()
    assert (calls, seen) == ([], ["weight", "bias"])
    engine = trainer(0)
    facts = {"store": str(tmp_path / "store"), "threads": 1, "in_place": False}
    engine.send_weights()
    first = [("init_weight_transfer_engine", facts), ("start_weight_update",), ("update_weights", {"version": 0})]
    assert calls == [*first, ("finish_weight_update", "0")]
    calls.clear()
    fails.append(1)
    with pytest.raises(OSError, match="no room"):
        engine.send_weights()
    assert [name for name, *_ in calls] == ["start_weight_update", "update_weights", "finish_weight_update"]
    assert calls[-1] == ("finish_weight_update",)
    seen.clear()
    layer.weight = torch.nn.Parameter(torch.ones(2, 2).to_sparse(), requires_grad=False)
    with pytest.raises(tensorwire.errors.UnsupportedTensorError):
        engine.publish()
    assert seen == ["weight", "bias"]
    with pytest.raises(ValueError, match="expected a source"):
        vllm_weights.TensorwireTrainerWeightTransferEngine.trainer_init(None, client=Client())


def test_the_example_runs(repository: Path, tmp_path: Path) -> None:
    """With vLLM's engine in a process of its own, as by default."""
    command = [sys.executable, str(repository / "examples" / "vllm_weights.py")]
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "equal tokens: yes" in done.stdout
