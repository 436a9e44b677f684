"""Objects of other packages, with ours in their place wherever a module holds them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """An object, and what stands in its place."""

    theirs: Any
    ours: Any


class Place(NamedTuple):
    """A name in a module or in a class, and what it is to hold."""

    owner: Any
    name: str
    pair: Pair

    @property
    def found(self) -> Any:
        """What it holds now; None for nothing."""
        return vars(self.owner).get(self.name)

    def __str__(self) -> str:
        return f"{self.owner.__name__ if isinstance(self.owner, ModuleType) else _named(self.owner)}.{self.name}"


class Exchange:
    """What was put where, until it is taken back. Not thread-safe.

    A function that one module has imported from another is a name of its own there. So all modules are gone through.
    Modules that are imported later import ours.
    """

    def __init__(self) -> None:
        self._pairs: list[Pair] = []
        self._places: list[Place] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Where ours stand."""
        places = [*self._places, *_held({id(pair.ours): pair for pair in self._pairs})]
        return tuple(sorted({str(place) for place in places if place.found is place.pair.ours}))

    def put_in_modules(self, pairs: Sequence[Pair] = ()) -> None:
        """Exchange objects under all names of all modules; those of earlier calls too, in modules that hold them."""
        self._pairs += pairs
        for place in _held({id(pair.theirs): pair for pair in self._pairs}):
            self._put(place)

    def put_in_class(self, owner: type, name: str, ours: Any) -> None:
        """Exchange what a class itself has under a name."""
        self._put(Place(owner, name, Pair(vars(owner)[name], ours)))

    def _put(self, place: Place) -> None:
        self._places.append(place)
        setattr(place.owner, place.name, place.pair.ours)

    def take_back(self) -> list[str]:
        """Put theirs back where ours are, those too that were imported meanwhile.

        Returns:
            Where something else stands by now, and what.
        """
        others = set()
        for place in [*self._places, *_held({id(pair.ours): pair for pair in self._pairs})]:
            found = place.found
            if found is place.pair.ours:
                setattr(place.owner, place.name, place.pair.theirs)
            elif found is not None and found is not place.pair.theirs:
                others.add(f"{place}, which is {_named(found)}")
        self._pairs, self._places = [], []
        return sorted(others)


def _held(pairs: dict[int, Pair]) -> list[Place]:
    """The names in modules of what has these numbers."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return [
        Place(module, name, pairs[id(thing)])
        for module in modules
        for name, thing in list(object.__getattribute__(module, "__dict__").items())  # also of one yet to be loaded
        if id(thing) in pairs
    ]


def _named(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', type(thing).__name__)}"
