"""Results as a page and a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import targets

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Row = dict[str, Any]


def write_page(results: dict[str, Any], path: Path, plot: str) -> None:
    """Everything in `results` as Markdown; `plot` is the name of the picture beside it."""
    parts = [
        "# Results",
        "How to read them: [docs/benchmarks.md](../../docs/benchmarks.md); why targets are missed: "
        "[docs/performance.md](../../docs/performance.md). Speeds are GB/s, 10^9 uncompressed bytes "
        "per second: the median, ± half the distance of the quartiles.",
        _environment(results["environment"]),
        f"![ratio against decompression speed]({plot})",
        "## Targets",
        targets.render(targets.evaluate(results)),
        "## Where we lose",
        "\n".join(_losses(results)),
    ]
    parts += [_dataset(facts, results["rows"]) for facts in results["datasets"]]
    if forced := [row for row in results["rows"] if row.get("forced_cpu")]:
        parts += ["## Ours on other CPU targets", _table(forced, (*_COLUMNS[:1], _CPU, _DATASET, *_COLUMNS[1:]))]
    if results.get("files"):
        parts.append(_files(results["files"]))
    path.write_text("\n\n".join(parts) + "\n")


def write_plot(results: dict[str, Any], path: Path) -> None:
    """Ratio against decompression speed on one thread, one panel for each data set."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tensorwire"
    import matplotlib.pyplot as plt

    facts = results["datasets"]
    columns = min(len(facts), 3)
    lines = -(-len(facts) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(5 * columns, 4 * lines), squeeze=False, layout="constrained")
    for axis in axes.flat[len(facts) :]:
        axis.remove()
    for dataset, axis in zip(facts, axes.flat, strict=False):
        for row in _shown(dataset["name"], results["rows"], threads=1):
            ours = row["codec"].startswith("tensorwire")
            position = row["decompress"]["median"], row["ratio"]
            axis.plot(*position, "o" if ours else "x", color="tab:red" if ours else "tab:blue")
            axis.annotate(row["codec"], position, fontsize=6, xytext=(4, 2), textcoords="offset points")
        axis.axhline(dataset["bound_by_tensor"], linestyle=":", color="gray", linewidth=1)
        axis.set(title=dataset["name"], xscale="log", xlabel="decompress, GB/s, 1 thread", ylabel="ratio")
    figure.suptitle("Dotted: the order-0 bound of the exponents, tensor by tensor")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _environment(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    hardware = f"{facts['cpu']}, {facts['cores']} cores, {facts['caches']}, {facts['memory']}"
    return "\n".join(
        [
            f"- Machine: {hardware}; {facts['system']}",
            f"- Transparent huge pages: {facts['huge_pages']}; load average at the start {facts['load']:.2f}",
            f"- Python {facts['python']}, {versions}",
            f"- {facts['date']}, commit {facts['commit']}, `{facts['command']}`",
        ]
    )


def _dataset(facts: dict[str, Any], rows: Iterable[Row]) -> str:
    mine = [row for row in rows if row["dataset"] == facts["name"] and not row.get("forced_cpu")]
    by_tensor = {(row["codec"], row["threads"], row["verify"]): row for row in mine if row["unit"] == "tensor"}
    whole = [
        {**row, "by_tensor": by_tensor.get((row["codec"], row["threads"], row["verify"]))}
        for row in mine
        if row["unit"] == "whole"
    ]
    head = (
        f"## {facts['name']}\n\n{facts['dtype']}, {facts['nbytes']} bytes in {facts['tensors']} tensors, SHA-256 "
        f"{facts['sha256'][:16]}... Order-0 bounds of the ratio: {facts['bound_whole']:.4f} over all tensors, "
        f"{facts['bound_by_tensor']:.4f} tensor by tensor. All tensors as one buffer; in brackets tensor by tensor."
    )
    return f"{head}\n\n{_table(whole, _COLUMNS)}"


def _table(rows: Iterable[Row], columns: Iterable[tuple[str, Any]]) -> str:
    columns = list(columns)
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows]
    return "\n".join(lines)


def _ratio(row: Row) -> str:
    other = row.get("by_tensor")
    return f"{row['ratio']:.4f}" + (f" ({other['ratio']:.4f})" if other else "")


def _speed(direction: str) -> Any:
    def cell(row: Row) -> str:
        figure, other = row[direction], row.get("by_tensor")
        text = f"{figure['median']:.2f}"
        if figure["runs"] > 1:
            text += f" ±{(figure['high'] - figure['low']) / 2:.2f}"
        return text + (f" ({other[direction]['median']:.2f})" if other else "")

    return cell


def _relative(direction: str, yardstick: str) -> Any:
    def cell(row: Row) -> str:
        figure = row[direction][yardstick]
        return f"{figure['median']:.2f}" if figure else "-"

    return cell


def _checksums(row: Row) -> str:
    return {True: "checked", False: "off", None: "-"}[row["verify"]]


_DATASET = ("data", lambda row: row["dataset"])
_CPU = ("CPU target", lambda row: row["cpu"] or "-")
_COLUMNS = (
    ("codec", lambda row: f"{row['codec']} {row['version']}"),
    ("threads", lambda row: str(row["threads"])),
    ("checksums", _checksums),
    ("ratio", _ratio),
    ("compress", _speed("compress")),
    ("of memcpy", _relative("compress", "vs_memcpy")),
    ("times ZipNN", _relative("compress", "vs_zipnn")),
    ("decompress", _speed("decompress")),
    ("of memcpy", _relative("decompress", "vs_memcpy")),
    ("times ZipNN", _relative("decompress", "vs_zipnn")),
)


def _files(facts: dict[str, Any]) -> str:
    lines = [
        f"## Whole files\n\n{facts['dataset']} as a safetensors file of {facts['nbytes']} bytes in the page cache "
        f"({facts['compressed_nbytes']} compressed), all cores.\n",
        "| what | seconds | times its baseline |",
        "|---|---|---|",
    ]
    for row in facts["commands"] + facts["loading"]:
        seconds, ratio = row["seconds"], row["vs_baseline"]
        text = f"{seconds['median']:.3f} ±{(seconds['high'] - seconds['low']) / 2:.3f}"
        lines.append(f"| {row['name']} | {text} | {'-' if ratio is None else format(ratio['median'], '.2f')} |")
    return "\n".join(lines)


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
                    figure = row["ratio"] if aim == "ratio" else row[aim]["median"]
                    figures[aim] = max(figures.get(aim, 0.0), figure)
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


def _shown(name: str, rows: Iterable[Row], threads: int) -> list[Row]:
    """One row for each codec: with checksums where it has them."""
    return [
        row
        for row in rows
        if row["dataset"] == name and row["unit"] == "whole" and row["threads"] == threads
        and row["verify"] is not False and row["codec"] != "memcpy" and not row.get("forced_cpu")
    ]  # fmt: skip
