"""tensorwire run: the tokens of the dense model, what is printed where, and what cannot be run."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import tensorwire
from tensorwire._ground.packages import how_to_install
from tests.support.checkpoint_models import contents
from tests.support.command_line import COMMAND, damage

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import save_file  # noqa: E402

import tensorwire.torch  # noqa: E402
from tests.support import text_models  # noqa: E402
from tests.support.text_models import POSITIONS  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.command_line import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future

PROMPT = "Once upon a time"
CHAT = "{% for m in messages %}<s>{{ m.role }} {{ m.content }}{% endfor %}{% if add_generation_prompt %}A{% endif %}"


@pytest.fixture(autouse=True)
def quiet_transformers() -> Iterator[None]:
    """The command silences Transformers in its process, which here is that of all tests."""
    level = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(level)
    transformers.logging.enable_progress_bar()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    text_models.save(root / "plain")
    tensorwire.compress_checkpoint(root / "plain", root / "small")
    text_models.save(root / "chat", chat_template=CHAT)
    return root


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A plain model to be changed."""
    return shutil.copytree(folder / "plain", tmp_path / "model")


def typed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("name", ["plain", "small"])
def test_tokens_are_those_of_the_dense_model(folder: Path, run: Run, name: str) -> None:
    before = contents(folder / name)
    found = run("run", folder / name, PROMPT, "-n", 8, "--json").json
    inputs = text_models.tokenizer()(PROMPT, return_tensors="pt")
    assert found["tokens"] == text_models.greedy(folder / "plain", inputs, 8)
    assert found["text"] == text_models.tokenizer().decode(found["tokens"], skip_special_tokens=True)
    assert found["num_prompt_tokens"] == len(PROMPT)
    assert found["compressed_while_loading"] == (name == "plain")
    assert contents(folder / name) == before


def test_memory_is_that_of_the_model_in_memory(folder: Path, run: Run) -> None:
    found = run("run", folder / "small", PROMPT, "-n", 1, "--json").json
    dense = transformers.AutoModelForCausalLM.from_pretrained(folder / "plain")
    tensors = {tensor.data_ptr(): tensor for tensor in (*dense.parameters(), *dense.buffers())}.values()
    assert found["dense_nbytes"] == sum(tensor.nbytes for tensor in tensors)
    assert found["ratio"] == found["dense_nbytes"] / found["nbytes"] > 1.3
    assert found["peak_nbytes"] > found["nbytes"]
    assert found["tokens_per_second"] is None


def test_the_text_comes_in_pieces_and_figures_go_to_standard_error(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = run("run", folder / "small", PROMPT, "-n", 8, "--json").json["text"]
    flushed: list[str] = []

    class Output(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Output())
    ran = run("run", folder / "small", PROMPT, "-n", 8)
    assert ran.code == 0
    assert flushed[-1] == f"{text}\n"
    assert len(set(flushed)) > 3
    assert "8 tokens, " in ran.err
    assert " a second after the first" in ran.err
    assert " dense, ratio " in ran.err
    assert ran.err.count("\n") == 2


def test_a_terminal_obeys_nothing_that_a_model_writes(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "decode", lambda *_, **__: "a\x1b[2J\r\x9bb\t\n")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    assert run("run", folder / "small", PROMPT, "-n", 1).code == 0
    assert shown.getvalue() == "a\\x1b[2J\\r\\x9bb\t\n\n"


def test_a_plain_directory_gets_a_note_that_compressing_saves_time(folder: Path, tmp_path: Path, run: Run) -> None:
    spaced = tmp_path / "tiny llama"
    spaced.symlink_to(folder / "plain")
    assert f"; tensorwire compress '{spaced}' saves that\n" in run("run", spaced, PROMPT, "-n", 2).err


def test_a_seed_draws_the_same_tokens_again(folder: Path, run: Run) -> None:
    drawn = [run("run", folder / "small", PROMPT, "-n", 6, "--json", *seed).json["tokens"]
             for seed in (("--seed", 1), ("--seed", 1), ("--seed", 2), ())]  # fmt: skip
    assert drawn[0] == drawn[1]
    assert len(set(map(tuple, drawn))) == 3


def test_a_chat_template_makes_a_message_of_the_prompt(folder: Path, run: Run) -> None:
    found = run("run", folder / "chat", PROMPT, "-n", 8, "--json").json
    message = text_models.tokenizer()(f"<s>user {PROMPT}A", return_tensors="pt")
    assert found["num_prompt_tokens"] == message["input_ids"].shape[1] == len(f"user {PROMPT}A") + 1
    assert found["tokens"] == text_models.greedy(folder / "plain", message, 8)


def test_the_model_ends_the_text(copied: Path, run: Run) -> None:
    tokens = run("run", copied, PROMPT, "-n", 8, "--json").json["tokens"]
    last = tokens[3]
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": last}))
    assert run("run", copied, PROMPT, "-n", 8, "--json").json["tokens"] == tokens[: tokens.index(last) + 1]


def test_the_text_ends_where_the_model_can_read_no_more(folder: Path, run: Run) -> None:
    assert len(run("run", folder / "small", "x" * (POSITIONS - 3), "--json").json["tokens"]) == 3
    ran = run("run", folder / "small", "x" * POSITIONS)
    assert ran.code == 2
    assert f"1 to {POSITIONS - 1} tokens for this model, got {POSITIONS}" in ran.err


@pytest.mark.parametrize("argument", [(), ("-",)])
def test_the_prompt_may_come_from_standard_input(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, argument: tuple[str, ...]
) -> None:
    expected = run("run", folder / "small", PROMPT, "-n", 5, "--json").json
    typed(monkeypatch, PROMPT.encode() + b"\n")
    found = run("run", folder / "small", *argument, "-n", 5, "--json").json
    assert (found["tokens"], found["num_prompt_tokens"]) == (expected["tokens"], expected["num_prompt_tokens"])


def test_a_prompt_has_to_be_text(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, words in ((b"\n", "empty standard input"), (b"\xff", "in UTF-8")):
        typed(monkeypatch, data)
        ran = run("run", folder / "small")
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
    assert "empty text" in run("run", folder / "small", "").err
    assert "in UTF-8" in run("run", folder / "small", "\udcff").err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert "Missing argument 'PROMPT'" in run("run", folder / "small").err


def without(*names: str) -> Callable[[Path], None]:
    def remove(path: Path) -> None:
        for name in names:
            (path / name).unlink()

    return remove


def config(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        found = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**found, **changes}))

    return change


