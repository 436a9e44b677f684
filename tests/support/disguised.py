"""A device that is the CPU in disguise: tensors that say that they lie elsewhere, and what is asked of that device.

Torch runs every operation on them through this module, so a test counts what a model asks of its device, and refuses
what would make the host wait for it. Frames there are opened by doubles, which the core decodes and multiplies.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from tensorwire.torch import ops, prepared
from tensorwire.torch.device.frame import DeviceFrame
from tensorwire.torch.device.writing.dense import encode_dense
from tensorwire.torch.frames import new_frame, open_frame
from tensorwire.torch.frames.open_frame import Origin, attach, opened
from tensorwire.torch.products.linear import FUSED_ORDER
from tensorwire.torch.tensors.lazy import LazyTensor

if TYPE_CHECKING:
    from tensorwire.codec import Profile
    from tensorwire.torch.device.driver import Driver
    from tensorwire.torch.products.joint import Member

DEVICE = torch.device("lazy")  # torch needs nothing that a CPU build lacks to make tensors that say so
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::masked_select", "aten::unique_dim")
_KERNELS = {
    "tensorwire::decode": ops._decode,
    "tensorwire::decode.out": ops._decode_out,
    "tensorwire::rows": ops._rows,
    "tensorwire::experts": ops._experts,
    "tensorwire::linear": ops.linear_in_turn,
    "tensorwire::linears": ops._linears,
}


class Disguised(torch.Tensor):
    """A tensor on DEVICE; `inner` has its values, on the CPU."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Disguised:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Disguised({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, LazyTensor) for kind in types):
            return NotImplemented
        assert _current is not None, "a disguised tensor outlived its device"
        return _current.run(func, args, kwargs or {})


