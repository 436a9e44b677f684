"""vLLM: new weights out of a store, by ``WeightTransferConfig(backend="tensorwire")``, and the trainer's side of it.

The engine is a follower in each worker, which stages ahead in a thread. An update is one call of vLLM's
``update_weights``: before it writes to the model, everything that can be refused has been; behind it, the model is
whole. So ``start_weight_update`` and ``finish_weight_update`` do nothing, and a client that dies between them leaves
weights of one version. docs/vllm.md says how to use it. Nothing of vLLM is patched.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import vllm
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from ...checkpoint.directory.config_and_index import NAME
from ...sync import Publisher
from .staged_ahead import StagedAhead
from .vllm import check_takes_updates, checkpoint_directory, converted_layers, register, undo_begun_reload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...sync import Published

_log = logging.getLogger(__name__)

_FORMS = {
    WeightTransferEngine: ("config", "vllm_config", "device", "model"),
    TrainerWeightTransferEngine.trainer_init: ("init_info", "client", "source"),
}
"""Calls by vLLM whose parameters were others in older versions."""


def check_form() -> None:
    """Raise ImportError if vLLM calls engines in another way than this file is written for."""
    for call, expected in _FORMS.items():
        found = tuple(inspect.signature(call).parameters)
        if found != expected:
            raise ImportError(
                f"expected {call.__qualname__}({', '.join(expected)}), as vLLM 0.32 has it, got ({', '.join(found)}) "
                f"in vLLM {vllm.__version__}; install another version, or use reload_weights (docs/vllm.md)"
            )


check_form()
register()  # a trainer that imports this has no plug-ins loaded


@dataclass
class TensorwireInitInfo(WeightTransferInitInfo):  # type: ignore[misc] # the checker does not see vLLM
    """What ``init_weight_transfer_engine`` is given, as JSON.

    Attributes:
        store: the directory or URL that a publisher writes to, as the workers reach it.
        threads: of each worker, for decoding beside what serves.
        in_place: write changed tensors alone. For unquantized models on a GPU.
    """

    store: str
    threads: int = 1
    in_place: bool = False

    def __post_init__(self) -> None:
        if type(self.in_place) is not bool:
            raise ValueError(f"expected true or false as in_place, got {self.in_place!r:.60}")


@dataclass
class TensorwireUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """What ``update_weights`` is given. All workers take the version with this number."""

    version: int


class TensorwireWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """A follower of a store in a worker. Each worker reads the store itself, and keeps all tensors on the host."""

    init_info_cls = TensorwireInitInfo
    update_info_cls = TensorwireUpdateInfo
    supports_draft_weight_update = False

    _ahead: StagedAhead | None = None
    _in_place = False

    def init_transfer_engine(self, init_info: TensorwireInitInfo) -> None:
        """Begin to stage. A second call begins anew, and the update behind it writes all tensors.

        Raises:
            ValueError: the model takes no updates, or none in place.
            FormatError, OSError: its checkpoint cannot be read.
        """
        check_takes_updates(self.model)
        if init_info.in_place:
            _check_takes_in_place(self.model)
        checkpoint = checkpoint_directory(self.model_config, self.vllm_config.load_config)
        ahead = StagedAhead(init_info.store, checkpoint, init_info.threads)
        self.shutdown()
        self._ahead, self._in_place = ahead, init_info.in_place

    def start_weight_update(self) -> None:
        pass

    def receive_weights(self, update_info: TensorwireUpdateInfo) -> None:
        """Put a version into the model.

        Raises:
            RuntimeError: no store was given yet.
            FormatError, ValueError, OSError: as `StagedAhead.update`; the model is what it was.
            Any other error: of vLLM, which may have written a part. The next update then writes all tensors.
        """
        if self._ahead is None:
            raise RuntimeError("expected init_weight_transfer_engine with a store before an update")
        with self._ahead.update(update_info.version, changed_only=self._in_place) as tensors:
            try:
                self._write(iter(tensors))
            except BaseException:
                _log.error(
                    "version %06d was written in part: do not serve before an update has succeeded", update_info.version
                )
                raise

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _write(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        if self._in_place:
            self.model.load_weights(tensors)
            return
        undo_begun_reload(self.model, self.model_config)
        initialize_layerwise_reload(self.model)
        self.model.load_weights(tensors)
        finalize_layerwise_reload(self.model, self.model_config)


def _check_takes_in_place(model: nn.Module) -> None:
    """Raise ValueError unless each weight lies in memory as vLLM has loaded it, so that one can be loaded alone."""
    if not current_platform.is_cuda_alike():
        raise ValueError(
            f"expected a GPU with in_place, got {current_platform.device_type}, for which vLLM packs weights; leave "
            "in_place out"
        )
    absorbed = [(name, "MLA") for name, layer in model.named_modules() if isinstance(layer, MLAAttention)]
    for name, method in [*converted_layers(model), *absorbed]:
        raise ValueError(f"in_place cannot write {name}, whose weights {method} has converted; leave in_place out")


@dataclass
class TensorwireTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    """What ``WeightTransferTrainerFactory.trainer_init`` is given; for the attributes see `TensorwireInitInfo`."""

    backend: ClassVar[str] = NAME

    store: str
    threads: int = 1
    in_place: bool = False


class TensorwireTrainerWeightTransferEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    """Publishes the weights of a trainer, and has workers take them. Rank 0 does both; the others run the collectives
    of the source."""

    init_info_cls = TensorwireTrainerInitInfo

    _publisher: Publisher

    @classmethod
    def trainer_init(
        cls, init_info: TensorwireTrainerInitInfo, *, client: Any, source: Any = None
    ) -> TensorwireTrainerWeightTransferEngine:
        """Open the store, and have the workers stage from it.

        Raises:
            ValueError: there is no source, or ranks hold parts of the model.
        """
        if source is None or source.held_names() is not None:
            raise ValueError("expected a source that gives rank 0 all tensors of the model")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            engine._publisher = Publisher(init_info.store)
            facts = {"store": init_info.store, "threads": init_info.threads, "in_place": init_info.in_place}
            client.init_weight_transfer_engine(facts)
        return engine

    def publish(self) -> Published | None:
        """Publish the weights; workers stage them while they serve. All ranks call it; None but on rank 0.

        Raises:
            FormatError, UnsupportedTensorError, OSError: as `Publisher.publish`.
        """
        tensors = ((name, tensor.detach().cpu()) for name, tensor in self.source)
        try:
            return self._publisher.publish(tensors) if self.is_sender else None
        finally:
            for _ in tensors:  # collectives, which other ranks wait in also after an error of this one
                pass

    def update(self) -> None:
        """Have the workers take what was published last. Pause the requests before, and empty the prefix cache."""
        if not self.is_sender:
            return
        version = self._publisher.version
        self.client.start_weight_update()
        try:
            self.client.update_weights({"version": version})
        except BaseException:
            with suppress(Exception):  # workers that succeeded would refuse to start again
                self.client.finish_weight_update()
            raise
        self.client.finish_weight_update(str(version))

    def send_weights(self) -> None:
        """Publish, and have the workers take it at once: they then stage in the pause, too."""
        self.publish()
        self.update()
