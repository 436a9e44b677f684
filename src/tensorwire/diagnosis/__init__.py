"""Naming the slow or hung rank of a training job.

A script attaches the probe with :func:`attach` (or is started by ``python -m tensorwire.probe``, unchanged) and may say
with :func:`phase` that it is busy with something else than training. Importing this package loads neither torch nor
NumPy.
"""

from .rank.nccl_plugin import nccl_plugin_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .rank.probe import attach, phase

__all__ = ["attach", "nccl_plugin_path", "phase"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .rank import probe

    return getattr(probe, name)


def __dir__() -> list[str]:
    return __all__
