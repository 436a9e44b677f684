"""A summary of results as a page and a chart: python -m benchmarks.codecs.report FOLDER reads its codecs.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import pages
from benchmarks.codecs import calls, sparsity, targets
from benchmarks.picture import INK, OURS, drawn
from benchmarks.results_page import Page
from benchmarks.results_page import targets as targets_of
from benchmarks.tables import of_columns

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Row = dict[str, Any]
PEERS = "#4184e4"


def parts(results: dict[str, Any]) -> list[str]:
    """Everything in `results` as Markdown, for a page beside plot.svg."""
    found = [
        "# Results",
        "How to read them: [docs/benchmarks.md](DOCS/benchmarks.md); why targets are missed: "
        "[docs/performance.md](DOCS/performance.md). Speeds are GB/s, 10^9 uncompressed bytes "
        "per second: the median, ± half the distance of the quartiles.",
        pages.environment_lines(results["environment"]),
        f"![{results['datasets'][0]['name']}: ratio against decompression speed](plot.svg)",
        *targets_of(targets.evaluate(results)),
        "## Where we lose",
        "\n".join(_losses(results)),
    ]
    found += [_dataset(facts, results["rows"]) for facts in results["datasets"]]
    if forced := [row for row in results["rows"] if row.get("forced_cpu")]:
        columns = (_COLUMNS[0], ("CPU target", "cpu", ""), ("data", "dataset", ""), *_COLUMNS[1:])
        found += ["## Ours on other CPU targets", of_columns(columns, forced)]
    if results.get("sparsity"):
        found += ["## Sparse words and odd distributions", sparsity.render(results["sparsity"])]
    if results.get("calls"):
        found += ["## Public functions against the core", calls.render(results["calls"])]
    if results.get("files"):
        found.append(_files(results["files"]))
    if results.get("parts"):
        found.append(_parts(results["parts"]))
    return found


def write_plot(results: dict[str, Any], path: Path) -> None:
    """Ratio against decompression speed on one thread, on the first data set: our profiles and each peer's best."""
    with drawn(path) as axis:
        _draw(results, axis)


def _draw(results: dict[str, Any], axis: Any) -> None:
    dataset = results["datasets"][0]
    shown = _shown(dataset["name"], results["rows"])
    for row in shown:
        ours = row["codec"].startswith("tensorwire")
        position = row["decompress"]["median"], row["ratio"]
        axis.plot(*position, "o" if ours else "X", color=OURS if ours else PEERS, markersize=7)
        side = -1 if any(_crowds(other, row) for other in shown) else 1
        axis.annotate(
            row["codec"], position, (0, 11 * side), textcoords="offset points", ha="center", va="center",
            weight="bold" if ours else "normal", color=OURS if ours else PEERS,
        )  # fmt: skip
    copy = next(row for row in results["rows"] if row["codec"] == "memcpy" and row["dataset"] == dataset["name"])
    limits = dataset["bound_by_tensor"], copy["decompress"]["median"]
    axis.axhline(limits[0], linestyle=":", color=INK, linewidth=1)
    axis.axvline(limits[1], linestyle=":", color=INK, linewidth=1)
    axis.text(limits[1] * 1.02, 0.03, "memcpy", transform=axis.get_xaxis_transform())
    axis.text(1, limits[0], "order-0\nbound", transform=axis.get_yaxis_transform(), ha="right", va="top")
    axis.set(xscale="log", xlabel="decompress, GB/s of uncompressed data, one thread", ylabel="ratio")
    slowest = min(row["decompress"]["median"] for row in shown)
    axis.set_xlim(slowest * 0.6, limits[1] * 1.5)
    ticks = [tick for tick in (2.0**power for power in range(-8, 8)) if slowest * 0.6 <= tick <= limits[1] * 1.5]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.margins(y=0.12)


def _dataset(facts: dict[str, Any], rows: Iterable[Row]) -> str:
    mine = [row for row in rows if row["dataset"] == facts["name"] and not row.get("forced_cpu")]
    head = (
        f"## {facts['name']}\n\n{facts['dtype']}, {facts['nbytes']} bytes in {facts['tensors']} tensors, SHA-256 "
        f"{facts['sha256'][:16]}... Order-0 bounds of the ratio: {facts['bound_whole']:.4f} over all tensors, "
        f"{facts['bound_by_tensor']:.4f} tensor by tensor. All tensors as one buffer; in brackets tensor by tensor."
    )
    return f"{head}\n\n{of_columns(_COLUMNS, mine)}"


