"""Ways to run one model on a CPU: ours, dense ones, and what others offer for models larger than the memory."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.inference.decoders import OwnLinear, TorchDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.inference.model import Paths, Size

# What a limit of memory leaves for the program, its libraries, activations, the page cache, and two of the largest
# weights, both decoded and as they are read: the output matrix of 12b has 1.3 GB.
RESERVED_NBYTES = 6 << 30


@dataclass(frozen=True)
class Task:
    """What a contender loads.

    Attributes:
        size, paths: the model and where it lies.
        limit: of memory in bytes; None if there is none.
    """

    size: Size
    paths: Paths
    limit: int | None = None

    def budget(self) -> int:
        """How much of the weights may stay in memory: what the limit leaves, or half of them."""
        dense = 2 * self.size.numel
        return dense // 2 if self.limit is None else max(0, self.limit - RESERVED_NBYTES)


@dataclass(frozen=True)
class Contender:
    """One way to run the model.

    Attributes:
        name: in the results.
        load: makes it ready.
        profile: of the compressed checkpoint that it reads; None if it reads the dense one.
        exact: whether its logits must be those of dense torch, bit for bit.
        package: what it needs beside torch, transformers and tensorwire.
        make: writes files of its own, if they are not there.
    """

    name: str
    load: Callable[[Task], Any]
    profile: str | None = None
    exact: bool = True
    package: str | None = None
    make: Callable[[Size, Paths], None] | None = None

    @property
    def installed(self) -> bool:
        return self.package is None or find_spec(self.package) is not None


def warm_up() -> None:
    """Run a model of a few kilobytes: lazy imports, torch's threads, what its libraries set up when first called."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    AutoModelForCausalLM  # noqa: B018 - to name it is to import it
    config = LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, vocab_size=64
    )
    decoder = TorchDecoder(LlamaForCausalLM(config).to(torch.bfloat16).eval())
    for length in (1, 16):
        decoder.start([[1] * length])
        decoder.step([1])


def _empty(task: Task) -> Any:
    """The model without weights: what is no weight is there."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_pretrained(task.paths.dense)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval().requires_grad_(False)


def _fill(model: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(path), leaf, torch.nn.Parameter(tensor, requires_grad=False))
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if left:
        raise RuntimeError(f"no weights for {', '.join(left)}")
    return model


def _dense_tensors(task: Task) -> dict[str, torch.Tensor]:
    """Views of the mapped files: nothing is read before it is used."""
    from safetensors import safe_open

    tensors = {}
    for path in sorted(task.paths.dense.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - it is no mapping
    return tensors


def _dense(task: Task) -> TorchDecoder:
    """In memory of its own."""
    return TorchDecoder(_fill(_empty(task), {name: tensor.clone() for name, tensor in _dense_tensors(task).items()}))


def _mapped(task: Task) -> TorchDecoder:
    return TorchDecoder(_fill(_empty(task), _dense_tensors(task)))


def _from_pretrained(profile: str | None, task: Task) -> TorchDecoder:
    from transformers import AutoModelForCausalLM

    directory = task.paths.dense if profile is None else task.paths.compressed(profile)
    return TorchDecoder(AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval())


def _own_dense(task: Task) -> TorchDecoder:
    """Linear layers are products of our own with the dense weights, in the order of summation of *fused*."""
    decoder = _dense(task)
    for name, module in list(decoder.model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            decoder.model.set_submodule(name, OwnLinear(module.weight))
    return decoder


def _compressed(profile: str, mode: str, task: Task) -> TorchDecoder:
    from tensorwire.checkpoint import load_file
    from tensorwire.torch import set_linear_mode

    tensors = load_file(task.paths.compressed(profile), framework="pt", compressed=True)
    return TorchDecoder(set_linear_mode(_fill(_empty(task), tensors), mode))


def _ahead(profile: str, task: Task) -> TorchDecoder:
    from tensorwire.torch import decode_ahead

    decoder = _compressed(profile, "exact", task)
    decoder.keep = decode_ahead(decoder.model)
    return decoder


def _streaming(profile: str, held: bool, task: Task) -> TorchDecoder:
    """What has no place in the budget is read from the files each time; all of it where nothing is to be held."""
    from tensorwire.checkpoint import load_file
    from tensorwire.torch import decode_ahead

    tensors = load_file(
        task.paths.compressed(profile),
        framework="pt",
        compressed=True,
        resident_nbytes=task.budget() if held else 0,
    )
    decoder = TorchDecoder(_fill(_empty(task), tensors))
    decoder.keep = decode_ahead(decoder.model)
    return decoder


def _accelerate_cpu(task: Task) -> TorchDecoder:
    from accelerate import cpu_offload

    decoder = _dense(task)
    cpu_offload(decoder.model, execution_device=torch.device("cpu"))
    return decoder


def _accelerate_disk(task: Task) -> TorchDecoder:
    """Layers that have no place in the budget are read from the checkpoint each time."""
    from transformers import AutoModelForCausalLM

    ends, *layers = task.size.part_nbytes()
    left = task.budget() - ends * (1 if task.size.tied else 2)
    places: dict[str, str] = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    for index, nbytes in enumerate(layers):
        left -= nbytes
        places[f"model.layers.{index}"] = "cpu" if left >= 0 else "disk"
    folder = task.paths.folder / "offload"
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_pretrained(
        task.paths.dense, dtype="auto", device_map=places, offload_folder=str(folder)
    )
    return TorchDecoder(model.eval())


def _zipnn(task: Task) -> TorchDecoder:
    """Decompressed while it is loaded."""
    from benchmarks.inference.zipnn_files import load

    return TorchDecoder(_fill(_empty(task), load(task.paths)))


def _make_zipnn(size: Size, paths: Paths) -> None:
    from benchmarks.inference import zipnn_files

    if not zipnn_files.index(paths).exists():
        zipnn_files.write(paths)


def _make_llama_cpp(size: Size, paths: Paths) -> None:
    from benchmarks.inference import llama_cpp

    if not llama_cpp.file(paths).exists():
        llama_cpp.write(size, paths)


def _llama_cpp(task: Task) -> Any:
    from benchmarks.inference import llama_cpp

    return llama_cpp.LlamaCppDecoder(llama_cpp.file(task.paths))


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("dense", _dense),
        Contender("dense, from_pretrained", partial(_from_pretrained, None)),
        Contender("dense, mmap", _mapped),
        Contender("own dense kernel", _own_dense, exact=False),
        *(Contender(f"exact, {p}", partial(_compressed, p, "exact"), p) for p in ("fast", "resident")),
        Contender("exact, from_pretrained", partial(_from_pretrained, "fast"), "fast"),
        *(Contender(f"fused, {p}", partial(_compressed, p, "fused"), p, exact=False) for p in ("fast", "resident")),
        Contender("decode ahead, fast", partial(_ahead, "fast"), "fast"),
        Contender("streaming, fast", partial(_streaming, "fast", True), "fast"),
        Contender("streaming all, fast", partial(_streaming, "fast", False), "fast"),
        Contender("accelerate, CPU offload", _accelerate_cpu, package="accelerate"),
        Contender("accelerate, disk offload", _accelerate_disk, package="accelerate"),
        Contender("ZipNN", _zipnn, package="zipnn", make=_make_zipnn),
        Contender("llama.cpp", _llama_cpp, exact=False, package="llama_cpp", make=_make_llama_cpp),
    )
}
NOT_RUN = {
    "DFloat11": "its decoder is a kernel of CUDA: it does not run on a CPU",
}
"""Others, and why they are not run."""
