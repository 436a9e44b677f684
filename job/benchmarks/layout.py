"""Which ranks of a simulated job talk to each other: tensor, pipeline and data parallel groups, rings and trees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

RANKS_PER_NODE = 8


@dataclass(frozen=True)
class Layout:
    """TP x PP x DP ranks; tensor-parallel neighbours have neighbouring numbers, as Megatron-LM places them.

    Attributes:
        algorithm: "ring" or "tree": which pairs of a group have a connection, and how time grows with its size.
    """

    tp: int
    pp: int
    dp: int
    algorithm: str = "ring"

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def num_nodes(self) -> int:
        return -(-self.world_size // RANKS_PER_NODE)

    @cached_property
    def groups(self) -> dict[str, np.ndarray]:
        """For each kind of group: members, one row a group."""
        grid = np.arange(self.world_size).reshape(self.dp, self.pp, self.tp)
        kinds = {
            "tp": grid.reshape(-1, self.tp),
            "pp": grid.transpose(0, 2, 1).reshape(-1, self.pp),
            "dp": grid.transpose(1, 2, 0).reshape(-1, self.dp),
            "world": grid.reshape(1, -1),
        }
        return {kind: rows for kind, rows in kinds.items() if rows.shape[1] > 1}

    @cached_property
    def group_of(self) -> dict[str, np.ndarray]:
        """For each kind: the row that a rank is in."""
        found = {}
        for kind, rows in self.groups.items():
            of = np.empty(self.world_size, dtype=np.int64)
            of[rows.ravel()] = np.repeat(np.arange(len(rows)), rows.shape[1])
            found[kind] = of
        return found

    @cached_property
    def previous_stage(self) -> np.ndarray:
        """The rank that a rank receives activations from; -1 in the first stage."""
        numbers = np.arange(self.world_size)
        return np.where((numbers // self.tp) % self.pp > 0, numbers - self.tp, -1)

    def hops(self, kind: str) -> float:
        """Time of an all-reduce in units of its bytes over the bandwidth of a link."""
        size = self.groups[kind].shape[1]
        return 2 * (size - 1) / size if self.algorithm == "ring" else 1 + 0.1 * np.log2(size)

    @cached_property
    def edges(self) -> np.ndarray:
        """Pairs (rank, peer) that are connected for data parallel or, failing that, all ranks; both directions."""
        rows = self.groups.get("dp", self.groups["world"])
        here = np.arange(rows.shape[1])
        if self.algorithm == "ring":
            ends = np.stack([here, (here + 1) % len(here)])
        else:  # two trees, one the mirror image of the other, so that no rank is a leaf in both
            tree = np.stack([here[1:], (here[1:] - 1) // 2])
            ends = np.concatenate([tree, len(here) - 1 - tree], axis=1)
        pairs = np.stack([rows[:, ends[0]].ravel(), rows[:, ends[1]].ravel()], axis=1)
        return np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
