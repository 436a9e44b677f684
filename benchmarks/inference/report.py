"""The results of inference as a page: python -m benchmarks.inference.report FOLDER makes it from its inference.json."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import pages
from benchmarks.inference.bandwidth import SHARE_OF_A_CORE
from benchmarks.inference.targets import evaluate
from benchmarks.results_page import Page, targets
from benchmarks.tables import of_columns

Row = dict[str, Any]
HEAD = """# Results of inference

[The page of inference](DOCS/inference-benchmark.md) says what was measured and how. \
Times are medians, ± half the distance of the quartiles.
Memory is the peak of the process over what it had after imports, mapped files included. Logits: whether all of them are
bit for bit those of dense torch, or, for *fused*, those of our own dense kernel. Tokens: how many of them are those of
dense torch before the first that is not.
"""
SAME = {True: "identical", False: "**differ**", None: "-"}


def _parts(results: dict[str, Any]) -> list[str]:
    parts = [HEAD.strip(), *targets(evaluate(results))]
    for facts in results["models"]:
        mine = {part: [row for row in rows if row["model"] == facts["name"]] for part, rows in results.items()}
        parts += [_model(facts), pages.environment_lines(mine["environment"][0])]
        if facts.get("not_measured"):
            parts.append(f"Not measured: {facts['not_measured']}.")
        if mine["alone"]:
            parts += ["### Each alone, two threads", of_columns(ALONE, mine["alone"])]
        parts += [_turns(cpu, mine["turns"]) for cpu in dict.fromkeys(row["cpu"] for row in mine["turns"])]
        if mine["bandwidth"]:
            parts += ["### Bandwidth, and what it predicts", _bandwidth(mine["bandwidth"])]
    return parts


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


def _turns(cpu: str, rows: list[Row]) -> str:
    head = "### Taking turns" + (", held to AVX2" if cpu == "avx2" else "")
    return f"{head}\n\n" + of_columns(TURNS, [row for row in rows if row["cpu"] == cpu])


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


def _median(what: str, scale: float, form: str) -> Any:
    return lambda row: _figure(row.get(what), scale, form)


def _gigabytes(key: str, row: Row) -> str:
    return "-" if row.get(key) is None else f"{row[key] / 1e9:.2f}"


ALONE: tuple[tuple[Any, ...], ...] = (
    ("contender", "contender", ""), ("load, s", lambda row: row.get("error") or _figure(row["load"], 1, ".2f")),
    ("first token, s", _median("first", 1, ".2f")), ("load to first, s", _median("load_to_first", 1, ".2f")),
    ("token, ms", _median("token", 1e3, ".0f")), ("peak, GB", partial(_gigabytes, "peak_nbytes")),
    ("group's peak, GB", partial(_gigabytes, "cgroup_peak_nbytes")),
    ("read a token, GB", partial(_gigabytes, "read_nbytes_a_token")),
    ("logits", lambda row: SAME[row.get("same_logits")]),
    ("tokens", lambda row: "-" if "error" in row else f"{row['same_tokens']} of {row['compared']}"),
    ("wall, s", lambda row: "-" if "error" in row else f"{row['wall']:.0f}"),
)  # fmt: skip
TURNS: tuple[tuple[Any, ...], ...] = (
    ("contender", "contender", ""), ("threads", "threads", "d"), ("token, ms", _median("token", 1e3, ".1f")),
    ("of dense", "token.vs_dense", ".2f"), ("of own", "token.vs_own", ".2f"),
    ("products, GB/s", "products_gbs", ".1f"), ("of dense", "products.vs_dense", ".2f"),
    ("of own", "products.vs_own", ".2f"), ("prefill, s", _median("prefill", 1, ".2f")),
    ("of dense", "prefill.vs_dense", ".2f"), ("batch 8, ms", _median("batch", 1e3, ".0f")),
    ("of dense", "batch.vs_dense", ".2f"), ("logits", lambda row: SAME[row["same_logits"]]),
)  # fmt: skip
PAGE = Page("inference", _parts)

if __name__ == "__main__":
    PAGE.command(__doc__)
