"""How long `from_pretrained` takes, decompressing while it loads, against a dense checkpoint, from a disk of 1 GB/s.

    python -m benchmarks.inference.loading [FOLDER]

The control group `blkio` (version 1) throttles reads, which takes root; FOLDER is on the disk to read from. Before each
run the checkpoint leaves the page cache. Both sides take turns, each in a process of its own; a run begins when
everything is imported and ends when every weight has been read once, since dense weights are only mapped until then.
Memory is the highest resident size over that before the run: a dense model's pages are the file's and count as well.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inference import memory

BYTES_PER_SECOND = 1_000_000_000
ROUNDS = 5
GROUP = Path("/sys/fs/cgroup/blkio/tensorwire-loading")
SIZES = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "dtype": "bfloat16",
}


def make_models(folder: Path) -> int:
    """A dense and a compressed checkpoint below `folder`; the size of the largest tensor."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    import tensorwire

    config = LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"])
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    torch.manual_seed(0)
    tensors = {}
    for name, shape in shapes.items():
        rows = torch.exp(0.3 * torch.randn(shape[0], *[1] * (len(shape) - 1)))
        tensors[name] = (0.02 * rows * torch.randn(shape)).to(torch.bfloat16)
    (folder / "dense").mkdir()
    config.save_pretrained(folder / "dense")
    save_file(tensors, folder / "dense/model.safetensors", metadata={"format": "pt"})
    tensorwire.compress_checkpoint(folder / "dense", folder / "compressed")
    return max(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def throttle(folder: Path) -> None:
    """Make a control group whose processes read from the disk of `folder` at BYTES_PER_SECOND."""
    GROUP.mkdir(exist_ok=True)
    device = folder.stat().st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {BYTES_PER_SECOND}"
    (GROUP / "blkio.throttle.read_bps_device").write_text(limit)


def load_once(path: Path) -> dict[str, Any]:
    """One run in this process, which enters the group."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.llama import modeling_llama  # noqa: F401 - a run is not to pay for imports

    import tensorwire.torch  # noqa: F401 - registers with transformers

    memory.join(GROUP)
    for file in path.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.fdatasync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = memory.resident_nbytes()
    memory.forget_peak()
    start = time.perf_counter()
    config = AutoConfig.from_pretrained(path)
    if hasattr(config, "quantization_config"):
        config.quantization_config["dequantize"] = True
    model = AutoModelForCausalLM.from_pretrained(path, config=config)
    pages = sum(int(p.detach().view(torch.uint8).reshape(-1)[::4096].sum()) for p in model.parameters())
    seconds = time.perf_counter() - start
    nbytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return {"seconds": seconds, "peak": memory.peak_nbytes() - before, "nbytes": nbytes, "pages": pages}


def run_once(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.inference.loading", "--once", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def main(parent: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="tensorwire-loading-", dir=parent) as name:
        folder = Path(name)
        largest = make_models(folder)
        throttle(folder)
        runs: dict[str, list[dict[str, Any]]] = {"dense": [], "compressed": []}
        try:
            for _ in range(ROUNDS):
                for kind, found in runs.items():
                    found.append(run_once(folder / kind))
        finally:
            GROUP.rmdir()
    assert len({run["pages"] for found in runs.values() for run in found}) == 1, "the weights differ"
    nbytes = runs["dense"][0]["nbytes"]
    for kind, found in runs.items():
        seconds = statistics.median(run["seconds"] for run in found)
        peak = max(run["peak"] for run in found)
        print(f"{kind:10}  {seconds:6.2f} s  {nbytes / 1e9 / seconds:5.2f} GB/s  peak {peak / 1e9:.3f} GB")
    pairs = zip(runs["compressed"], runs["dense"], strict=True)
    ratios = [ours["seconds"] / dense["seconds"] for ours, dense in pairs]
    print(f"time against dense: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); target 0.8")
    above = max(run["peak"] for run in runs["compressed"]) - nbytes
    print(
        f"peak above the dense model of {nbytes / 1e9:.3f} GB: {above / 1e6:.0f} MB; largest tensor {largest / 1e6:.0f}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        print(json.dumps(load_once(Path(sys.argv[2]))))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