class DisguisedFrame:
    """A frame on DEVICE, opened."""

    def __init__(self, device: DisguisedDevice, frame: Disguised) -> None:
        self._device = device
        self._inner = attach(frame.inner.detach(), Origin(verify=False))
        self._frame = opened(self._inner)
        self.dtype, self.shape, self.info = self._frame.dtype, self._frame.shape, self._frame.info
        self.member: Member | None = None

    def decode(self, first: int, out: torch.Tensor) -> None:
        self._device.launched("decode")
        self._frame.decode(first, plain(out))

    def rows(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        self._device.launched("rows")
        wanted, target = (
            plain(ids).reshape(-1).clamp(0, self.shape[0] - 1).tolist(),
            plain(out).view(-1, *self.shape[1:]),
        )
        step = target[0].numel() if len(wanted) else 0
        for place, row in enumerate(wanted):
            self._frame.decode(row * step, target[place])

    @functools.cached_property
    def product(self) -> DisguisedProduct | None:
        multiplies = len(self.shape) in (2, 3) and self.dtype in (torch.bfloat16, torch.float16)
        return DisguisedProduct(self) if multiplies else None

    def product_for(self, x: torch.Tensor, bias: torch.Tensor | None, mode: str) -> DisguisedProduct | None:
        product, columns = self.product, self.shape[-1]
        if product is None or mode == "exact" or x.dtype != self.dtype or x.shape[-1] != columns:
            return None
        return product if 0 < x.numel() <= product.max_inputs * columns else None

    def slab_for(self, x: torch.Tensor, bias: torch.Tensor | None, mode: str) -> int:
        return 0


class DisguisedProduct:
    """Products in the order of mode *fused* on the CPU: the bits of one row depend on no other."""

    max_inputs = 8
    width = None
    order = "fused"

    def __init__(self, frame: DisguisedFrame) -> None:
        self.frame = frame

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        self.frame._device.launched("product")
        return self._sums(x, bias, dtype)

    def multiply_each(self, x: torch.Tensor, ids: torch.Tensor, matrices: int) -> torch.Tensor:
        self.frame._device.launched("product")
        weights = torch.empty(self.frame.shape, dtype=self.frame.dtype)
        self.frame._frame.decode(0, weights)
        rows = [weights[number] @ row for number, row in zip(plain(ids).tolist(), plain(x), strict=True)]
        return Disguised(torch.stack(rows))

    def _sums(self, x: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        found = self.frame._frame.linear(plain(x), FUSED_ORDER)
        assert found is not None
        return Disguised((found if bias is None else found + plain(bias)).to(dtype))


class DisguisedJoint:
    """Several products as one launch."""

    def __init__(self, products: Sequence[DisguisedProduct]) -> None:
        self._products = products
        self.max_inputs = min(product.max_inputs for product in products)

    def in_order(self, order: str) -> DisguisedJoint:
        assert order == DisguisedProduct.order
        return self

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        self._products[0].frame._device.launched("product")
        rows = [product.frame.shape[0] for product in self._products]
        biases = [None] * len(rows) if bias is None else plain(bias).split(rows)
        sums = [plain(product._sums(x, b, dtype)) for product, b in zip(self._products, biases, strict=True)]
        return Disguised(torch.cat(sums, 1))


class DisguisedDevice(TorchDispatchMode):
    """The device: within a ``with`` statement torch makes tensors there.

    Attributes:
        calls: how often each operation of torch's, and each launch of ours, was asked for.
        moved_nbytes: how much came from the host.
        stream, capture: the current ones, as numbers.
    """

    def __init__(self, driver: Driver | None = None) -> None:
        """
        Args:
            driver: runs the kernels of our own, on the CPU; None: frames are opened by doubles.
        """
        super().__init__()
        self._driver = driver
        self.calls: Counter[str] = Counter()
        self.moved_nbytes = 0
        self.stream, self.capture = 1, 0
        self.before_opening: Callable[[], None] = lambda: None
        self._may_wait = True

    def __enter__(self) -> DisguisedDevice:
        global _current
        if _current is None:
            _current = self
            self._lifted = torch._C._only_lift_cpu_tensors()
            torch._C._set_only_lift_cpu_tensors(True)
            self._opened_by = open_frame._open_on_device
            open_frame.open_on_devices_by(self._open)
            self._encoded_by = new_frame._encode_on_device
            new_frame.encode_on_devices_by(self._encode)
            self._joined_by = prepared._joint
            if self._driver is None:
                prepared._joint = DisguisedJoint
            self._depth = 0
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        global _current
        super().__exit__(*error)
        self._depth -= 1
        if self._depth == 0:
            _current = None
            torch._C._set_only_lift_cpu_tensors(self._lifted)
            assert self._opened_by is not None
            open_frame.open_on_devices_by(self._opened_by)
            assert self._encoded_by is not None
            new_frame.encode_on_devices_by(self._encoded_by)
            prepared._joint = self._joined_by

    def _open(self, frame: torch.Tensor) -> Any:
        self.before_opening()
        self.launched("open")
        assert isinstance(frame, Disguised)
        return DisguisedFrame(self, frame) if self._driver is None else DeviceFrame(frame, driver=self._driver)

    def _encode(self, tensor: torch.Tensor, profile: Profile) -> torch.Tensor | None:
        return None if self._driver is None else encode_dense(tensor, profile, driver=self._driver)

    def launched(self, what: str) -> None:
        self.calls[f"tensorwire: {what}"] += 1

    @property
    def launches(self) -> int:
        """Launches of ours."""
        return sum(count for what, count in self.calls.items() if what.startswith("tensorwire: "))

    @contextmanager
    def no_waits(self) -> Iterator[None]:
        """Refuse what makes the host wait for the device, as a graph that is captured does."""
        self._may_wait = False
        try:
            yield
        finally:
            self._may_wait = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        lazy = next((type(tensor) for tensor in tensors if isinstance(tensor, LazyTensor)), None)
        if lazy is not None:
            with self:  # which torch has switched off for the length of this call
                return lazy.__torch_dispatch__(func, types, args, kwargs)
        here = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == DEVICE.type
        if here or any(isinstance(tensor, Disguised) for tensor in tensors):
            return self.run(func, args, kwargs)
        return func(*args, **kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation on tensors of the device."""
        name = func._schema.name if func._overloadname == "default" else f"{func._schema.name}.{func._overloadname}"
        if name in _KERNELS:
            with self:
                return _KERNELS[name](*args, **kwargs)
        if func._schema.name == "aten::to":  # which comes whole where nobody differentiates
            with self:
                return func.decompose(*args, **kwargs)
        self.calls[name] += 1
        to_host = name == "aten::_to_copy" and torch.device(kwargs.get("device") or DEVICE).type == "cpu"
        to_host |= name == "aten::copy_" and not isinstance(args[0], Disguised)
        from_host = name == "aten::_to_copy" and not isinstance(args[0], Disguised)
        by_mask = name == "aten::index.Tensor" and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        if not self._may_wait and (func._schema.name in WAITS or to_host or from_host or by_mask):
            raise RuntimeError(f"{name} makes the host wait for the device")
        known = {id(value.inner): value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Disguised)}
        inner_args, inner_kwargs = tree_map_only(Disguised, lambda value: value.inner, (args, kwargs))
        if inner_kwargs.get("device") is not None:
            inner_kwargs["device"] = "cpu"
        if name == "aten::histc":  # which the CPU has for floats alone
            inner_args = (inner_args[0].float(), *inner_args[1:])
        result = func(*inner_args, **inner_kwargs)
        if from_host:
            self.moved_nbytes += result.nbytes
        if to_host:
            return result if name != "aten::copy_" else args[0]

        def disguised(value: torch.Tensor) -> torch.Tensor:
            found = known.get(id(value))
            return Disguised(value) if found is None else found

        return tree_map_only(torch.Tensor, disguised, result)


_current: DisguisedDevice | None = None


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor of the device."""
    return tensor.inner if isinstance(tensor, Disguised) else tensor


def step(model: Any, device: DisguisedDevice) -> torch.Tensor:
    """The logits of a token behind a prompt, by a model of transformers; `calls` has what it takes."""
    from transformers import StaticCache

    cache, prompt = StaticCache(config=model.config, max_cache_len=32), torch.tensor([[1, 5, 9, 200, 31, 7, 12, 500]])
    model(prompt.to(DEVICE), past_key_values=cache)
    token, place = torch.tensor([[3]]).to(DEVICE), torch.tensor([[prompt.shape[1]]]).to(DEVICE)
    device.calls.clear()
    with device.no_waits():
        found: torch.Tensor = model(token, position_ids=place, past_key_values=cache).logits
    return found
