"""What benchmarks/results says of kernels on an H200, in the words that a claim about it needs."""

from __future__ import annotations

import json

from benchmarks.device import model
from benchmarks.device.counts import KERNELS, PAGE
from benchmarks.device.model import INSTRUCTIONS, modelled
from tests.support.figures import RESULTS, span

DEVICE = json.loads((RESULTS / "device-h200.json").read_text())
MATRICES = ("28672 x 8192", "14336 x 4096", "4096 x 4096")
DENSE = "dense"
FAST = {"*exact*, `fast`": "exact, fast", "*fused*, `fast`": "fused, fast"}
RESIDENT = {"*exact*, `resident`": "exact, resident", "*fused*, `resident`": "fused, resident"}


def page() -> list[str]:
    """The claims of docs/devices.md."""
    products = {name: what for name, what in {**FAST, **RESIDENT}.items() if what != "exact, resident"}
    return [
        *(_decoding(profile) for profile in INSTRUCTIONS),
        *(_product(name, what) for name, what in products.items()),
        *(_model(name, what) for name, what in {DENSE: DENSE, **FAST, **RESIDENT}.items()),
        f"Llama with {_of('models', 'weights', what=DENSE):.1f} billion weights",
        *_counted(),
        *(f"| {' | '.join(row)} |" for row in model.rows()),
        f"Copies move {DEVICE['device']['copy'] / 1e12:.2f} TB/s on the H200, as measured",
        f"To open frames takes {_of('models', 'opening', what='exact, fast'):.0f} ms for each GB",
    ]


def token(what: str) -> str:
    """How many times as long a token takes as with dense weights."""
    return f"{_of('models', 'tokens', what=DENSE) / _of('models', 'tokens', what=what):.1f}"


def resting(what: str) -> str:
    """GB of a model's weights."""
    return f"{_of('models', 'resting', what=what):.2f}"


def peak(what: str) -> str:
    """The most GB that a model takes while it runs."""
    return f"{_of('models', 'peak', what=what):.2f}"


def _counted() -> list[str]:
    """Rows of the table of instructions: counted, and its limit."""
    found = {each.what: each for each in KERNELS if each.most is not None}
    cells = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [f"| {' | '.join(row[:3])} | {found[row[0]].most} |" for row in cells if row[0] in found]


def _of(table: str, figure: str, **wanted: object) -> float:
    (row,) = [row for row in DEVICE[table] if all(row[key] == value for key, value in wanted.items())]
    return float(row[figure])


def _decoding(profile: str) -> str:
    """A row of the table of speeds, with what the model expects."""
    expected = modelled(
        INSTRUCTIONS[profile], _of("decoding", "ratio", what=profile, shape=MATRICES[0]), DEVICE["device"]
    )
    cells = " | ".join(f"{_of('decoding', 'output', what=profile, shape=shape):.2f}" for shape in MATRICES)
    return f"| `{profile}`, {INSTRUCTIONS[profile]} instructions | {span(expected)} | {cells} |"


def _product(name: str, what: str) -> str:
    cells = (_of("products", "of_dense", what=what, shape=MATRICES[1], inputs=count) for count in (1, 2, 4))
    return f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"


def _model(name: str, what: str) -> str:
    return f"| {name} | {_of('models', 'tokens', what=what):.0f} | {resting(what)} | {peak(what)} |"