def _ratio(row: Row) -> str:
    other = row.get("by_tensor")
    return f"{row['ratio']:.4f}" + (f" ({other['ratio']:.4f})" if other else "")


_COLUMNS = (
    ("codec", lambda row: f"{row['codec']} {row['version']}"), ("threads", "threads", "d"),
    ("checksums", lambda row: pages.CHECKSUMS[row["verify"]]), ("ratio", _ratio),
    ("compress", lambda row: pages.speed(row, "compress")), ("of memcpy", "compress.vs_memcpy", ".2f"),
    ("times ZipNN", "compress.vs_zipnn", ".2f"), ("decompress", lambda row: pages.speed(row, "decompress")),
    ("of memcpy", "decompress.vs_memcpy", ".2f"), ("times ZipNN", "decompress.vs_zipnn", ".2f"),
)  # fmt: skip


def _files(facts: dict[str, Any]) -> str:
    head = (
        f"## Whole files\n\n{facts['dataset']} as a safetensors file of {facts['nbytes']} bytes in the page cache "
        f"({facts['compressed_nbytes']} compressed), all cores."
    )
    rows = []
    for row in facts["commands"] + facts["loading"]:
        seconds, ratio = row["seconds"], row["vs_baseline"]
        text = f"{seconds['median']:.3f} ±{(seconds['high'] - seconds['low']) / 2:.3f}"
        rows.append((row["name"], text, "-" if ratio is None else f"{ratio['median']:.2f}"))
    return f"{head}\n\n{pages.table(('what', 'seconds', 'times its baseline'), rows)}"


def _parts(parts: list[dict[str, Any]]) -> str:
    total = sum(part["seconds"] for part in parts)
    rows = [(part["part"], f"{part['seconds']:.0f}") for part in parts]
    return f"## How long it took\n\n{total / 60:.0f} minutes.\n\n{pages.table(('part', 'seconds'), rows)}"


def _losses(results: dict[str, Any]) -> list[str]:
    """Peers that are better than our best profile at the same thing; one thread, the better unit of each."""
    aims = (("ratio", "compact"), ("compress", "fast"), ("decompress", "fast"))
    lines = []
    for facts in results["datasets"]:
        best: dict[str, dict[str, float]] = {}
        for row in results["rows"]:
            if row["dataset"] == facts["name"] and row["threads"] == 1 and not row.get("forced_cpu"):
                figures = best.setdefault(row["codec"], {})
                for aim, _ in aims:
                    figures[aim] = max(figures.get(aim, 0.0), *targets.figures(row, aim))
        for aim, profile in aims:
            ours = best[f"tensorwire {profile}"][aim]
            for codec, figures in best.items():
                if codec == "memcpy" or codec.startswith("tensorwire") or figures[aim] <= ours:
                    continue
                lines.append(
                    f"- {facts['name']}, {aim}: {codec} {figures[aim]:.4g}, {profile} {ours:.4g} "
                    f"(its ratio is {figures['ratio']:.4f})"
                )
    return lines or ["To no peer in this run, in none of: ratio (compact), compress and decompress (fast), one thread."]


def _shown(name: str, rows: Iterable[Row]) -> list[Row]:
    """On one thread and with checksums where they can be had: each of our profiles, and of each peer the setting of the
    best ratio."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["dataset"] != name or row["threads"] != 1 or row["verify"] is False or row.get("forced_cpu"):
            continue
        codec = row["codec"]
        peer = codec if codec.startswith("tensorwire") else codec.split()[0]
        if codec != "memcpy" and (peer not in best or row["ratio"] > best[peer]["ratio"]):
            best[peer] = row
    return list(best.values())


def _crowds(other: Row, row: Row) -> bool:
    """Whether `other` stands close above `row`, so that their labels would meet."""
    near = 0.5 < other["decompress"]["median"] / row["decompress"]["median"] < 2
    return near and 0 < other["ratio"] - row["ratio"] < 0.06


PAGE = Page("codecs", parts, "README.md", lambda results, folder: write_plot(results, folder / "plot.svg"))

if __name__ == "__main__":
    PAGE.command(__doc__)
