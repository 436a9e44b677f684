"""Hugging Face Transformers 5.16 and later: `from_pretrained` and `save_pretrained` with compressed weights.

``import tensorwire.torch`` registers it; the page docs/transformers.md says how it is used. All
code that depends on the version of Transformers stands in this file.

While Transformers loads, small files stand for those of the checkpoint. They name the same tensors, each of which is a
pair of numbers that says where the tensor is. Transformers matches and renames the original names and never meets a
marker. The frames are read here, by operations that stand before and behind its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, get_args

import torch
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import AutoHfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import MetalConfig, QuantizationConfigMixin

from ...checkpoint.directory.config_and_index import METHOD, NAME, check_config
from ...checkpoint.directory.manifest import VERSION
from ...codec import Profile
from ...files.loader import check_verify
from ...files.names import FRAME_DTYPE
from ...files.reader import FRAMES_KEY
from ..frames.open_frame import opened
from ..modules import DTYPES, MIN_NUMEL, decompress_module
from ..ops import check_linear_mode
from ..prepared import prepare
from ..tensors.compressed_tensor import CompressedTensor
from .inductor import inductor
from .stand_ins import CheckpointFiles

if TYPE_CHECKING:
    from torch import Tensor

    from ...files.loader import Verify

    _Change = Callable[[Tensor, str, Any], Tensor]

_Given = ParamSpec("_Given")


def _noting_what_is_given(init: Callable[_Given, None]) -> Callable[_Given, None]:
    @wraps(init)
    def noting(*arguments: _Given.args, **options: _Given.kwargs) -> None:
        init(*arguments, **options)
        (_, config), *given = signature(init).bind(*arguments, **options).arguments.items()
        config._given = [name for name, _ in given]

    return noting


@register_quantization_config(NAME)
@register_quantization_config(METHOD)
class TensorwireConfig(MetalConfig):  # type: ignore[misc] # the checker does not see transformers
    """How a model is loaded, for ``from_pretrained(..., quantization_config=...)``.

    For a compressed checkpoint config.json says it too, and options that are given here count.

    Transformers takes options beside those of config.json from a list of classes alone. `MetalConfig` is the one that
    does least, and nothing else of it is used here.
    """

    @_noting_what_is_given
    def __init__(
        self,
        profile: Profile = "fast",
        *,
        min_numel: int = MIN_NUMEL,
        linear_mode: str = "exact",
        dequantize: bool = False,
        verify: Verify = True,
        then: QuantizationConfigMixin | None = None,
        wrapped: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            profile: "fast", or "resident", which is larger; where it decodes faster, docs/performance.md says.
            min_numel: smaller parameters are dense in memory.
            linear_mode: "exact" or "fused", as for `compress_module`.
            dequantize: decompress while loading: the model is dense and knows nothing of tensorwire.
            verify: True, "load" or False, as for `load_file`; it is not saved with the model.
            then: how another method quantizes the model, such as a `BitsAndBytesConfig`: weights are decoded one by
                one while it loads, and the model is that method's. No other option but `verify` counts then.
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
        if then is not None and (isinstance(then, TensorwireConfig) or not isinstance(then, QuantizationConfigMixin)):
            raise ValueError(f"expected the configuration of another method for then, got {type(then).__name__}")
        self.quant_method = METHOD
        self.version = VERSION
        self.profile = profile
        self.min_numel = min_numel
        self.linear_mode = check_linear_mode(linear_mode)
        self.dequantize = dequantize
        self.verify = verify
        self.then = then
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

    def get_loading_attributes(self) -> dict[str, Any]:
        """The options that were given, which count where config.json has others."""
        return {name: getattr(self, name) for name in self._given}

    def to_dict(self) -> dict[str, Any]:
        """All that is saved: whether a checkpoint is checked, and what quantizes it, its next loader says."""
        members: dict[str, Any] = QuantizationConfigMixin.to_dict(self)
        return {name: value for name, value in members.items() if name not in ("verify", "then", "_given")}

    __repr__ = QuantizationConfigMixin.__repr__


class _Reading(HfQuantizer):  # type: ignore[misc]
    """What a quantizer needs to load tensors of a compressed checkpoint."""

    _dtype: torch.dtype | None = None
    _dtype_plan: Mapping[str, torch.dtype] = {}
    _files: CheckpointFiles | None = None
    _is_counted = False
    """Whether all of the model is on the device meta."""
    _any_parameter: WeightConverter | None = None

    def validate_environment(self, *args: Any, device_map: Any = None, **options: Any) -> None:
        if isinstance(device_map, dict) and "disk" in device_map.values():
            raise ValueError(
                "a compressed model cannot be offloaded to disk: accelerate writes the memory of tensors as it is, and "
                'reads it back as dense; leave "disk" out of device_map (and offload to "cpu"), or run tensorwire '
                "decompress and load the result"
            )
        super().validate_environment(*args, device_map=device_map, **options)

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        self._dtype = super().update_dtype(dtype)
        return self._dtype

    def _read_files(
        self, model: Any, paths: list[str] | None, device_map: Any, min_numel: int | None, verify: Verify
    ) -> None:
        """Put stand-ins in the place of a checkpoint's files; `min_numel` is that of `CheckpointFiles`."""
        if getattr(model.config, "distributed_config", None) is not None:
            raise ValueError("tensor parallelism needs dense weights; run tensorwire decompress and load the result")
        self._dtype_plan = model._get_dtype_plan(self._dtype or torch.get_default_dtype())
        if paths and all(str(path).endswith(".safetensors") for path in paths):
            self._files = CheckpointFiles(paths, min_numel, verify)
            devices = device_map.values() if isinstance(device_map, dict) else [device_map]
            self._is_counted = set(map(str, devices)) == {"meta"}
            paths[:] = self._files.hollow() if self._is_counted else self._files.stand_ins()

    def _with_reading(self, conversions: list[Any], first: _Operation, last: list[_Operation]) -> list[Any]:
        """Before a model's own operations tensors are read by `first`; `last` stands behind them."""
        conversions = [copy(conversion) for conversion in conversions]
        for conversion in conversions:
            if isinstance(conversion, WeightConverter):
                conversion.operations = [first, *conversion.operations, *last]
        return conversions

    def _end_of_reading(self, model: Any) -> None:
        # It changes no name, and Transformers would look for its inverse when it saves.
        if hasattr(model, "_weight_conversions"):  # not a model that comes dense, from 5.24 on
            model._weight_conversions = [c for c in model._weight_conversions if c is not self._any_parameter]
        self._any_parameter = None
        if self._files is not None:
            self._files.close()
            self._files = None

    def read(self, tensor: Tensor, name: str, model: Any) -> Tensor:
        """The dense tensor that a tensor out of a stand-in stands for, in the dtype of parameter `name`."""
        if self._files is None:  # of an adapter, which has files of its own, or of an uncompressed checkpoint
            return tensor
        if tensor.is_meta:
            return tensor if self._is_counted else torch.empty_like(model.get_parameter_or_buffer(name), device="meta")
        return self._dense(self._files.take(tensor), name, model).to(tensor.device)

    def _dense(self, tensor: Tensor, name: str, model: Any) -> Tensor:
        dense = tensor.decode() if isinstance(tensor, CompressedTensor) else tensor
        return dense.to(self._dtype_of(name, model)) if dense.is_floating_point() else dense

    def _dtype_of(self, name: str, model: Any) -> torch.dtype:
        for pattern, dtype in self._dtype_plan.items():
            if re.search(pattern.replace("*", ".*"), name):
                return dtype
        if self._dtype is not None and not self.pre_quantized and self.param_needs_quantization(model, name):
            return self._dtype
        found: torch.dtype = model.get_parameter_or_buffer(name).dtype
        return found


