"""Hugging Face Transformers 5.16 and later: `from_pretrained` and `save_pretrained` with compressed weights.

``import tensorwire.torch`` registers it; the page docs/transformers.md says how it is used. All
code that depends on the version of Transformers stands in this file.

While Transformers loads, small files stand for those of the checkpoint. They name the same tensors, each of which is a
pair of numbers that says where the tensor is. Transformers matches and renames the original names and never meets a
marker. The frames are read here, by operations that stand before and behind its own.
"""

from __future__ import annotations

import re
import shutil
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import copy
from inspect import signature
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..._ground.copies import not_copied
from ...checkpoint.directory.config_and_index import METHOD, NAME, check_config
from ...checkpoint.directory.manifest import VERSION
from ...codec import Profile, as_array, num_threads
from ...errors import ErrorContext
from ...files.beside import open_beside
from ...files.load_ahead import LoadAhead
from ...files.loader import check_verify
from ...files.names import FRAME_DTYPE
from ...files.reader import FRAMES_KEY, StoredFile, StoredTensor
from ...storage.pages import PagesAhead
from ..frames.open_frame import opened
from ..loading import mapped, stays_compressed
from ..modules import DTYPES, MIN_NUMEL, decompress_module
from ..ops import check_linear_mode
from ..prepared import prepare
from ..tensors.compressed_tensor import CompressedTensor
from .inductor import inductor

if TYPE_CHECKING:
    from torch import Tensor

    from ...files.loader import Verify

    _Change = Callable[[Tensor, str, Any], Tensor]


