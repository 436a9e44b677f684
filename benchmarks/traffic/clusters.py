"""LSH-MoE (arXiv 2411.08446) as a contrast: means of similar tokens travel to experts, and not the tokens.

It needs no codec, since the experts get fewer rows. Its clusters mix positions, so a causal model sees later bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from benchmarks import gpt
from benchmarks.traffic.moe import WIDTH, Model

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarks.traffic.moe import Run, Way
    from tensorwire.torch.traffic.choice import Choice

_AXES = 8


@dataclass(frozen=True)
class Clusters:
    """Tokens of one expert are alike if the same axis of a random rotation is nearest to them (a cross-polytope hash).

    Attributes:
        random: clusters by chance instead, as many.
        compensated: the sender adds what a token differs by from its mean, which makes it another model.
    """

    random: bool = False
    compensated: bool = True

    def __call__(self, run: Run, tokens: Tensor, splits: list[int]) -> Tensor:
        experts = torch.arange(len(splits)).repeat_interleave(torch.tensor(splits))
        names, places = (2 * _AXES * experts + self._hash(tokens)).unique(return_inverse=True)  # sorted by expert
        sums = tokens.new_zeros(len(names), WIDTH, dtype=torch.float32).index_add(0, places, tokens.float())
        means = sums / places.bincount(minlength=len(names))[:, None]
        counts = (names // (2 * _AXES)).bincount(minlength=len(splits)).tolist()
        made = run(means.bfloat16(), counts)[places]
        return made + (tokens - means[places]).bfloat16() if self.compensated else made

    def _hash(self, tokens: Tensor) -> Tensor:
        if self.random:
            return torch.randint(2 * _AXES, (len(tokens),))
        axes = torch.randn(WIDTH, _AXES, generator=torch.Generator().manual_seed(3))
        rotated = tokens.detach().float() @ axes
        return torch.cat([rotated, -rotated], 1).argmax(1)


def leak(codec: Choice, way: Way | None = None) -> float:
    """On all ranks at once: by how much logits change of places before a byte that is replaced, at most."""
    model, tokens = Model(0, codec, way), gpt.batch(1, 4, rank=dist.get_rank())[:, :-1]
    changed, place = tokens.clone(), tokens.shape[1] // 2
    changed[:, place] = (changed[:, place] + 1) % gpt.BYTES
    with torch.no_grad():
        torch.manual_seed(1)
        before = model(tokens)
        torch.manual_seed(1)
        after = model(changed)
    return float((after - before)[:, :place].abs().max())