class _ForAnother(_Reading):
    """What the quantizer of another method is while it loads: it gets dense tensors."""

    verify: Verify

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, device_map: Any = None, **options: Any
    ) -> Any:
        self._read_files(model, checkpoint_files, device_map, None, self.verify)
        options |= {"checkpoint_files": checkpoint_files, "device_map": device_map}
        return super()._process_model_before_weight_loading(model, **options)

    def update_weight_conversions(self, weight_conversions: list[Any], *model: Any) -> list[Any]:
        self._any_parameter = _AnyParameter(r"(\w+)$", r"\1", [_ReadParameter(self.read, _as_it_is)])
        conversions = super().update_weight_conversions(weight_conversions, *model)
        return [*self._with_reading(conversions, _Operation(self.read, _as_it_is), []), self._any_parameter]

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        self._end_of_reading(model)
        for conversion in getattr(model, "_weight_conversions", None) or []:
            if isinstance(conversion, WeightConverter):
                conversion.operations = [each for each in conversion.operations if not isinstance(each, _Operation)]
        self.__class__ = type(self).__bases__[-1]
        return self._process_model_after_weight_loading(model, **options)


@register_quantizer(METHOD)
class TensorwireQuantizer(_Reading):
    """The answers that Transformers needs to load and save a model that is compressed, or is to be."""

    is_trainable = True  # adapters, beside weights that are frozen
    is_compileable = True

    def __new__(cls, quantization_config: TensorwireConfig | None = None, **options: Any) -> Any:
        """The quantizer of `then`, if that is given, which reads compressed checkpoints. A copy is made of nothing."""
        wrapped = getattr(quantization_config, "wrapped", None)
        if wrapped is not None:
            method = wrapped.get("quant_method") if isinstance(wrapped, dict) else wrapped
            raise ValueError(
                f"the checkpoint is quantized ({method!s:.60}) and compressed on top, and Transformers "
                "applies one of both; run tensorwire decompress and load the result"
            )
        if quantization_config is None or quantization_config.then is None:
            return super().__new__(cls)
        other = AutoHfQuantizer.from_config(quantization_config.then, pre_quantized=False)
        other.__class__ = type(type(other).__name__, (_ForAnother, type(other)), {})
        other.verify = quantization_config.verify
        return other

    def __init__(self, quantization_config: TensorwireConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self.stores_frames = not quantization_config.dequantize
        self._shapes: dict[str, torch.Size] = {}

    # Loading

    def update_parallel_plan(self, model: Any, plan: dict[str, str]) -> None:
        """Nothing is added: a name is that of the dense tensor. Transformers would go through all names to see that."""

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, device_map: Any = None, **options: Any
    ) -> Any:
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        min_numel = self.quantization_config.min_numel if self.stores_frames else None
        files = checkpoint_files if self.pre_quantized else None
        self._read_files(model, files, device_map, min_numel, self.quantization_config.verify)
        return model

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any = None) -> list[Any]:
        """Before a model's own operations tensors are read, behind them what they made is compressed."""
        first, last = _Operation(self.read, self.store), _Operation(self.compress, _restored)
        self._any_parameter = _AnyParameter(r"(\w+)$", r"\1", [_ReadParameter(self.read_parameter, self.store)])
        return [*self._with_reading(weight_conversions, first, [last]), self._any_parameter]

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        self._end_of_reading(model)
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

    def read_parameter(self, tensor: Tensor, name: str, model: Any) -> Tensor:
        """The same for a whole parameter or buffer: compressed if it is to be, a frame of the right dtype as it is."""
        is_parameter = isinstance(model.get_parameter_or_buffer(name), torch.nn.Parameter)
        if self._files is None or tensor.is_meta:
            read = self.read(tensor, name, model)
            return self.compress(read) if is_parameter else read
        found = self._files.take(tensor)
        if is_parameter and isinstance(found, CompressedTensor) and found.dtype == self._dtype_of(name, model):
            found.set_linear_mode(self.quantization_config.linear_mode)
            return torch.nn.Parameter(found.to(tensor.device))
        dense = self._dense(found, name, model).to(tensor.device)
        return self.compress(dense) if is_parameter else dense

    def compress(self, tensor: Tensor, *_: Any, for_file: bool = False) -> Tensor:
        """A frozen parameter that is compressed, if large (or for a file) and it gets smaller; else the tensor."""
        is_large = for_file or tensor.numel() >= self.quantization_config.min_numel
        if not self.stores_frames or not is_large or tensor.dtype not in DTYPES or tensor.is_meta:
            return tensor
        config = self.quantization_config
        compressed = CompressedTensor.from_dense(tensor, config.profile, linear_mode=config.linear_mode)
        if compressed.frame.numel() >= tensor.numel() * tensor.element_size():
            return tensor
        return torch.nn.Parameter(compressed)

    def store(self, tensor: Tensor, *_: Any) -> Tensor:
        """The tensor as it goes to a file: compressed again, if the model is."""
        return _stored(self.compress(tensor, for_file=True))

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
            changed[self._name_of(name, full_layer_name)] = [
                self._changed(tensor, full_layer_name, model) for tensor in tensors
            ]
        return changed

    def _name_of(self, name: str, full_layer_name: str) -> str:
        """What the changed tensors are called."""
        return name

    def _changed(self, tensor: Tensor, name: str, model: Any) -> Tensor:
        """A model that is loaded in inference mode is one that may train, as Transformers loads it."""
        with torch.inference_mode(False):
            changed = self._change(tensor, name, model)
            return changed.clone() if changed.is_inference() else changed

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

    def _name_of(self, name: str, full_layer_name: str) -> str:
        return full_layer_name


def _as_it_is(tensor: Tensor, *_: Any) -> Tensor:
    return tensor


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
