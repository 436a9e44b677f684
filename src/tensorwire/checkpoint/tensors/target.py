"""What tensors are returned as, where they go, and what loads those that stay compressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..._ground.loaders import compressed_loaders
from ...codec import array_shape, as_array, check_framework, check_framework_name

if TYPE_CHECKING:
    from ...codec import Framework
    from ...files.loader import Verify
    from ...files.reader import StoredFile, StoredTensor


class CompressedLoader(Protocol):
    """Loads tensors that stay compressed."""

    def plan(self, files: Sequence[StoredFile]) -> None:
        """See all files first."""

    def load(self, stored: StoredFile, tensors: Sequence[StoredTensor], threads: int, verify: Verify) -> dict[str, Any]:
        """The tensors that stay compressed, by name."""


class Target(NamedTuple):
    """The framework of tensors, their torch device if that is not the CPU, and the loader of those that stay
    compressed, if any do."""

    framework: Framework
    device: Any = None
    compressed: CompressedLoader | None = None

    @classmethod
    def of(cls, framework: Framework, device: Any, compressed: bool, resident_nbytes: int | None) -> Target:
        """The target that the arguments of `open_file` describe.

        Raises:
            ValueError: there is no such framework or device, or the framework has only the CPU, or no compressed
                tensors.
            ImportError: compressed tensors are asked for, and torch is missing or too old.
        """
        check_framework_name(framework)
        torch_device = _torch_device(framework, device)
        if not compressed:
            if resident_nbytes is not None:
                raise ValueError("expected resident_nbytes with compressed=True alone, got it without")
            return cls(framework, torch_device)
        if framework != "pt":
            raise ValueError(f'expected framework="pt" for compressed=True, got "{framework}"')
        return cls(framework, torch_device, compressed_loaders[framework](torch_device, resident_nbytes))

    def check(self, stored: StoredFile, tensor: StoredTensor) -> None:
        """Raise what `array` would, before there is any data."""
        dtype, shape, _ = stored.layout(tensor.name)
        if self.framework != "bytes":
            stored.check_loadable(tensor)
        check_framework(dtype, self.framework)
        array_shape(dtype, shape, self.framework)

    def array(self, data: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
        array = as_array(data, dtype, shape, self.framework)
        return array if self.device is None else array.to(self.device)


def _torch_device(framework: Framework, device: Any) -> Any:
    """The torch device; None for the CPU."""
    if device is None or device == "cpu":
        return None
    if framework != "pt":
        raise ValueError(f'expected device "cpu" for framework "{framework}", got {device!r}; write framework="pt"')
    import torch

    try:
        found = torch.device(device)
        if found.type != "cpu":
            torch.empty(0, device=found)
    except (AssertionError, RuntimeError, TypeError) as error:  # AssertionError: torch was built without it
        raise ValueError(f"expected a device of torch, got {device!r}: {error}") from None
    return None if found.type == "cpu" else found
