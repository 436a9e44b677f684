"""Tensors on a device that follow a publisher: frames are copied there, and kernels change the tensors in place."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...._ground.text import count
from ....errors import BaseMismatchError, ErrorContext, UnsupportedTensorError
from ....files.names import shown
from ....sync.elsewhere import OTHER_TIES, misfit
from ....sync.versions import Position, Tensor
from ..frame import decode_frame
from ..writing.applying import apply_
from ..writing.hashes import content_hashes
from ..writing.operands import dtype_name
from ..writing.status import Status, error_of

if TYPE_CHECKING:
    from ....sync.frames import Fetched, Frames
    from ....sync.versions import Version

_ANEW = "stage again"


class _Step(NamedTuple):
    """What makes a tensor of the one before it, or of nothing.

    Attributes:
        data: on the device: a frame, or the content.
        fetched: the same on the host.
    """

    data: torch.Tensor
    fetched: Fetched


class DeviceTarget:
    """Implements Target. `stage` takes memory for frames alone; `commit` changes the tensors, whose addresses stay. One
    that waits for the commit of a version with an error holds anything, as in place on the host."""

    def __init__(self, arrays: MutableMapping[str, Any], threads: int, *, verify: bool) -> None:
        self._arrays, self._threads, self._verify = arrays, threads, verify
        self._position: Position | None = None
        self._goal: Position | None = None
        self._steps: dict[str, list[_Step]] = {}
        self._ties: dict[str, str] = {}
        _tied(arrays)

    @property
    def title(self) -> str:
        return count(len(self._arrays), "tensor") + " on a device"

    @property
    def number(self) -> int | None:
        return None if self._position is None else self._position.number

    @property
    def staged(self) -> Position | None:
        return self._goal

    def position(self) -> Position:
        if self._position is None or self._position.tensors.keys() != self._arrays.keys():
            self._position = Position(None, "", dict(self._tensors(self._arrays)))
        return self._position

    def forget(self) -> None:
        self._position = None

    def stage(self, goal: Position, plan: Mapping[str, Sequence[Version]], frames: Frames) -> None:
        """
        Raises:
            BaseMismatchError: a tensor that stays is not what it was.
            ValueError: the tensors have other names, dtypes or shapes than the version.
        """
        self._drop()
        ties = self._ties = self._checked_ties(goal)
        if self._verify:
            for name, found in self._tensors([name for name, links in plan.items() if not links]):
                if found != goal.tensors[name]:
                    raise BaseMismatchError(
                        "expected a tensor as the last version left it, got another content", tensor=name
                    )
        for name, links in plan.items():
            if not links or ties[name] in self._steps:  # one frame is for all that are tied
                continue
            device = self._arrays[name].device
            self._steps[ties[name]] = [
                _Step(_on_device(fetched.data, device), fetched)
                for fetched in (frames.fetch(name, link) for link in links)
            ]
        self._goal = goal

    def commit(self) -> None:
        """
        Raises:
            BaseMismatchError: tensors came, went or were written to since a version was staged.
            FormatError: a frame is damaged.
        """
        assert self._goal is not None
        goal, self._position = self._goal, None
        if self._checked_ties(goal) != self._ties:  # one frame was for all of the same memory
            raise BaseMismatchError(OTHER_TIES, advice=_ANEW)
        for round_ in range(max(map(len, self._steps.values()), default=0)):
            self._apply({name: steps[round_] for name, steps in self._steps.items() if round_ < len(steps)})
        self._drop()
        self._position = goal

    def _apply(self, steps: Mapping[str, _Step]) -> None:
        """A step of each tensor: relative frames in one batch for each device."""
        relative = {name: step for name, step in steps.items() if step.fetched.is_relative}
        for name in steps.keys() - relative.keys():
            step, tensor = steps[name], self._arrays[name]
            content = step.data.view(tensor.dtype) if step.fetched.frame is None else decode_frame(step.data)
            tensor.copy_(content.reshape(tensor.shape))
            self._check(name, step)
        for device, names in self._by_device(relative):
            tensors = [self._arrays[name] for name in names]
            status = torch.empty(len(names), dtype=torch.int32, device=device)
            apply_([relative[name].data for name in names], tensors, status)
            self._see(status, {name: relative[name] for name in names})

    def _see(self, status: torch.Tensor, steps: Mapping[str, _Step]) -> None:
        """Whether frames were applied."""
        for (name, step), number in zip(steps.items(), status.tolist(), strict=True):
            if number == Status.HOST_ONLY:
                self._apply_by_host(name, step, self._arrays[name])
            elif number:
                with ErrorContext(file=step.fetched.file, tensor=name):
                    raise error_of(number, "the frame")

    def _apply_by_host(self, name: str, step: _Step, tensor: torch.Tensor) -> None:
        """A frame with blocks that no kernel reads: the tensor comes to the host once, and goes back."""
        content = tensor.cpu().flatten().view(torch.uint8)
        step.fetched.put(name, memoryview(content.numpy()), self._threads)
        tensor.copy_(content.view(tensor.dtype).reshape(tensor.shape))

    def _check(self, name: str, step: _Step) -> None:
        ((_, found),) = self._tensors([name])
        step.fetched.check(name, found.hash, had_base=False)

    def _tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """What tensors are, with their hashes."""
        for _, some in self._by_device(names):
            hashes = content_hashes([self._arrays[name] for name in some]).cpu().numpy()
            for name, found in zip(some, hashes, strict=True):
                yield name, Tensor(*_layout(self._arrays[name]), found.tobytes().hex())

    def _by_device(self, names: Iterable[str]) -> Iterable[tuple[torch.device, list[str]]]:
        found: dict[torch.device, list[str]] = {}
        for name in names:
            found.setdefault(self._arrays[name].device, []).append(name)
        return found.items()

    def _checked_ties(self, goal: Position) -> dict[str, str]:
        """As `_tied`. ValueError if the tensors do not fit the version."""
        ties = _tied(self._arrays)
        found = misfit(goal.tensors, {name: _layout(tensor) for name, tensor in self._arrays.items()}, ties)
        if found is not None:
            raise ValueError(found[1])
        return ties

    def _drop(self) -> None:
        self._steps, self._ties, self._goal = {}, {}, None


def _layout(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    return dtype_name(tensor) or "", tuple(tensor.shape)


def _tied(arrays: Mapping[str, Any]) -> dict[str, str]:
    """By the name of a tensor the first one that has the same memory, itself for most.

    Raises:
        UnsupportedTensorError: one cannot be changed where it lies, or shares a part of its memory with another one.
    """
    found = {name: name for name in arrays}
    spans = []
    for name, tensor in arrays.items():
        if tensor.layout != torch.strided or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            raise UnsupportedTensorError("expected a contiguous tensor, got another one", tensor=name)
        if tensor.numel():
            spans.append((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name))
    spans.sort(key=lambda span: span[:3])
    for before, after in itertools.pairwise(spans):
        if before[:3] == after[:3]:
            found[after[3]] = found[before[3]]
        elif before[0] == after[0] and after[1] < before[2]:
            raise UnsupportedTensorError(
                f"expected a tensor that shares all of its memory with another one, or nothing, got one that shares a "
                f"part of it with {shown(before[3])}",
                tensor=after[3],
                advice="give one of the two",
            )
    return found


def _on_device(data: memoryview, device: torch.device) -> torch.Tensor:
    if not len(data):
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.frombuffer(data, dtype=torch.uint8).to(device)