@register_quantization_config(NAME)
@register_quantization_config(METHOD)
class TensorwireConfig(QuantizationConfigMixin):  # type: ignore[misc] # the checker does not see transformers
    """How a model is compressed, for ``from_pretrained(..., quantization_config=...)`` of an uncompressed checkpoint.

    For a compressed checkpoint config.json says it, and Transformers takes no other. To change it, change
    ``config.quantization_config`` of ``config = AutoConfig.from_pretrained(...)`` and pass ``config=config``.
    """

    def __init__(
        self,
        profile: Profile = "fast",
        *,
        min_numel: int = MIN_NUMEL,
        linear_mode: str = "exact",
        dequantize: bool = False,
        verify: Verify = True,
        wrapped: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            profile: "fast", or "resident", which is larger; where it decodes faster, docs/performance.md says.
            min_numel: smaller parameters are dense in memory.
            linear_mode: "exact" or "fused", as for `compress_module`.
            dequantize: decompress while loading: the model is dense and knows nothing of tensorwire.
            verify: True, "load" or False, as for `load_file`; it is not saved with the model.
            wrapped: what config.json said before the checkpoint was compressed, if it was quantized too.

        Raises:
            ValueError: an option has a value that it cannot have.
        """
        if profile not in get_args(Profile):
            raise ValueError(f"expected one of the profiles {', '.join(get_args(Profile))}, got {profile!r:.60}")
        if type(min_numel) is not int or min_numel < 0:
            raise ValueError(f"expected an integer min_numel from 0 on, got {min_numel!r:.60}")
        if type(dequantize) is not bool:  # "false" would count as true
            raise ValueError(f"expected True or False for dequantize, got {dequantize!r:.60}")
        check_verify(verify)
        self.quant_method = METHOD
        self.version = VERSION
        self.profile = profile
        self.min_numel = min_numel
        self.linear_mode = check_linear_mode(linear_mode)
        self.dequantize = dequantize
        self.verify = verify
        if wrapped is not None:
            self.wrapped = wrapped

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **options: Any) -> TensorwireConfig:
        """From the ``quantization_config`` of config.json; members that are no options of ours are skipped.

        Raises:
            ValueError: an option has a value that it cannot have.
            UnsupportedVersionError: only a newer version understands it.
        """
        check_config(config_dict)
        known = signature(cls).parameters
        found: TensorwireConfig = super().from_dict(
            {key: config_dict[key] for key in config_dict if key in known}, **options
        )
        return found

    def to_dict(self) -> dict[str, Any]:
        """All that is saved: whether a checkpoint is checked, its next loader says."""
        return {name: value for name, value in super().to_dict().items() if name != "verify"}


@register_quantizer(METHOD)
class TensorwireQuantizer(HfQuantizer):  # type: ignore[misc]
    """The answers that Transformers needs to load and save a model that is compressed, or is to be."""

    is_trainable = True  # adapters, beside weights that are frozen
    is_compileable = True

    def __init__(self, quantization_config: TensorwireConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self.stores_frames = not quantization_config.dequantize
        self._dtype = torch.get_default_dtype()
        self._dtype_plan: dict[str, torch.dtype] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._files: _Files | None = None
        self._any_parameter: WeightConverter | None = None

    # Loading

    def validate_environment(self, *args: Any, device_map: Any = None, **options: Any) -> None:
        wrapped = getattr(self.quantization_config, "wrapped", None)
        if wrapped is not None:
            method = wrapped.get("quant_method") if isinstance(wrapped, dict) else wrapped
            raise ValueError(
                f"the checkpoint is quantized ({method!s:.60}) and compressed on top, and Transformers "
                "applies one of both; run tensorwire decompress and load the result"
            )
        if isinstance(device_map, dict) and "disk" in device_map.values():
            raise ValueError(
                "a compressed model cannot be offloaded to disk: accelerate writes the memory of tensors as it is, and "
                'reads it back as dense; leave "disk" out of device_map (and offload to "cpu"), or run tensorwire '
                "decompress and load the result"
            )

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        self._dtype = dtype
        return dtype

    def update_parallel_plan(self, model: Any, plan: dict[str, str]) -> None:
        """Nothing is added: a name is that of the dense tensor. Transformers would go through all names to see that."""

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, **options: Any
    ) -> Any:
        if getattr(model.config, "distributed_config", None) is not None:
            raise ValueError("tensor parallelism needs dense weights; run tensorwire decompress and load the result")
        self._dtype_plan = model._get_dtype_plan(self._dtype)
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        safetensors = all(str(path).endswith(".safetensors") for path in checkpoint_files or ())
        if self.pre_quantized and checkpoint_files and safetensors:
            min_numel = self.quantization_config.min_numel if self.stores_frames else None
            self._files = _Files(checkpoint_files, min_numel, self.quantization_config.verify)
            checkpoint_files[:] = self._files.stand_ins()
        return model

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any = None) -> list[Any]:
        """Before a model's own operations tensors are read, behind them what they made is compressed."""
        conversions = [copy(conversion) for conversion in weight_conversions]
        for conversion in conversions:
            if isinstance(conversion, WeightConverter):
                first, last = _Operation(self.read, self.store), _Operation(self.compress, _restored)
                conversion.operations = [first, *conversion.operations, last]
        self._any_parameter = _AnyParameter(r"(\w+)$", r"\1", [_ReadParameter(self.read_parameter, self.store)])
        return [*conversions, self._any_parameter]

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        # It changes no name, and Transformers would look for its inverse when it saves.
        if hasattr(model, "_weight_conversions"):  # not a model that comes dense, from 5.24 on
            model._weight_conversions = [c for c in model._weight_conversions if c is not self._any_parameter]
        if self._files is not None:
            self._files.close()
            self._files = None
        # Until 5.22 Transformers compares no shapes where a method of quantization is used.
        for name, parameter in model.named_parameters():
            expected = self._shapes.get(name, parameter.shape)
            if parameter.shape != expected:
                raise RuntimeError(
                    f"{name} is mismatched: the model expects the shape {tuple(expected)}, the checkpoint has "
                    f"{tuple(parameter.shape)}; load it with the config.json that it was saved with"
                )
        if prepare(model).frames:
            self._capture(model)
        return model

    def _capture(self, model: Any) -> None:
        """Let `generate` capture its decoding steps in graphs: it does so on devices that can, with a static cache. It
        compiles them, with products of one input as one.

        Only in mode *fused*: a static cache and compiled code sum in other orders than the dense model does by default.
        And only for models that Transformers says to be one graph: others may not take such a cache.
        """
        if self.quantization_config.linear_mode != "fused" or not getattr(model, "_can_compile_fullgraph", False):
            return
        generation: Any = getattr(model, "generation_config", None)
        if getattr(generation, "cache_implementation", "") is None:
            generation.cache_implementation = "static"
            if getattr(generation, "compile_config", None) is None:
                from transformers import CompileConfig  # with all that generates, which loading needs not

                generation.compile_config = CompileConfig(backend=inductor)

    def read(self, tensor: Tensor, name: str, model: Any) -> Tensor:
        """The dense tensor that a tensor out of a stand-in stands for, in the dtype of parameter `name`."""
        if self._files is None:  # of an adapter, which has files of its own, or of an uncompressed checkpoint
            return tensor
        return self._dense(self._files.take(tensor), name, model).to(tensor.device)

    def read_parameter(self, tensor: Tensor, name: str, model: Any) -> Tensor:
        """The same for a whole parameter or buffer: compressed if it is to be, a frame of the right dtype as it is."""
        is_parameter = isinstance(model.get_parameter_or_buffer(name), torch.nn.Parameter)
        if self._files is None:
            return self.compress(tensor) if is_parameter else tensor
        found = self._files.take(tensor)
        if is_parameter and isinstance(found, CompressedTensor) and found.dtype == self._dtype_of(name, model):
            found.set_linear_mode(self.quantization_config.linear_mode)
            return torch.nn.Parameter(found.to(tensor.device))
        dense = self._dense(found, name, model).to(tensor.device)
        return self.compress(dense) if is_parameter else dense

    def _dense(self, tensor: Tensor, name: str, model: Any) -> Tensor:
        dense = tensor.decode() if isinstance(tensor, CompressedTensor) else tensor
        return dense.to(self._dtype_of(name, model)) if dense.is_floating_point() else dense

    def compress(self, tensor: Tensor, *_: Any, for_file: bool = False) -> Tensor:
        """A frozen parameter that is compressed, if large (or for a file) and it gets smaller; else the tensor."""
        is_large = for_file or tensor.numel() >= self.quantization_config.min_numel
        if not self.stores_frames or not is_large or tensor.dtype not in DTYPES:
            return tensor
        config = self.quantization_config
        compressed = CompressedTensor.from_dense(tensor, config.profile, linear_mode=config.linear_mode)
        if compressed.frame.numel() >= tensor.numel() * tensor.element_size():
            return tensor
        return torch.nn.Parameter(compressed)

    def store(self, tensor: Tensor, *_: Any) -> Tensor:
        """The tensor as it goes to a file: compressed again, if the model is."""
        return _stored(self.compress(tensor, for_file=True))

    def _dtype_of(self, name: str, model: Any) -> torch.dtype:
        for pattern, dtype in self._dtype_plan.items():
            if re.search(pattern.replace("*", ".*"), name):
                return dtype
        found: torch.dtype = model.get_parameter_or_buffer(name).dtype
        return found

    # Saving

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        self.stores_frames = False
        return decompress_module(model)

    def is_serializable(self) -> bool:
        return True

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor] | None, dict[str, str]]:
        """Frames under the names of their tensors, as F4. What is one tensor is one frame, which Transformers writes
        once, as it does dense memory: names that may be tied say nothing of whether they are."""
        if getattr(model, "_hf_peft_config_loaded", False):  # which saves adapters alone
            return None, {}
        if not hasattr(torch, "float4_e2m1fn_x2"):
            raise RuntimeError(
                f"to save a compressed model needs torch 2.8 or later, this is {torch.__version__}; call "
                "model.dequantize() first, save, and run tensorwire compress"
            )
        tensors = model.state_dict()
        if any(tensor.is_meta for tensor in tensors.values()):
            raise RuntimeError("a model that is offloaded cannot be saved compressed; load it without offloading")
        frames: dict[Tensor, Tensor] = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, CompressedTensor):
                if tensor.frame not in frames:
                    frames[tensor.frame] = _stored(tensor)
                tensors[name] = frames[tensor.frame]
        return tensors, {FRAMES_KEY: FRAME_DTYPE}


