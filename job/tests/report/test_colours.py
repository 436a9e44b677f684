"""The colours of the page, in both schemes: what is read and what is drawn stands out from its ground (WCAG AA)."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

TEXT, DRAWN = 4.5, 3.0
LABELLED = ("waits", "behind", "absent", "stopped", "ended", "lost")
ON_DARK = ("waits", "ended")


@pytest.fixture(params=["light", "dark"])
def colours(request: pytest.FixtureRequest, repository: Path) -> dict[str, str]:
    style = (repository / "job/src/tensorwire_job/report/style.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w+);", part)) for part in re.findall(r":root \{(.*?)\}", style, re.S)
    )
    return light | dark if request.param == "dark" else light


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    red, green, blue = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read(colours: dict[str, str]) -> None:
    for ink, ground in product(("ink", "soft", "bad", "good", "warn"), ("paper", "panel")):
        assert contrast(colours[ink], colours[ground]) >= TEXT, (ink, ground)


def test_states_stand_out_from_the_paper(colours: dict[str, str]) -> None:
    for state in ("idle", "moves", *LABELLED):
        assert contrast(colours[state], colours["paper"]) >= DRAWN, state


def test_what_is_written_into_a_state_can_be_read(colours: dict[str, str]) -> None:
    for state in LABELLED:
        ink = colours["dark" if state in ON_DARK else "paper"]
        assert contrast(ink, colours[state]) >= TEXT, state


def test_numbers_in_cells_can_be_read(colours: dict[str, str]) -> None:
    inks = {0: "ink", 1: "ink", 2: "ink", 3: "on-heat3", 4: "paper", 5: "paper"}
    for level, ink in inks.items():
        assert contrast(colours[ink], colours[f"heat{level}"]) >= TEXT, level


def test_the_rules_use_these_inks(repository: Path) -> None:
    style = (repository / "job/src/tensorwire_job/report/style.css").read_text()
    assert "svg text.within { font-size: 11px; fill: var(--paper); }" in style
    dark = ", ".join(f"svg text.on-{state}" for state in ON_DARK)
    assert f"{dark} {{ fill: var(--dark); }}" in style
    assert "svg.roomy text.on-heat3 { fill: var(--on-heat3); }" in style
    assert "svg.roomy text.on-heat4, svg.roomy text.on-heat5 { fill: var(--paper); }" in style
