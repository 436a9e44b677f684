"""Naming the slow or hung rank of a training job.

A script attaches the probe with :func:`attach` (or is started by ``python -m tensorwire_job``, unchanged) and may say
with :func:`phase` that it is busy with something else than training. Another process then calls :func:`diagnose`, which
gives a list of :class:`Finding`. Importing this package loads neither torch nor NumPy.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .model import Finding
    from .rank.probe import attach, phase
    from .service.diagnose import diagnose

__all__ = ["Finding", "attach", "diagnose", "phase"]

# These are loaded when they are asked for: a rank needs none of the rest.
_MODULES = {"Finding": "model", "attach": "rank.probe", "diagnose": "service.diagnose", "phase": "rank.probe"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