class _Files:
    """The files of a checkpoint and what stands for them, until it is closed or forgotten."""

    __reduce_ex__ = not_copied("open files and a temporary directory", "call from_pretrained again")

    def __init__(self, paths: list[str], min_numel: int | None, verify: Verify) -> None:
        """`min_numel`: of tensors that stay compressed if they can, None if none is to."""
        self._min_numel = min_numel
        self._verify = verify
        with ExitStack() as stack:
            self._stored = [stack.enter_context(open_beside(Path(path))) for path in paths]
            for stored in self._stored:
                if any(map(stored.needs_base, stored.tensors.values())):
                    raise ValueError(
                        f"{str(stored.path)!r} is a delta, and from_pretrained takes no base; first run tensorwire "
                        "decompress DELTA FOLDER --base OLD, and load FOLDER"
                    )
            self._directory = mkdtemp(prefix="tensorwire-")
            # Also where loading fails and this is not closed, without the warning of a TemporaryDirectory.
            stack.callback(weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True))
            self._tensors = [list(stored.tensors.values()) for stored in self._stored]
            tensors = [(stored, tensor) for stored in self._stored for tensor in stored.tensors.values()]
            tensors.sort(key=lambda pair: _expected_place(pair[1].name))
            if verify != "load":
                PagesAhead().add(
                    stored.place_in_map(tensor) for stored, tensor in tensors if self._keeps(stored, tensor)
                )
                tensors = [pair for pair in tensors if not self._keeps(*pair)]
            self._ahead = LoadAhead(tensors, self._keeps, num_threads(None), verify=verify is not False)
            stack.callback(self._ahead.close)
            self._close = stack.pop_all().close

    def stand_ins(self) -> list[str]:
        """Files to load in the place of those of the checkpoint."""
        paths = []
        for number, tensors in enumerate(self._tensors):
            path = f"{self._directory}/{number}.safetensors"
            places = {tensor.name: np.array([number, index]) for index, tensor in enumerate(tensors)}
            save_file(places, path, metadata={"format": "pt"})
            paths.append(path)
        return paths

    def take(self, place: Tensor) -> Tensor:
        """The tensor at a place: compressed if it is to stay so, else decoded."""
        number, index = place.tolist()
        stored, tensor = self._stored[number], self._tensors[number][index]
        if self._verify != "load" and self._keeps(stored, tensor):
            return mapped(stored, tensor, stored.mapped_frame(tensor), self._verify)
        data, is_frame = self._ahead.take(stored, tensor)
        if is_frame:
            return mapped(stored, tensor, data, verify=False)
        dtype, shape, _ = stored.layout(tensor.name)
        stored.check_label(tensor)
        with ErrorContext(file=stored.path, tensor=tensor.name):
            dense: Tensor = as_array(data, dtype, shape, "pt")
        return dense

    def close(self) -> None:
        self._close()

    def _keeps(self, stored: StoredFile, tensor: StoredTensor) -> bool:
        """Whether a tensor stays compressed."""
        if self._min_numel is None or stored.is_relative(tensor):
            return False
        return stays_compressed(stored, tensor, self._min_numel)