def holding(name: str, text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        (path / name).write_text(text)

    return change


def other(model: str) -> Callable[[Path], None]:
    """Another architecture, whose tokenizer is made of no file at all without an error."""

    def change(path: Path) -> None:
        without("tokenizer.json", "tokenizer_config.json")(path)
        config(model_type=model)(path)

    return change


def lacking_a_tensor(path: Path) -> None:
    tensors = tensorwire.load_file(path / "model.safetensors", framework="pt")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def gguf(path: Path) -> None:
    without("config.json")(path)
    (path / "model.gguf").touch()


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (without("config.json"), 2, "expected a directory with config.json"),
        (gguf, 2, "GGUF is another format"),
        (config(architectures=None), 2, "names no architecture"),
        (holding("config.json", '{"architectures": ["Llama'), 2, "is no JSON, is it damaged? Unterminated string"),
        (holding("config.json", "[" * 100_000), 2, "is no JSON, is it damaged? maximum recursion depth"),
        (config(architectures=["BertModel"]), 2, "is a BertModel, which does not continue text"),
        (config(quantization_config={"quant_method": "gptq"}), 2, "quantized already"),
        (without("tokenizer.json", "tokenizer_config.json"), 2, "copy tokenizer.json"),
        (other("qwen3"), 2, "copy tokenizer.json"),
        (without("model.safetensors"), 1, "no file named model.safetensors"),
        (holding("chat_template.jinja", "{% for"), 1, "or its chat template, cannot take the prompt: unexpected 'end"),
        (holding("chat_template.jinja", "{{ raise_exception('users alone') }}"), 1, "take the prompt: users alone"),
        (lacking_a_tensor, 1, "lacks 1 tensor of the model, such as 'model.layers.1.mlp.up_proj.weight'"),
        (holding("generation_config.json", '{"cache_implementation": "quantized"}'), 1, "Transformers cannot generate"),
    ],
)
def test_what_is_no_model_that_continues_text(
    copied: Path, run: Run, change: Callable[[Path], None], code: int, words: str
) -> None:
    change(copied)
    ran = run("run", copied, PROMPT)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err
    assert run("run", copied, PROMPT, "--json").json["error"]["message"] in ran.err


