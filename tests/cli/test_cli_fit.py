"""tensorwire fit: sizes of the forms, what is left for the context, and what it says where it does not know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import pytest
from safetensors.numpy import save_file

from tensorwire.cli import fitting, machine, options
from tensorwire.cli.architecture import Cache, Layers
from tensorwire.cli.machine import Gpu
from tests.cli.test_architecture import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_3_8B, MISTRAL_7B
from tests.support.command_line import weights

if TYPE_CHECKING:
    from tests.support.command_line import Run

# 2 heads x 8 values x 2 (keys, values) x 2 layers x 2 bytes: 128 bytes a token.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 1000, "torch_dtype": "bfloat16",
}  # fmt: skip
EMBEDDING, SMALL = (1000, 512), (300, 200)
NBYTES = 2 * (1000 * 512 + 300 * 200)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr("tensorwire.codec.cpu_target", lambda: "avx512")


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("llama")
    path.mkdir()
    tensors = {"embed": weights(1, EMBEDDING), "small": weights(2, SMALL)}
    arrays = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()}
    save_file(arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def write_config(path: Path, config: dict) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_forms_are_sums() -> None:
    cache = Cache((Layers(10, 50), Layers(10, 50, 100)), latent=False, limit=5000)
    dense, fast = fitting.forms(
        3_000_000, 400_000, {"fast": 2_000_000}, 3_000_000, cache, context=1000, batch=2, value_nbytes=2
    )
    # 10 x 50 values for each of 1000 tokens, and for 100: 550,000 of 2 bytes, twice.
    assert dense == fitting.Form("dense", 3_000_000, 0, 2_200_000, -2_200_000, 0)
    assert fast == fitting.Form("fast", 2_000_000, 400_000, 2_200_000, -1_600_000, 200)
    assert (dense.fits, fast.fits) == (False, False)
    # 200 tokens: (200 + 100) x 500 x 2 x 2 = 600,000 bytes, which is what is left.
    (exactly,) = fitting.forms(2_400_000, 0, {}, 3_000_000, cache, context=200, batch=2, value_nbytes=2)
    assert (exactly.left_nbytes, exactly.fits, exactly.longest_context) == (0, True, 200)
    (much,) = fitting.forms(0, 0, {}, 10**12, cache, context=200, batch=2, value_nbytes=2)
    assert much.longest_context == 5000, "the model takes no more"


def test_the_quickest_form_that_fits() -> None:
    def forms(**left: int) -> list[fitting.Form]:
        return [fitting.Form(name, 1, 0, None, nbytes, None) for name, nbytes in left.items()]

    best = fitting.quickest(forms(dense=1, resident=1, fast=1, compact=1), "resident")
    assert best is not None
    assert best.form == "resident"
    best = fitting.quickest(forms(dense=-3, resident=-2, fast=0, compact=1), "resident")
    assert best is not None
    assert best.form == "fast"
    assert fitting.quickest(forms(dense=1, fast=-1), "fast") is None


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("24GB", 24 * 10**9), ("24GiB", 24 * 2**30), ("1.5 tb", 15 * 10**11), ("80g", 80 * 10**9), ("512MiB", 2**29),
     ("7B", 7)],
)  # fmt: skip
def test_sizes(text: str, nbytes: int) -> None:
    assert options.parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["24", "GB", "-1GB", "24XB", "1e9B", ""])
def test_no_sizes(run: Run, llama: Path, text: str) -> None:
    ran = run("fit", llama, f"--memory={text}")
    assert ran.code == 2
    assert f"expected a size with its unit, such as 24GB or 24GiB, got {text!r}" in ran.err


@pytest.mark.parametrize("text", ["9" * 300 + "GB", "9" * 400 + "B", "2000PiB"])
def test_sizes_that_no_memory_has(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size of at most 1024 PiB, got"):
        options.parse_size(text)


@pytest.mark.parametrize("option", ["--context", "--batch"])
def test_numbers_that_nothing_can_print(run: Run, llama: Path, option: str) -> None:
    ran = run("fit", llama, "--memory=5MB", option, "9" * 4000)
    assert ran.code == 2
    assert option in ran.err


def test_a_plain_model_is_sampled(run: Run, llama: Path) -> None:
    found = run("fit", llama, "--memory", "5MB", "--json").json
    assert (found["sizes"], found["memory_nbytes"], found["memory"]) == ("samples", 5_000_000, "--memory")
    assert (found["context"], found["kv_dtype"], found["cache_nbytes_per_token"]) == (1000, "bf16", 128)
    forms = {form["form"]: form for form in found["forms"]}
    assert list(forms) == ["dense", "resident", "fast", "compact"]
    assert forms["dense"]["weights_nbytes"] == NBYTES
    assert forms["dense"]["workspace_nbytes"] == 0
    for profile, ratio in (("resident", 1.3), ("fast", 1.45), ("compact", 1.45)):
        form = forms[profile]
        assert ratio < NBYTES / form["weights_nbytes"] < 1.6
        assert form["workspace_nbytes"] == 2 * 1000 * 512
        assert form["cache_nbytes"] == 128_000
        used = form["weights_nbytes"] + form["workspace_nbytes"] + form["cache_nbytes"]
        assert form["left_nbytes"] == 5_000_000 - used
        assert form["fits"]
        assert form["longest_context"] == 1000
    assert found["command"] == [
        "tensorwire compress llama llama.tensorwire --profile fast",
        "tensorwire run llama.tensorwire 'The capital of France is'",
    ]


@pytest.mark.parametrize("profile", ["fast", "compact", "enec"])
def test_a_compressed_model_has_its_true_size(run: Run, llama: Path, profile: str) -> None:
    small = llama.with_name("small")
    assert run("compress", llama, small, "--profile", profile).code == 0
    found = run("fit", small, "--memory", "5MB", "--json").json
    assert found["sizes"] == "files"
    assert found["command"] == ["tensorwire run small 'The capital of France is'"]
    dense, stored = found["forms"]
    assert (stored["form"], stored["workspace_nbytes"]) == (profile, 2 * 1000 * 512)
    assert dense["weights_nbytes"] == NBYTES
    assert stored["weights_nbytes"] == run("inspect", small, "--json").json["stored_nbytes"]


def test_what_fits_in_no_form_is_a_finding(run: Run, llama: Path) -> None:
    ran = run("fit", llama, "--memory", "1MB")
    assert (ran.code, ran.err) == (3, "")
    rows = [line.split() for line in ran.out.splitlines() if line.startswith(("dense", "fast"))]
    assert rows[0] == ["dense", "1.14", "MB", "-", "128", "kB", "-272", "kB", "no", "0"]
    assert rows[1][-2:] == ["no", "0"]
    assert "tensorwire run" not in ran.out


def test_where_weights_can_stay_that_do_not_fit(run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note() -> str:
        notes = run("fit", llama, "--memory", "1MB", "--json").json["notes"]
        return next(note for note in notes if note.startswith("what does not fit can stay"))

    assert "resident_nbytes=" in note()
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu("NVIDIA L4", "8.9", None, 1_000_000, "550.1")])
    assert "tensorwire.torch.offload" in note()


def test_what_fits_compressed_alone(run: Run, tmp_path: Path) -> None:
    ran = run("fit", write_config(tmp_path / "llama", LLAMA_3_8B), "--memory", "16GB", "--json")
    assert ran.code == 0
    assert ran.json["sizes"] == "config.json"
    assert [form["fits"] for form in ran.json["forms"]] == [False, True, True, True]
    dense, resident, *_ = ran.json["forms"]
    assert dense["weights_nbytes"] == 2 * 8_030_261_248
    assert resident["workspace_nbytes"] == 2 * 525_336_576
    assert dense["cache_nbytes"] == 4096 * 131_072
    assert ran.json["command"] == []


def test_the_table_of_an_estimate(run: Run, tmp_path: Path) -> None:
    out = run("fit", write_config(tmp_path / "llama", LLAMA_3_8B) / "config.json", "--memory", "16GB").out
    assert "1 sequence of 4,096 tokens; key-value cache 131 kB a token in bf16\n" in out
    assert "note: all sizes are an estimate from config.json: nothing of the weights was seen\n" in out
    assert "note: not counted: activations, and what torch and a driver take" in out
    assert out.endswith("leave room for them\n"), "nothing is there to run"


def test_batch_and_dtype_of_the_cache(run: Run, llama: Path) -> None:
    found = run("fit", llama, "--memory", "5MB", "--batch", 3, "--kv-dtype", "f32", "--context", 10, "--json").json
    assert (found["cache_nbytes_per_token"], found["forms"][0]["cache_nbytes"]) == (256, 3 * 10 * 256)


def test_windows_without_a_limit_take_any_context(run: Run, tmp_path: Path) -> None:
    config = {name: value for name, value in MISTRAL_7B.items() if name != "max_position_embeddings"}
    out = run("fit", write_config(tmp_path / "mistral", config), "--memory", "80GB").out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("fast")] == ["any"]


def test_quantized_to_f8(run: Run, tmp_path: Path) -> None:
    config = {**DEEPSEEK_V3, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    found = run("fit", write_config(tmp_path / "v3", config), "--memory", "1TB", "--json").json
    assert found["forms"][0]["weights_nbytes"] == 671_026_279_424
    assert found["notes"] == ["the cache is that of latents, as engines for MLA keep it; Transformers keeps keys and "
                              "values"]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GPT_OSS_20B, "whose weights are not known here; give the directory with its safetensors files"),
        ({"architectures": ["BertModel"]}, "no key-value cache; give the directory with its safetensors files"),
        ({**LLAMA_3_8B, "quantization_config": {"quant_method": "gptq"}}, "of a model that is quantized"),
    ],
)
def test_config_that_is_not_enough(run: Run, tmp_path: Path, config: dict, words: str) -> None:
    ran = run("fit", write_config(tmp_path / "model", config), "--memory", "80GB")
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_a_cache_that_is_not_known_is_said(run: Run, llama: Path) -> None:
    (llama / "config.json").unlink()
    ran = run("fit", llama, "--memory", "5MB")
    assert ran.code == 0
    assert "note: no config.json beside the weights, so the key-value cache is not known; none is counted\n" in ran.out
    assert "tensorwire run" not in ran.out
    write_config(llama, {"architectures": ["BertModel"]})
    ran = run("fit", llama, "--memory", "5MB")
    assert "note: config.json is of a BertModel, which does not continue text and has no key-value cache" in ran.out
    assert ran.out.endswith("tensorwire compress llama llama.tensorwire --profile fast\n")
    assert [line.split()[-1] for line in ran.out.splitlines() if line.startswith("dense")] == ["-"]


def test_more_than_the_model_takes(run: Run, llama: Path) -> None:
    out = run("fit", llama, "--memory", "5MB", "--context", 1001).out
    assert "note: config.json says that the model takes 1,000 tokens at most\n" in out


def test_a_config_that_is_no_json(run: Run, llama: Path) -> None:
    (llama / "config.json").write_text("{")
    ran = run("fit", llama, "--memory", "5MB")
    assert ran.code == 1
    assert "config.json" in ran.err


def test_a_config_of_another_name(run: Run, llama: Path) -> None:
    ran = run("fit", (llama / "config.json").rename("llama.json"), "--memory", "5MB")
    assert (ran.code, ran.out) == (2, "")
    assert "expected a directory, a file of weights or config.json, got 'llama.json'" in ran.err


def test_a_delta_is_refused(run: Run, llama: Path) -> None:
    shutil.copytree(llama, "older")
    assert run("compress", llama, "delta", "--base", "older").code == 0
    ran = run("fit", "delta", "--memory", "5MB")
    assert (ran.code, ran.out) == (2, "")
    assert "is a delta, and takes what its base makes of it: decompress it first" in ran.err


def test_memory_of_the_machine_and_of_a_gpu(run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_nbytes", lambda: 8_000_000)
    found = run("fit", llama, "--json").json
    assert (found["memory_nbytes"], found["memory"]) == (8_000_000, "this machine")
    monkeypatch.setattr(machine, "gpus", lambda: [Gpu("NVIDIA H200", "9.0", 132, 9_000_000, "570")])
    found = run("fit", llama, "--json").json
    assert (found["memory_nbytes"], found["memory"]) == (9_000_000, "NVIDIA H200")
    assert found["command"][0].endswith("--profile resident")
    assert found["command"][1].startswith("python -i -c ")
    compile(found["command"][1].partition("-c ")[2].strip("'").replace("'\"'\"'", "'"), "command", "exec")
