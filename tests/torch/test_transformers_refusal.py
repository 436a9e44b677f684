"""A compressed checkpoint in the hands of libraries that do not know us: they fail, whatever they are told to ignore.

The way out is printed before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from pathlib import Path

import pytest

import tensorwire
from tensorwire.checkpoint.directory.config_and_index import METHOD
from tensorwire.files.names import payload_name
from tensorwire.files.reader import StoredFile
from tests.support.checkpoint_models import container

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")

import safetensors.torch as safetensors_torch  # noqa: E402
from transformers.quantizers import auto  # noqa: E402

from tensorwire.torch.integrations.transformers import TensorwireConfig, TensorwireQuantizer  # noqa: E402
from tests.support.stores import counted_store  # noqa: E402
from tests.support.transformer_models import MODELS, load, save  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own and torch's future

REFUSED = pytest.raises(safetensors.SafetensorError, match="Dtype not understood: F6_E2M3")
WAYS_OUT = ("install it", "import tensorwire.torch", "tensorwire decompress")


ORIGINALS = [("llama-headless", "1GB"), ("moe", "1GB"), ("mamba", "1GB"), ("llama", "1MB")]
SLOW_ORIGINALS = [("bert", "1GB"), ("llama", "1GB"), ("llama-tied", "1GB"), ("moe", "1MB")]


@pytest.fixture(
    scope="module",
    params=[*ORIGINALS, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_ORIGINALS)],
    ids=" in shards of ".join,
)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, shard_size = request.param
    path: Path = tmp_path_factory.mktemp("original") / name
    save(name, path, max_shard_size=shard_size)
    assert (len(list(path.glob("*.safetensors"))) > 1) == (shard_size == "1MB")
    return path


@pytest.fixture(scope="module")
def _compressed(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compressed") / "model"
    report = tensorwire.compress_checkpoint(original, path)
    assert any(file.num_compressed for file in report.files)
    return path


@pytest.fixture
def compressed(_compressed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_compressed, tmp_path / "compressed"))


@pytest.fixture(autouse=True)
def _unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test, or the import above, has registered us."""
    monkeypatch.delitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, METHOD, raising=False)
    monkeypatch.delitem(auto.AUTO_QUANTIZER_MAPPING, METHOD, raising=False)


def rewrite(path: Path, *, compressed: set[str]) -> None:
    """Write each file anew: tensors named in `compressed` as they are in it, all others dense."""
    where = {}
    for file in path.glob("*.safetensors"):
        entries = []
        with StoredFile(file) as stored, tensorwire.open_file(file, "bytes") as dense:
            for name, tensor in stored.tensors.items():
                dtype, shape, _ = stored.layout(name)
                if not tensor.compressed or name not in compressed:
                    entries.append((name, dtype, shape, dense.get_tensor(name)))
                    continue
                frame = stored.file.read(stored.header.data_start + tensor.entry.start, tensor.entry.nbytes)
                entries.append((payload_name(name), "U8", (len(frame),), frame))
                entries.append((name, "F6_E2M3", (0,), b""))
        file.write_bytes(container(entries, {"format": "pt"}))
        where.update(dict.fromkeys((entry[0] for entry in entries), file.name))
    index = path / "model.safetensors.index.json"
    if index.exists():
        index.write_text(json.dumps({**json.loads(index.read_text()), "weight_map": where}))


def names(path: Path) -> list[str]:
    """The first compressed tensor of each file."""
    found = []
    for file in sorted(path.glob("*.safetensors")):
        with StoredFile(file) as stored:
            found += sorted(name for name, tensor in stored.tensors.items() if tensor.compressed)
    return found


@pytest.mark.parametrize("ignore", [False, True], ids=["", "ignore_mismatched_sizes"])
@pytest.mark.parametrize("keep_key", [True, False], ids=["quantization_config", "key-removed"])
def test_transformers_raises(original: Path, compressed: Path, keep_key: bool, ignore: bool) -> None:
    if not keep_key:
        config = json.loads((compressed / "config.json").read_text())
        del config["quantization_config"]
        (compressed / "config.json").write_text(json.dumps(config))
    with REFUSED:
        load(compressed, original.name, ignore_mismatched_sizes=ignore)


def test_classes_of_models_raise(original: Path, compressed: Path) -> None:
    cls = type(MODELS[original.name][1]())
    with REFUSED:
        cls.from_pretrained(compressed, ignore_mismatched_sizes=True)


@pytest.mark.parametrize("ignore", [False, True], ids=["", "ignore_mismatched_sizes"])
def test_what_is_printed_names_the_ways_out(
    original: Path, compressed: Path, ignore: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)  # to where pytest looks
    with caplog.at_level("WARNING"), contextlib.suppress(safetensors.SafetensorError):
        load(compressed, original.name, ignore_mismatched_sizes=ignore)
    (warning,) = {r.getMessage() for r in caplog.records if "Unknown quantization type" in r.getMessage()}
    assert all(way in warning for way in WAYS_OUT)


