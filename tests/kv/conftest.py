"""What the tests of the tier for vLLM have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.vllm_chunks import Tier


@pytest.fixture
def make_tier() -> Iterator[Callable[..., Tier]]:
    from tests.support.vllm_chunks import Tier

    made = list[Tier]()

    def make(*arguments: Any, **options: Any) -> Tier:
        made.append(Tier(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.tier.shutdown()


@pytest.fixture(params=["memory", "directory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {} if request.param == "memory" else {"directory": str(tmp_path / "cache")}
