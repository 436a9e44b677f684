"""What torch has traffic for."""

from __future__ import annotations

from tests.support.versions import is_torch_before

if is_torch_before(2, 12):  # which tensorwire.torch.traffic refuses
    collect_ignore_glob = ["test_*.py"]
