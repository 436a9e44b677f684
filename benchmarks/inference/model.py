"""Models of the shape of Llama with random weights, written as sharded safetensors, dense and compressed.

Matrices have the scales of rows and columns that `benchmarks.data` gives them. A tensor depends on its name and shape
alone. Layers are made and written one after the other, so a model may be larger than the memory.
"""

from __future__ import annotations

import json
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHARD_NBYTES = 1 << 30
INDEX = "model.safetensors.index.json"
WORD_NBYTES = 2  # of BF16


@dataclass(frozen=True)
class Size:
    """A model to be measured.

    Attributes:
        name: of the model, and of its folder.
        hidden, inner, layers, heads, kv_heads, head_dim, vocabulary: as in Llama.
        tied: whether the output shares the matrix of the embeddings.
        profiles: in which it is compressed.
    """

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    profiles: tuple[str, ...] = field(default=("fast", "resident"))

    def shapes(self) -> Iterator[dict[str, tuple[int, ...]]]:
        """Names and shapes of the tensors, in the parts that are made together: the embeddings, each layer."""
        ends: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        yield ends if self.tied else {**ends, "lm_head.weight": (self.vocabulary, self.hidden)}
        queries, values = self.heads * self.head_dim, self.kv_heads * self.head_dim
        matrices = {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (values, self.hidden),
            "self_attn.v_proj": (values, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
            "mlp.gate_proj": (self.inner, self.hidden),
            "mlp.up_proj": (self.inner, self.hidden),
            "mlp.down_proj": (self.hidden, self.inner),
        }
        norms = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (self.hidden,))
        for layer in range(self.layers):
            yield {f"model.layers.{layer}.{key}.weight": shape for key, shape in {**matrices, **norms}.items()}

    @property
    def numel(self) -> int:
        """How many parameters it has."""
        return sum(int(np.prod(shape)) for part in self.shapes() for shape in part.values())

    def part_nbytes(self) -> list[int]:
        """Sizes of what is used together: each layer, and the embeddings, which are the output's matrix too."""
        return [WORD_NBYTES * max(_sizes(part)) if index == 0 else WORD_NBYTES * sum(_sizes(part))
                for index, part in enumerate(self.shapes())]  # fmt: skip

    def kv_nbytes(self, positions: int) -> int:
        """The size of keys and values of so many positions."""
        return 2 * self.layers * self.kv_heads * self.head_dim * positions * WORD_NBYTES

    def config(self) -> dict[str, Any]:
        """config.json, as Transformers reads it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "dtype": "bfloat16",
        }


SIZES = {
    size.name: size
    for size in (
        Size("tiny", 256, 704, 2, 4, 2, 64, 2048, tied=True),
        Size("0.4b", 1024, 4096, 16, 16, 4, 64, 128_256, tied=True, profiles=("fast",)),
        Size("1b", 2048, 8192, 16, 32, 8, 64, 128_256, tied=True),
        # Its compressed form in "resident" would not fit the limit of memory in which it is measured.
        Size("12b", 5120, 14336, 40, 32, 8, 128, 131_072, tied=False, profiles=("fast",)),
    )
}


@dataclass(frozen=True)
class Paths:
    """Where a model lies.

    Attributes:
        folder: that all of it lies in.
    """

    folder: Path

    @property
    def dense(self) -> Path:
        """The directory of the dense checkpoint."""
        return self.folder / "dense"

    def compressed(self, profile: str) -> Path:
        """The directory of the compressed checkpoint."""
        return self.folder / profile


def prepare(size: Size, paths: Paths) -> dict[str, Any]:
    """Make what is missing of a model; return facts for the results."""
    from tensorwire.checkpoint import compress_checkpoint

    if not (paths.dense / INDEX).exists():
        shutil.rmtree(paths.dense, ignore_errors=True)
        write(size, paths.dense)
    nbytes = {}
    for profile in size.profiles:
        target = paths.compressed(profile)
        if not target.exists():
            compress_checkpoint(paths.dense, target, profile=profile)
        nbytes[profile] = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    return {
        "name": size.name,
        "parameters": size.numel,
        "dense_nbytes": WORD_NBYTES * size.numel,
        "compressed_nbytes": nbytes,
    }


def write(size: Size, directory: Path) -> None:
    """The dense checkpoint. Its index comes last: where it stands, all is there."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(size.config(), indent=1))
    places: dict[str, str] = {}
    shard: dict[str, Any] = {}
    for part in [*size.shapes(), None]:
        if shard and (part is None or _nbytes(shard) >= SHARD_NBYTES):
            file = f"model-{len(set(places.values())) + 1:05}.safetensors"
            save_file(shard, directory / file, metadata={"format": "pt"})
            places.update(dict.fromkeys(shard, file))
            shard = {}
        if part is not None:
            shard.update(_make(part))
    index = {"metadata": {"total_size": WORD_NBYTES * size.numel}, "weight_map": places}
    (directory / INDEX).write_text(json.dumps(index, indent=1))


def _make(part: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(part, pool.map(_tensor, part, part.values()), strict=True))


def _tensor(name: str, shape: tuple[int, ...]) -> Any:
    import torch

    generator = np.random.default_rng([data.SYNTHETIC_SEED, zlib.crc32(name.encode())])
    if len(shape) == 1:
        values = data.norm(generator, *shape)
    elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
        values = data.matrix(generator, *shape, data.EMBEDDING_SIGMA, None)
    else:
        values = data.matrix(generator, *shape, data.ROW_SIGMA, data.COLUMN_SIGMA)
    return torch.from_numpy(values).to(torch.bfloat16)


def _nbytes(tensors: dict[str, Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _sizes(part: dict[str, tuple[int, ...]]) -> list[int]:
    return [int(np.prod(shape)) for shape in part.values()]
