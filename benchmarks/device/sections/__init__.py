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
    writing,
)

FIRST = tuple(module.SECTION for module in (card, bits, ceilings, decoding, products, models, opening, prompts, orders))
"""One run has time for these."""
SECTIONS = (*FIRST, *(module.SECTION for module in (writing, offload, counters, memcheck, generate, nccl)))
