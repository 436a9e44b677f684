"""Decode frames on a device, or by the Triton kernels in Triton's interpreter on the CPU, and compare every bit.

    python examples/device_kernels.py          # no GPU needed: the interpreter runs the kernels, slowly
    python examples/device_kernels.py cuda     # on a GPU

Needs torch and triton. docs/devices.md says what was proven, and on what. The exit code is 1 if any bit differs.
"""

from __future__ import annotations

import os
import sys

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are imported

import torch  # noqa: E402

import tensorwire  # noqa: E402
from tensorwire.torch.device import decode_frame  # noqa: E402

DTYPES = (torch.bfloat16, torch.float32)


def main() -> int:
    torch.manual_seed(0)
    equal = True
    for profile in ("fast", "resident", "enec"):
        for dtype in DTYPES:
            weights = (torch.randn(64, 256) * 0.02).to(dtype)
            frame = torch.frombuffer(bytearray(tensorwire.compress(weights, profile=profile)), dtype=torch.uint8)
            decoded = decode_frame(frame.to(DEVICE)).cpu()
            same = torch.equal(decoded.view(torch.uint8), weights.view(torch.uint8))
            equal &= same
            ratio = weights.numel() * weights.element_size() / frame.numel()
            print(f"{profile:8} {dtype}: ratio {ratio:.3f}, {'equal' if same else 'DIFFERENT'}")
    print(f"bit-identical: {'yes' if equal else 'no'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
