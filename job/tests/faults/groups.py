"""All variants: known faults, faults that nobody had tuned for when they were first run, and healthy jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fourth import FOURTH
from .healthy import HEALTHY
from .known import KNOWN
from .unseen import UNSEEN
from .unseen_fifth import UNSEEN_FIFTH
from .unseen_second import UNSEEN_SECOND
from .unseen_third import UNSEEN_THIRD

if TYPE_CHECKING:
    from .variants import Variant

GROUPS: dict[str, list[Variant]] = {
    "known": KNOWN,
    "unseen": UNSEEN,
    "second": UNSEEN_SECOND,
    "third": UNSEEN_THIRD,
    "fourth": FOURTH,
    "fifth": UNSEEN_FIFTH,
    "healthy": HEALTHY,
}
BY_NAME = {variant.name: variant for variants in GROUPS.values() for variant in variants}