def _expected_place(name: str) -> list[tuple[int, int, str]]:
    """A sort key for names in the order in which Transformers asks for them: numbers as numbers; experts, which it
    merges, matrix by matrix. Where that is wrong, loading takes longer."""
    before, _, behind = name.partition(".experts.")
    number, _, matrix = behind.partition(".")
    if number.isdigit():
        name = f"{before}.experts.{matrix}.{number}"
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split(".")]


class _Operation(ConversionOps):  # type: ignore[misc]
    """Changes tensors one by one where a model is loaded, and `back` where it is saved.

    Transformers copies an operation for each parameter; all copies are one.
    """

    def __init__(self, change: _Change, back: _Change) -> None:
        self._change, self._back = change, back

    def __deepcopy__(self, memo: object) -> _Operation:
        return self

    def convert(
        self, input_dict: dict[str, Any], *, full_layer_name: str, model: Any, **context: Any
    ) -> dict[str, list[Tensor]]:
        """Under each name stands a list, or the only tensor of one. Taken out one by one, so that memory is freed."""
        changed: dict[str, list[Tensor]] = {}
        for name in list(input_dict):
            held = input_dict.pop(name)
            tensors = held if isinstance(held, list) else [held]
            changed[name] = [self._change(tensor, full_layer_name, model) for tensor in tensors]
        return changed

    @property
    def reverse_op(self) -> _Operation:
        return _Operation(self._back, self._change)


class _AnyParameter(WeightConverter):  # type: ignore[misc]
    """What reads a parameter. Transformers copies it for each one, deeply: patterns, which are most of it, are kept."""

    def __deepcopy__(self, memo: object) -> _AnyParameter:
        twin = copy(self)
        twin.collected_tensors = self.collected_tensors.copy()
        twin.layer_targets = self.layer_targets.copy()
        return twin


class _ReadParameter(_Operation):
    """For parameters that no operation of the model's own makes."""

    def convert(
        self, input_dict: dict[str, Any], *, full_layer_name: str, model: Any, **context: Any
    ) -> dict[str, list[Tensor]]:
        ((tensor,),) = input_dict.values()
        return {full_layer_name: [self._change(tensor, full_layer_name, model)]}


def _stored(tensor: Tensor) -> Tensor:
    """As it goes to a file."""
    if not isinstance(tensor, CompressedTensor):
        return tensor
    opened(tensor.frame).check()  # damage of the file that it is mapped from would be saved
    return tensor.frame.cpu().view(torch.float4_e2m1fn_x2)


def _restored(tensor: Tensor, *_: Any) -> Tensor:
    """The dense tensor of one as it goes to a file."""
    if tensor.dtype != getattr(torch, "float4_e2m1fn_x2", None) or tensor.dim() != 1:
        return tensor
    return CompressedTensor(tensor.view(torch.uint8)).decode()
