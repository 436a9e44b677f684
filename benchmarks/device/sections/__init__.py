"""What is measured, the most wanted first. A section more is a module more, and its name here."""

from __future__ import annotations

from benchmarks.device.sections import (
    bits,
    card,
    ceilings,
    counters,
    decoding,
    generate,
    memcheck,
    models,
    nccl,
    offload,
    opening,
    orders,
    products,
    prompts,
)

FIRST = tuple(module.SECTION for module in (card, bits, ceilings, decoding, products, models, opening, prompts, orders))
"""One run has time for these."""
SECTIONS = (*FIRST, *(module.SECTION for module in (offload, counters, memcheck, generate, nccl)))
