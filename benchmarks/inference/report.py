"""The results of inference as a page: python -m benchmarks.inference.report FOLDER makes it from its inference.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks import environment, pages, verdicts
from benchmarks.inference.bandwidth import SHARE_OF_A_CORE
from benchmarks.inference.targets import evaluate

Row = dict[str, Any]
HEAD = """# Results of inference

[The page of inference](PAGE) says what was measured and how. Times are medians, ± half the distance of the quartiles.
Memory is the peak of the process over what it had after imports, mapped files included. Logits: whether all of them are
bit for bit those of dense torch, or, for *fused*, those of our own dense kernel. Tokens: how many of them are those of
dense torch before the first that is not.
"""
ALONE = (
    "contender", "load, s", "first token, s", "load to first, s", "token, ms", "peak, GB", "group's peak, GB",
    "read a token, GB", "logits", "tokens", "wall, s",
)  # fmt: skip
TURNS = (
    "contender", "threads", "token, ms", "of dense", "of own", "products, GB/s", "of dense", "of own", "prefill, s",
    "of dense", "batch 8, ms", "of dense", "logits",
)  # fmt: skip
SAME = {True: "identical", False: "**differ**", None: "-"}


def render(results: dict[str, Any], folder: Path) -> str:
    """Everything in `results` as Markdown, for a page in `folder`."""
    page = Path(os.path.relpath(environment.ROOT / "docs" / "inference-benchmark.md", folder)).as_posix()
    parts = [HEAD.strip().replace("PAGE", page), "## Targets", verdicts.render(evaluate(results))]
    for facts in results["models"]:
        mine = {part: [row for row in rows if row["model"] == facts["name"]] for part, rows in results.items()}
        parts += [_model(facts), pages.environment_lines(mine["environment"][0])]
        if facts.get("not_measured"):
            parts.append(f"Not measured: {facts['not_measured']}.")
        if mine["alone"]:
            parts += ["### Each alone, two threads", pages.table(ALONE, [_alone_cells(row) for row in mine["alone"]])]
        parts += [_turns(cpu, mine["turns"]) for cpu in dict.fromkeys(row["cpu"] for row in mine["turns"])]
        if mine["bandwidth"]:
            parts += ["### Bandwidth, and what it predicts", _bandwidth(mine["bandwidth"])]
    return "\n\n".join(parts) + "\n"


def _model(facts: Row) -> str:
    sizes = ", ".join(
        f"`{profile}` {nbytes / 1e9:.2f} GB (ratio {facts['dense_nbytes'] / nbytes:.3f})"
        for profile, nbytes in facts["compressed_nbytes"].items()
    )
    limit = facts.get("limit_nbytes")
    limited = (
        f" In a memory limit of {limit / 2**30:g} GiB that counts the page cache, empty at first." if limit else ""
    )
    return (
        f"## {facts['name']}\n\n{facts['parameters'] / 1e9:.2f} billion parameters, BF16, "
        f"{facts['dense_nbytes'] / 1e9:.2f} GB; {sizes}.{limited}"
    )


def _alone_cells(row: Row) -> list[str]:
    if "error" in row:
        return [row["contender"], row["error"], *["-"] * (len(ALONE) - 2)]
    group = row["cgroup_peak_nbytes"]
    return [
        row["contender"],
        _figure(row["load"], 1, ".2f"),
        _figure(row["first"], 1, ".2f"),
        _figure(row["load_to_first"], 1, ".2f"),
        _figure(row["token"], 1e3, ".0f"),
        f"{row['peak_nbytes'] / 1e9:.2f}",
        "-" if group is None else f"{group / 1e9:.2f}",
        f"{row['read_nbytes_a_token'] / 1e9:.2f}",
        SAME[row["same_logits"]],
        f"{row['same_tokens']} of {row['compared']}",
        f"{row['wall']:.0f}",
    ]


def _turns(cpu: str, rows: list[Row]) -> str:
    head = "### Taking turns" + (", held to AVX2" if cpu == "avx2" else "")
    return f"{head}\n\n" + pages.table(TURNS, [_turn_cells(row) for row in rows if row["cpu"] == cpu])


def _turn_cells(row: Row) -> list[str]:
    cells = [row["contender"], str(row["threads"]), _figure(row["token"], 1e3, ".1f")]
    cells += [_quotient(row, "token", "vs_dense"), _quotient(row, "token", "vs_own")]
    cells.append(f"{row['products_gbs']:.1f}" if "products_gbs" in row else "-")
    cells += [_quotient(row, "products", "vs_dense"), _quotient(row, "products", "vs_own")]
    for what, scale, form in (("prefill", 1, ".2f"), ("batch", 1e3, ".0f")):
        cells += [_figure(row.get(what), scale, form), _quotient(row, what, "vs_dense")]
    return [*cells, SAME[row["same_logits"]]]


def _bandwidth(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        on = f" ({row['cpu']})" if row.get("cpu") else ""
        if row["kind"] == "disk":
            lines.append(f"- Disk, read in order past the page cache: {row['gbs']:.2f} GB/s")
        elif row["kind"] == "memory":
            lines.append(f"- Memory{on}, {row['threads']} threads: {_figure(row, 1, '.1f')} GB/s")
        else:
            lines.append(
                f"- Fused, `{row['profile']}`{on}: {row['cycles']:.3f} cycles a word in the cache at "
                f"{row['hz'] / 1e9:.2f} GHz, {row['nbytes']:.3f} bytes a word. {_predicted(row)}"
            )
    return "\n".join(lines)


def _predicted(row: Row) -> str:
    """Time over that of a dense kernel that reads at full speed, as cores x clock / cycles a word has it."""
    cells = [
        f"{each['cores']} cores {each['here']:.2f} with this machine's memory, {each['socket']:.2f} with "
        f"{SHARE_OF_A_CORE:g} GB/s a core"
        for each in row["predicted"]
    ]
    return f"Predicted time, of dense: {'; '.join(cells)}"


def _figure(figure: Row | None, scale: float, form: str) -> str:
    if figure is None:
        return "-"
    text = f"{figure['median'] * scale:{form}}"
    return text + (f" ±{(figure['high'] - figure['low']) / 2 * scale:{form}}" if figure["runs"] > 1 else "")


def _quotient(row: Row, what: str, key: str) -> str:
    figure = row.get(what, {}).get(key)
    return "-" if figure is None else f"{figure:.2f}"


def write(folder: Path) -> None:
    """The page of the results that lie in `folder`."""
    (folder / "inference.md").write_text(render(json.loads((folder / "inference.json").read_text()), folder))


if __name__ == "__main__":
    pages.command(__doc__, write)