def test_one_compressed_tensor_is_enough(original: Path, compressed: Path) -> None:
    # The head of one that is loaded without a head is not read.
    kept = next(name for name in names(compressed) if name != "lm_head.weight")
    rewrite(compressed, compressed={kept})
    with REFUSED:
        load(compressed, original.name, ignore_mismatched_sizes=True)


@torch_since(2, 8)
def test_what_save_pretrained_wrote_is_refused(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There frames stand under the names of their tensors, as F4."""
    with monkeypatch.context() as registered:
        registered.setitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, METHOD, TensorwireConfig)
        registered.setitem(auto.AUTO_QUANTIZER_MAPPING, METHOD, TensorwireQuantizer)
        load(original, original.name, quantization_config=TensorwireConfig()).save_pretrained(tmp_path / "saved")
    for ignore in (False, True):
        with pytest.raises((RuntimeError, safetensors.SafetensorError)):
            load(tmp_path / "saved", original.name, ignore_mismatched_sizes=ignore)


def test_state_dict_loaders_raise(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    safetensors_torch.save_file(module.state_dict(), tmp_path / "original.safetensors")
    file = tmp_path / "compressed.safetensors"
    tensorwire.compress_checkpoint(tmp_path / "original.safetensors", file)
    with REFUSED:
        safetensors_torch.load_file(file)
    with REFUSED:
        safetensors_torch.load_model(module, file, strict=False)


# The day on which torch has the dtype of markers: empty tensors of dtypes that it has stand for them. -----------------

HAS_F8_E8M0, HAS_F4 = (
    pytest.mark.skipif(not hasattr(torch, name), reason=f"this torch has no {name}")
    for name in ("float8_e8m0fnu", "float4_e2m1fn_x2")
)
KNOWN = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(b'"F8_E8M0"', id="F8_E8M0", marks=HAS_F8_E8M0),
        pytest.param(b'"F4"     ', id="F4", marks=HAS_F4),
    ],
)


def make_known(path: Path, dtype: bytes) -> None:
    for file in path.glob("*.safetensors"):
        data = file.read_bytes()
        assert b'"F6_E2M3"' in data
        file.write_bytes(data.replace(b'"F6_E2M3"', dtype))


@KNOWN
@pytest.mark.parametrize("assign", [False, True])
def test_the_shape_of_markers_is_the_second_line(tmp_path: Path, dtype: bytes, assign: bool) -> None:
    """It fits no weight, and `strict=False` lets no other shape pass."""
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    safetensors_torch.save_file(module.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "c").mkdir()
    file = tmp_path / "c" / "model.safetensors"
    tensorwire.compress_checkpoint(tmp_path / "model.safetensors", file)
    make_known(tmp_path / "c", dtype)
    before = module[0].weight
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"(?s)size mismatch for 0.weight.*torch.Size\(\[0\]\)"):
            module.load_state_dict(safetensors_torch.load_file(file), strict=strict, assign=assign)
        with pytest.raises(RuntimeError, match=r"size mismatch for 0.weight"):
            safetensors_torch.load_model(module, file, strict=strict)
    assert module[0].weight is before


@HAS_F8_E8M0
def test_transformers_takes_no_marker_for_a_weight(
    original: Path, compressed: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to ignore shapes, it says of each weight that it has drawn another one, and names the ways out."""
    make_known(compressed, b'"F8_E8M0"')
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        load(compressed, original.name)
    caplog.clear()
    with caplog.at_level("WARNING"):
        load(compressed, original.name, ignore_mismatched_sizes=True)
    assert "MISMATCH" in caplog.text
    assert "ckpt: torch.Size([0])" in caplog.text
    assert all(way in caplog.text for way in WAYS_OUT)


def test_peft_raises(tmp_path: Path) -> None:
    """Nothing of an adapter is printed; the error alone has to stop it."""
    peft = pytest.importorskip("peft")
    save("llama", tmp_path / "llama")
    config = peft.LoraConfig(r=32, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.get_peft_model(load(tmp_path / "llama", "llama"), config).save_pretrained(tmp_path / "adapter")
    tensorwire.compress_checkpoint(tmp_path / "adapter", tmp_path / "compressed")
    for ignore in (False, True):
        with REFUSED:
            peft.PeftModel.from_pretrained(
                load(tmp_path / "llama", "llama"), tmp_path / "compressed", ignore_mismatched_sizes=ignore
            )


def test_a_url_is_no_model() -> None:
    """Transformers refuses it before we are asked; docs/remote.md says to download a snapshot first."""
    with counted_store() as store:
        with pytest.raises(OSError, match="counted://s/model"):
            transformers.AutoModel.from_pretrained("counted://s/model")
        assert not store.asked
