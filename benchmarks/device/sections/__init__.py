"""What is measured, the most wanted first. A section more is a module more, and its name here."""

from __future__ import annotations

from benchmarks.device.sections import (
    bits,
    card,
    ceilings,
    counters,
    decoding,
    models,
    nccl,
    opening,
    products,
    prompts,
)

SECTIONS = tuple(
    module.SECTION for module in (card, bits, ceilings, decoding, products, models, prompts, counters, opening, nccl)
)
