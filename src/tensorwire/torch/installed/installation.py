"""What one call of `install` exchanges."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import torch

from ..integrations.after_import import after_import
from . import diffusers_files, transformers_files
from .exchange import Exchange, Pair
from .torch_load import loading

_DIFFUSERS = "diffusers.configuration_utils"
"""When it has been imported, so has all that is exchanged in diffusers."""
_TRAINER = "transformers.trainer_utils"


class _Late(NamedTuple):
    """What is exchanged once a package has been imported.

    Attributes:
        pairs: in modules.
        in_class: a class, a name that it has, and what is to be there.
    """

    pairs: list[Pair]
    in_class: tuple[type, str, Any] | None = None


class Installation:
    """Our functions in the place of others. Not thread-safe.

    Attributes:
        exchange: where they are.
    """

    def __init__(self) -> None:
        """Raises ImportError, with nothing exchanged, if a package has not what is to be."""
        self.exchange = Exchange()
        self._is_on = True
        pairs = self._pairs(loading, "load", torch, torch.serialization)
        if find_spec("safetensors") is not None:
            import safetensors.numpy
            import safetensors.torch

            from .safetensors_calls import deserializing, opening

            modules = safetensors, safetensors.numpy, safetensors.torch
            pairs += self._pairs(opening, "safe_open", *modules) + self._pairs(deserializing, "deserialize", *modules)
        late = {_DIFFUSERS: self._diffusers, _TRAINER: self._trainer}
        for name in late.keys() & sys.modules.keys():
            late[name]()
        self._cancels: list[Callable[[], None]] = []
        try:
            self.exchange.put_in_modules(pairs)
            for name, look in late.items():
                self._cancels.append(after_import(name, partial(self._put_in, look)))
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> list[str]:
        """Undo it.

        Returns:
            Where something else stands by now, and what.
        """
        self._is_on = False
        for cancel in self._cancels:
            cancel()
        return self.exchange.take_back()

    def _on(self) -> bool:
        """Whether ours, wherever they are kept, do more than theirs."""
        return self._is_on

    def _pairs(self, make: Callable[[Any, Callable[[], bool]], Any], name: str, *homes: ModuleType) -> list[Pair]:
        """One for each object that these modules have under a name: other code may have exchanged some."""
        for home in homes:
            if not callable(vars(home).get(name)):
                raise _unfit(home.__name__, name)
        found = [vars(home)[name] for home in homes]
        return [Pair(theirs, make(theirs, self._on)) for theirs in {id(each): each for each in found}.values()]

    def _put_in(self, look: Callable[[], _Late]) -> None:
        """In the thread that imports a package, while another one may take all back."""
        try:
            found = look()
        except ImportError as error:  # the package comes after `install`, and works as it does without
            warnings.warn(str(error), stacklevel=2)
            return
        if self._is_on:
            if found.in_class is not None:
                self.exchange.put_in_class(*found.in_class)
            self.exchange.put_in_modules(found.pairs)
        if not self._is_on:
            self.exchange.take_back()

    def _trainer(self) -> _Late:
        from transformers import trainer_utils  # waits for a thread that is about to import it

        return _Late(self._pairs(transformers_files.loading, "load_sharded_checkpoint", trainer_utils))

    def _diffusers(self) -> _Late:
        from diffusers import configuration_utils  # waits for a thread that is about to import it
        from diffusers.utils import hub_utils

        owner, name = vars(configuration_utils).get("ConfigMixin"), "_dict_from_json_file"
        if not isinstance(owner, type) or not isinstance(vars(owner).get(name), classmethod):
            raise _unfit(_DIFFUSERS, f"ConfigMixin.{name}")
        pairs = self._pairs(diffusers_files.listing, "_get_checkpoint_shard_files", hub_utils)
        return _Late(pairs, (owner, name, diffusers_files.reading(vars(owner)[name], self._on)))


def _unfit(module: str, name: str) -> ImportError:
    package = module.partition(".")[0]
    version = getattr(sys.modules[package], "__version__", "of an unknown version")
    return ImportError(
        f"tensorwire.torch.install() expected {module}.{name}, which {package} {version} has not; use another version "
        f"of {package}, or run tensorwire decompress first"
    )
