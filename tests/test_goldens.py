"""The golden files of version 1 are final: every released version decodes these bytes, so none of them may change."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

DIGESTS = {
    "v1": "410885bdaaf3e45877f1b28feeb9999ad0209f929a0f258b6ec5897a14aea98a",
    "checkpoints/v1": "394cd314166f57ced0a48b825e1209d8fa3008317650e9f5f0cfcd3fea726852",
}


@pytest.mark.parametrize("folder", DIGESTS)
def test_no_byte_of_a_golden_changes(repository: Path, folder: str) -> None:
    root = repository / "tests" / "golden" / folder
    files = sorted((path.relative_to(root).as_posix(), path) for path in root.rglob("*") if path.is_file())
    lines = [f"{sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in files]
    found = sha256("".join(lines).encode()).hexdigest()
    assert found == DIGESTS[folder], "a golden was changed, removed or added; tests/golden/README.md has the rules"