def test_code_beside_a_model_is_not_run_even_if_standard_input_agrees(
    copied: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would ask whether to run it, and read the answer there."""
    classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.Tokens", None]}
    config(model_type="own", auto_map=classes)(copied)
    (copied / "own.py").write_text(f"open({str(copied / 'ran')!r}, 'w')\nclass Config: ...\n")
    typed(monkeypatch, b"y\n" * 9)
    ran = run("run", copied, PROMPT)
    assert (ran.code, ran.out) == (1, "")
    assert "contains custom code" in ran.err
    assert not (copied / "ran").exists()


def test_settings_of_generation_that_change_nothing_of_the_text(copied: Path, run: Run) -> None:
    """Transformers would give an object in place of tokens."""
    config(quantization_config=None)(copied)
    tokens = run("run", copied, PROMPT, "-n", 5, "--json").json["tokens"]
    (copied / "generation_config.json").write_text(json.dumps({"return_dict_in_generate": True}))
    assert run("run", copied, PROMPT, "-n", 5, "--json").json["tokens"] == tokens


@pytest.mark.parametrize("name", ["plain", "small"])
def test_tensors_that_the_model_has_no_place_for_are_told(folder: Path, tmp_path: Path, run: Run, name: str) -> None:
    path = shutil.copytree(folder / name, tmp_path / "model")
    config(num_hidden_layers=1)(path)
    unused = run("run", path, PROMPT, "-n", 2, "--json").json["unused"]
    assert len(unused) == 9
    assert unused[0] == "model.layers.1.input_layernorm.weight"
    assert f"has no place for 9 tensors of the files, such as {unused[0]!r}" in run("run", path, PROMPT, "-n", 2).err
    assert run("run", folder / name, PROMPT, "-n", 2, "--json").json["unused"] == []


def test_a_config_that_is_not_the_compressed_one_is_named(folder: Path, tmp_path: Path, run: Run) -> None:
    path = shutil.copytree(folder / "small", tmp_path / "model")
    shutil.copy(folder / "plain" / "config.json", path)
    ran = run("run", path, PROMPT)
    assert (ran.code, ran.out) == (1, "")
    assert "its config.json says nothing of compressed weights" in ran.err


def test_a_name_of_a_hub_is_told_how_to_get_it(run: Run) -> None:
    ran = run("run", "someone/a-model", PROMPT)
    assert ran.code == 2
    assert "hf download someone/a-model --local-dir a-model" in ran.err
    assert "hf download" not in run("run", "nothing", PROMPT).err


def test_the_name_of_a_model_in_the_hubs_cache(
    copied: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "home" / "hub" / "models--someone--a-model" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    copied.rename(snapshot)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    ran = run("run", "someone/a-model", PROMPT, "-n", 1)
    assert (ran.code, ran.out != "") == (0, True)


def test_a_delta_is_refused(folder: Path, copied: Path, tmp_path: Path, run: Run) -> None:
    tensors = tensorwire.load_file(copied / "model.safetensors", framework="pt")
    tensors["lm_head.weight"][3] *= 2
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    tensorwire.compress_checkpoint(copied, tmp_path / "delta", base=folder / "plain")
    ran = run("run", tmp_path / "delta", PROMPT)
    assert ran.code == 1
    assert "is a delta" in ran.err
    assert "tensorwire decompress DELTA FOLDER --base OLD" in ran.err


def test_damage_is_named(folder: Path, tmp_path: Path, run: Run) -> None:
    path = shutil.copytree(folder / "small", tmp_path / "damaged")
    file = path / "model.safetensors"
    damage(file, file.stat().st_size // 2)
    ran = run("run", path, PROMPT)
    assert (ran.code, ran.out) == (1, "")
    assert "expected checksum" in ran.err
    assert "model.layers." in ran.err


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_is_named_with_what_to_type(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ran = run("run", folder / "small", PROMPT)
    assert ran.code == 2
    assert f"needs {package}, which is not installed: {how_to_install('transformers')}" in ran.err


def test_an_old_transformers_is_refused(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.15.2")
    ran = run("run", folder / "small", PROMPT)
    assert ran.code == 2
    assert "needs transformers 5.16 or later, got 5.15.2; pip install -U transformers" in ran.err


@pytest.mark.slow
def test_an_interrupt_and_a_closed_pipe_end_it(copied: Path) -> None:
    config(max_position_embeddings=10**6)(copied)
    for code, what in ((130, "interrupt"), (141, "close")):
        command = [*COMMAND, "run", copied, PROMPT, "-n", "100000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(1)
            if what == "interrupt":
                process.send_signal(signal.SIGINT)
                process.stdout.read()
            else:
                process.stdout.close()
            assert process.stderr.read() == (b"tensorwire: interrupted\n" if what == "interrupt" else b"")
            assert process.wait() == code
