"""vLLM: models whose weights are read from a compressed checkpoint, and stay compressed in memory.

vLLM finds `register` by the entry point ``vllm.general_plugins`` and calls it in each of its processes. It registers

- the load format ``tensorwire``, a model loader that reads plain and compressed checkpoints and decodes each tensor;
- the quantization ``tensorwire``, which vLLM takes by itself where ``config.json`` names it. Its layers compress their
  weight as soon as it is whole, sharded and merged as vLLM has it, and multiply with the compressed one;
- the weight transfer engine ``tensorwire`` (`vllm_weights`), where vLLM has such engines.

docs/vllm.md says how to use them. Nothing of vLLM is patched.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_online_processing,
)
from vllm.model_executor.parameter import ModelWeightParameter
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from ...checkpoint import open_file
from ...checkpoint.directory.config_and_index import NAME, check_config
from ..frames.open_frame import Origin, attach, ready_to_multiply
from ..ops import LINEAR_MODES
from ..tensors.compressed_tensor import CompressedTensor

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...checkpoint import TensorReader

_CHOICES = {"weights": ("compressed", "dense"), "linear_mode": LINEAR_MODES, "profile": ("fast", "resident")}
"""The keys of ``model_loader_extra_config``, with their values; the first is the default. On a GPU the last profile
is: its weights are multiplied without being decoded."""

_NO_UPDATE = (
    "vLLM cannot update weights that stay compressed; start it with "
    f"load_format={NAME!r} and model_loader_extra_config={{'weights': 'dense'}}"
)

# Its layers for CPUs keep a packed copy of their weight. An update packs the embedding anew, and not the head.
_TIED = (
    "the model has tied weights, of which vLLM's CPU backend updates one layer and leaves the other as it was; start "
    "vLLM again on the new checkpoint"
)


def register() -> None:
    """Make all this known to vLLM, once in each process."""
    if NAME in QUANTIZATION_METHODS:
        return
    register_quantization_config(NAME)(TensorwireConfig)
    register_model_loader(NAME)(TensorwireModelLoader)
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError:  # an older vLLM
        return
    place = f"{__package__}.vllm_weights"  # imported when it is chosen, which is when an unknown form is refused
    WeightTransferEngineFactory.register_engine(NAME, place, "TensorwireWeightTransferEngine")
    WeightTransferTrainerFactory.register_engine(NAME, place, "TensorwireTrainerWeightTransferEngine")


def _choices(load_config: Any) -> dict[str, str]:
    """The user's choices among `_CHOICES`.

    Raises:
        ValueError: there is no such key or value.
    """
    chosen = {key: values[0] for key, values in _CHOICES.items()}
    if current_platform.is_cuda():
        chosen["profile"] = "resident"
    if load_config.load_format != NAME:
        return chosen  # the extra configuration is another loader's
    for key, value in (load_config.model_loader_extra_config or {}).items():
        if key not in _CHOICES:
            raise ValueError(f"expected keys of model_loader_extra_config among {', '.join(_CHOICES)}, got {key!r}")
        if value not in _CHOICES[key]:
            raise ValueError(f"expected {key} to be one of {', '.join(_CHOICES[key])}, got {value!r}")
        chosen[key] = value
    return chosen


class TensorwireModelLoader(BaseModelLoader):  # type: ignore[misc] # the checker does not see vLLM
    """Reads a checkpoint, plain or compressed, tensor by tensor."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        _choices(load_config)

    def download_model(self, model_config: Any) -> None:
        """Fetch a model of the Hugging Face hub."""
        checkpoint_directory(model_config, self.load_config)

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Decode all tensors into the model.

        Raises:
            ValueError: the checkpoint lacks tensors of the model.
            FormatError: it is damaged.
        """
        wanted = {name for name, _ in model.named_parameters()}
        reader = self._open(model_config)
        model.tensorwire_shapes = _shapes(reader)
        loaded = model.load_weights(_tensors(reader))
        missing = set() if loaded is None else wanted - loaded
        if missing:
            raise ValueError(f"{model_config.model} lacks {len(missing)} tensors of the model: {sorted(missing)}")

    def get_all_weights(self, model_config: Any, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """All tensors of another checkpoint, for a model that serves: vLLM's ``reload_weights`` asks for them.

        It does so before it touches the model, so after an error of this call the weights are what they were.

        Raises:
            ValueError: the weights stay compressed, or are tied and on a CPU; or the checkpoint lacks a tensor that the
                first one had.
            FormatError: a header of the checkpoint is damaged.
            OSError: a file of it is missing.
        """
        check_takes_updates(model)
        reader = self._open(model_config)
        found = _shapes(reader)
        lacking = sorted(name for name, shape in model.tensorwire_shapes.items() if found.get(name) != shape)
        if lacking:
            reader.close()
            raise ValueError(
                f"{model_config.model} lacks {len(lacking)} tensors of the checkpoint before it, or has them in "
                f"another shape: {lacking}"
            )
        undo_begun_reload(model, model_config)
        return _tensors(reader)

    def _open(self, model_config: Any) -> TensorReader[Tensor]:
        return open_file(checkpoint_directory(model_config, self.load_config), framework="pt")


def checkpoint_directory(model_config: Any, load_config: Any) -> Path:
    """The checkpoint of a model, fetched if it is one of the Hugging Face hub."""
    path = Path(model_config.model)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.safetensors.index.json"]
    cache = load_config.download_dir
    return Path(
        snapshot_download(model_config.model, revision=model_config.revision, cache_dir=cache, allow_patterns=patterns)
    )


def check_takes_updates(model: nn.Module) -> None:
    """Raise ValueError for a model whose weights cannot be updated: they stay compressed, or vLLM's CPU backend has
    them and they are tied, or converted otherwise than those of linear layers."""
    if any(isinstance(getattr(layer, "quant_method", None), CompressedLinearMethod) for layer in model.modules()):
        raise ValueError(_NO_UPDATE)
    if not current_platform.is_cpu():
        return
    if len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False))):
        raise ValueError(_TIED)
    for name, method in converted_layers(model):
        raise ValueError(
            f"vLLM's CPU backend cannot update {name}, whose weights {method} has converted; start vLLM again on the "
            "new checkpoint"
        )


def converted_layers(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Layers whose weights vLLM may have converted when they were loaded, such as fused experts and quantized ones, and
    what has done it."""
    for name, layer in model.named_modules():
        method = type(getattr(layer, "quant_method", None))
        if method not in (type(None), UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
            yield name, method.__name__


def undo_begun_reload(model: nn.Module, model_config: Any) -> None:
    """Give layers in which a reload has ended midway the tensors back that it has put aside, so that another one can
    begin there, too: vLLM goes on where the first one ended. The content may be of two versions."""
    begun = [info for info in map(get_layerwise_info, model.modules()) if info.kernel_tensors is not None]
    if not begun:
        return
    for layer in model.modules():
        info = get_layerwise_info(layer)
        info.loaded_weights.clear()
        if info.kernel_tensors is not None:
            initialize_online_processing(layer)
        info.load_numel = 0
    finalize_layerwise_reload(model, model_config)


def _tensors(reader: TensorReader[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """By name: those of one layer come together, so that vLLM is done with it before the next is decoded."""
    with reader:
        for name in reader.keys():  # noqa: SIM118 - sorted, as iteration over a reader need not be
            yield name, reader.get_tensor(name)


def _shapes(reader: TensorReader[Tensor]) -> dict[str, list[int]]:
    return {name: reader.get_slice(name).get_shape() for name in reader}


class TensorwireConfig(QuantizationConfig):  # type: ignore[misc]
    """Says how layers use their weights. It changes no value, unlike a quantization."""

    def __init__(self, compressed_checkpoint: bool = False) -> None:
        """`compressed_checkpoint`: only our loader can read it."""
        super().__init__()
        self._compressed_checkpoint = compressed_checkpoint

    def get_name(self) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TensorwireConfig:
        """From the ``quantization_config`` of a compressed directory."""
        check_config(config)
        wrapped = config.get("wrapped")
        if wrapped is not None:
            method = wrapped.get("quant_method") if isinstance(wrapped, dict) else wrapped
            raise ValueError(
                f"the model was quantized ({method}) before it was compressed, which the vLLM plug-in does not "
                "support; run tensorwire decompress and give vLLM the result"
            )
        return cls(compressed_checkpoint=True)

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any] | None, user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """``quant_method`` in config.json is our name and a hint for people who lack us."""
        method = str((hf_quant_cfg or {}).get("quant_method", ""))
        return NAME if method.partition(" ")[0] == NAME else None

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        if not isinstance(layer, LinearBase | VocabParallelEmbedding):
            return None  # vLLM's own: attention, fused experts
        vllm_config = get_current_vllm_config()
        load_config = vllm_config.load_config
        if self._compressed_checkpoint and load_config.load_format != NAME:
            raise ValueError(
                f"expected load_format={NAME!r} (--load-format {NAME}) for a compressed checkpoint, got "
                f"{load_config.load_format!r}"
            )
        choices = _choices(load_config)
        embedding = isinstance(layer, VocabParallelEmbedding)
        if choices["weights"] == "dense":
            return UnquantizedEmbeddingMethod() if embedding else UnquantizedLinearMethod()
        if not (current_platform.is_cpu() or current_platform.is_cuda()):
            raise ValueError(
                "vLLM keeps weights compressed on CPUs and on NVIDIA's GPUs only; on other devices use "
                f"load_format={NAME!r} and model_loader_extra_config={{'weights': 'dense'}}"
            )
        # vLLM keeps compiled graphs by a hash of its configuration, of which this field is the one for plug-ins.
        hashed = vllm_config.additional_config
        facts = hashed if isinstance(hashed, dict) else {}
        return CompressedLinearMethod(prefix, choices["profile"], choices["linear_mode"], facts)


class CompressedLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """A layer whose weight is a frame: linear layers, embeddings, the head.

    vLLM makes the weight on the meta device, and in memory once all its parts have been read. Then it is compressed. On
    a GPU its frame is opened at once, so that nothing is left to be made when vLLM captures graphs; there an embedding
    stays dense if no kernel takes its rows.
    """

    uses_meta_device = True

    def __init__(self, prefix: str, profile: str, linear_mode: str, graph_facts: dict[str, Any]) -> None:
        """`graph_facts`: where to note what a compiled graph takes for constant."""
        self._prefix = prefix
        self._profile: Any = profile
        self._linear_mode = linear_mode
        self._graph_facts = graph_facts

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        layer.dense_shape = (sum(output_partition_sizes), input_size_per_partition)
        layer.dense_dtype = params_dtype
        weight = ModelWeightParameter(
            data=torch.empty(layer.dense_shape, dtype=params_dtype, device="meta"),
            input_dim=1,
            output_dim=0,
            weight_loader=extra_weight_attrs["weight_loader"],
        )
        layer.register_parameter("weight", weight)
        initialize_online_processing(layer)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Put a frame in the place of the weight. vLLM may call it twice, and resets the mark when it reloads.

        Raises:
            ValueError: the checkpoint lacks a part of the weight, such as one of those that vLLM merges; or vLLM's own
                loader reloads the weight, which ours refuses before.
        """
        if getattr(layer, "_already_called_process_weights_after_loading", False):
            return
        loading = get_layerwise_info(layer)
        if loading.kernel_tensors is not None:
            raise ValueError(_NO_UPDATE)
        padded = isinstance(layer, VocabParallelEmbedding)
        if not padded and 0 < (loading.load_numel or 0) < (loading.load_numel_total or 0):
            raise ValueError(
                f"the checkpoint lacks a part of {self._prefix}: {loading.load_numel} of {loading.load_numel_total} "
                "elements were read"
            )
        compressed = CompressedTensor.from_dense(layer.weight.data, self._profile)
        dense = layer.weight
        replace_parameter(layer, "weight", compressed.frame)
        if compressed.device.type == "cpu":
            attach(layer.weight, Origin(tensor=self._prefix, verify=False))
        elif ready_to_multiply(layer.weight).rows is None and padded:  # the host would look for rows, and wait
            replace_parameter(layer, "weight", dense)
        self._graph_facts[f"{NAME}:{self._prefix}"] = [self._linear_mode, layer.weight.numel()]
        layer._already_called_process_weights_after_loading = True

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if layer.weight.dtype == layer.dense_dtype:
            return torch.nn.functional.linear(x, layer.weight, bias)
        product: Tensor = torch.ops.tensorwire.linear(
            x, layer.weight, layer.dense_dtype, layer.dense_shape, bias, self._linear_mode
        )
        return product

    def embedding(self, layer: nn.Module, indices: Tensor) -> Tensor:
        if layer.weight.dtype == layer.dense_dtype:
            return torch.nn.functional.embedding(indices, layer.weight)
        rows: Tensor = torch.ops.tensorwire.rows(layer.weight, layer.dense_dtype, layer.dense_shape, indices)
        return rows

    def tie_weights(self, layer: nn.Module, embed_tokens: nn.Module) -> nn.Module:
        """The embedding is the head, too: when vLLM calls this, neither has its frame yet."""
        return embed_tokens
