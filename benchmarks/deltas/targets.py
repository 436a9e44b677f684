"""The figures that deltas are to reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.deltas import pairs
from benchmarks.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]
# Bits for each changed word at 1e-6, 5e-6 and 2e-5: one frame a matrix, then all matrices in one frame.
BY_TENSOR = {"compact": (9.2, 7.0, 6.0), "fast": (14, 11.3, 9.6)}
WHOLE = {"compact": (8.3, 6.8, 5.9)}
OF_PEERS = {"gap + XOR, zstd 1": 0.57, "XOR, zstd 1": 0.46}
# Bits a word, of pairs of which most words changed.
FAR = dict(zip(pairs.FAR, (2.3, 4.0), strict=True))
SAME, SPARSE, DENSE = pairs.SYNTHETIC
PROFILES = ("fast", "compact")


def evaluate(results: dict[str, Any]) -> list[Verdict]:
    """Every target; `results` as `benchmarks.deltas.run` gives them."""
    return list(_Targets(results).verdicts())


class _Targets:
    def __init__(self, results: dict[str, Any]) -> None:
        self._rows: list[Row] = results["rows"]
        self._pairs = {facts["name"]: facts for facts in results["pairs"]}
        self._forced = sorted({row["forced_cpu"] for row in self._rows if "forced_cpu" in row})

    def verdicts(self) -> Iterator[Verdict]:
        yield from self._near()
        yield from self._far()
        for cpu in (None, *self._forced):
            yield from self._speed(cpu)
        yield from self._limits()

    def _near(self) -> Iterator[Verdict]:
        for limits, unit in ((BY_TENSOR, "one frame a matrix"), (WHOLE, "one frame")):
            for profile, bounds in limits.items():
                for name, bound in zip(pairs.NEAR, bounds, strict=True):
                    bits = self._bits(name, f"relative {profile}", unit == "one frame", "changed")
                    yield Verdict(f"{profile}, bits a change, {unit}", name, bits, bound, at_most=True)
        for peer, bound in OF_PEERS.items():
            for name in pairs.NEAR:
                for whole, unit in ((False, "by matrix"), (True, "in one")):
                    yield self._of(f"compact, of {peer}, {unit}", name, whole, peer, bound)

    def _far(self) -> Iterator[Verdict]:
        for name, bound in FAR.items():
            for whole, unit in ((False, "by matrix"), (True, "in one")):
                bits = self._bits(name, "relative compact", whole, "words")
                yield Verdict(f"compact, bits a word, {unit}", name, bits, bound, at_most=True)
                yield self._of(f"compact, of BitX, {unit}", name, whole, "BitX", 1 / 1.45)
            for direction in ("encode", "apply"):
                figure = self._figure(name, "compact", direction, "vs_bitx")
                yield Verdict(f"compact {direction}, times BitX", name, figure, 4)

    def _speed(self, cpu: str | None) -> Iterator[Verdict]:
        on = f", {cpu}" if cpu else ""
        for profile in PROFILES:
            for name in (*pairs.NEAR[:2], SPARSE):
                for direction, verify, bound in (("encode", True, 0.3), ("apply", True, 0.4), ("apply", False, 0.6)):
                    figure = self._figure(name, profile, direction, "vs_memcpy", verify, cpu)
                    checked = "" if verify else ", unverified"
                    yield Verdict(f"{profile} {direction}{checked}, of memcpy{on}", name, figure, bound)
            for direction in ("encode", "apply"):
                figure = self._figure(DENSE, profile, direction, "median", True, cpu)
                yield Verdict(f"{profile} {direction}, GB/s{on}", DENSE, figure, 1)

    def _limits(self) -> Iterator[Verdict]:
        for profile in PROFILES:
            nbytes = self._nbytes(SAME, f"relative {profile}", True)
            yield Verdict(f"{profile}, bytes of a frame that changes nothing", SAME, nbytes, 256, at_most=True)
            for whole, unit in ((False, "by matrix"), (True, "in one")):
                ours, plain = (
                    self._nbytes(pairs.UNRELATED, f"{kind} {profile}", whole) for kind in ("relative", "plain")
                )
                share = ours / plain if ours and plain else None
                yield Verdict(f"{profile}, of the plain frame, {unit}", pairs.UNRELATED, share, 1.001, at_most=True)

    def _of(self, target: str, name: str, whole: bool, peer: str, bound: float) -> Verdict:
        ours, theirs = (self._nbytes(name, codec, whole) for codec in ("relative compact", peer))
        return Verdict(target, name, ours / theirs if ours and theirs else None, bound, at_most=True)

    def _bits(self, name: str, codec: str, whole: bool, per: str) -> float | None:
        nbytes = self._nbytes(name, codec, whole)
        return None if nbytes is None else 8 * nbytes / self._pairs[name][per]

    def _nbytes(self, name: str, codec: str, whole: bool) -> int | None:
        row = self._row(name, codec)
        if row is None or not (whole or "by_tensor" in row):
            return None
        nbytes: int = row["nbytes"] if whole else row["by_tensor"]["nbytes"]
        return nbytes

    def _figure(
        self, name: str, profile: str, direction: str, what: str, verify: bool = True, cpu: str | None = None
    ) -> float | None:
        row = self._row(name, f"relative {profile}", verify, cpu)
        return row and row.get(direction, {}).get(what)

    def _row(self, name: str, codec: str, verify: bool = True, cpu: str | None = None) -> Row | None:
        for row in self._rows:
            same = (row["pair"], row["codec"], row.get("forced_cpu")) == (name, codec, cpu)
            if same and row["verify"] in (verify, None):
                return row
        return None
