"""What is measured on a model, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.inference.memory import GIB

REFERENCE, OWN = "dense", "own dense kernel"
LOADED, LOADED_COMPRESSED = "dense, from_pretrained", "exact, from_pretrained"


@dataclass(frozen=True)
class Group:
    """Contenders that are in memory at the same time and take turns.

    Attributes:
        names: of the contenders, the reference first.
        avx2: whether all of them are held to AVX2.
        threads: numbers of threads, one after the other.
        rounds: how many turns each has.
        tokens: in a turn.
        prompt: its length; short where torch multiplies matrices of several rows slowly.
        products: whether the linear layers are measured alone too, and beside them the reading of memory.
        long_prompt, batch: of what comes after it, once for each of `extra_rounds`; 0 leaves it out.
    """

    names: tuple[str, ...]
    avx2: bool = False
    threads: tuple[int, ...] = (2, 1)
    rounds: int = 5
    tokens: int = 3
    prompt: int = 16
    products: bool = False
    long_prompt: int = 0
    batch: int = 0
    extra_rounds: int = 3


@dataclass(frozen=True)
class Plan:
    """What is measured on a model.

    Attributes:
        alone: contenders that each have the machine for themselves: load, first token, memory.
        repeats: of some of them, how often.
        limit: of memory in bytes, page cache included; the cache is then empty at the start.
        prompt, tokens: of each; `budget` is how many seconds tokens may take.
        groups: take turns afterwards.
        reference: whose logits the exact ones must have.
    """

    alone: tuple[str, ...]
    repeats: dict[str, int]
    reference: str = REFERENCE
    limit: int | None = None
    prompt: int = 16
    tokens: int = 8
    budget: float = 60.0
    groups: tuple[Group, ...] = ()

    def names(self) -> set[str]:
        """All contenders."""
        return {*self.alone, *(name for group in self.groups for name in group.names)}


FUSED = ("fused, fast", "fused, resident")
EXACT = ("exact, fast", "exact, resident", "decode ahead, fast")
LARGER = (
    "dense, mmap",
    "streaming, fast",
    "streaming all, fast",
    "accelerate, CPU offload",
    "accelerate, disk offload",
)
LLAMA = "llama.cpp"
PLANS = {
    "1b": Plan(
        alone=(REFERENCE, LOADED, LOADED_COMPRESSED, *EXACT, *FUSED, *LARGER, LLAMA, "ZipNN"),
        repeats={LOADED: 3, LOADED_COMPRESSED: 3, "exact, fast": 3, "exact, resident": 3, "fused, fast": 3},
        groups=(
            Group((REFERENCE, OWN, *FUSED), products=True, long_prompt=512, batch=8),
            Group((REFERENCE, *EXACT), long_prompt=512, batch=8),
            Group((REFERENCE, *LARGER), threads=(2,), rounds=3),
            Group((REFERENCE, EXACT[0], LLAMA), threads=(2,), rounds=3, long_prompt=512),
            Group((REFERENCE, OWN, *FUSED, *EXACT[:2]), avx2=True, prompt=1, products=True, batch=8),
            Group(
                (REFERENCE, *EXACT[:2]), avx2=True, threads=(2,), rounds=1, prompt=1, long_prompt=512, extra_rounds=1
            ),
        ),
    ),
    "12b": Plan(
        alone=(
            "dense, mmap",
            "decode ahead, fast",
            "exact, fast",
            "fused, fast",
            "streaming, fast",
            "streaming all, fast",
            "accelerate, disk offload",
            REFERENCE,
        ),
        repeats={},
        reference="dense, mmap",
        limit=18 * GIB,
        tokens=6,
    ),
    "tiny": Plan(
        alone=(REFERENCE, LOADED, "exact, fast", "fused, fast", "dense, mmap", "ZipNN"),
        repeats={},
        tokens=2,
        groups=(Group((REFERENCE, OWN, "fused, fast"), rounds=1, products=True, long_prompt=32, batch=2),),
    ),
}
