"""A server with compressed weights beside the same server dense: python -m benchmarks.inference.served [--quick].

Clients send 200 requests to examples/serve.py with compressed weights, which answers what waits together in one batch.
The same batches are then sent to it again, and to the same server with dense weights. The tokens of all three have to
be equal. ``--vllm build/vllm-env/bin/python``, after ``make vllm``, then adds rows of vLLM's CPU backend.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment, pages, summary
from benchmarks.inference.memory import peak_nbytes
from benchmarks.inference.model import SIZES, Paths, prepare
from benchmarks.results_page import Page
from benchmarks.tables import cell, of_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    Request = dict[str, Any]
    Row = dict[str, Any]

SEED, NUM_REQUESTS, LARGEST_BATCH = 11, 200, 16
PROMPT_LENGTHS, ANSWER_LENGTHS = (1, 40), (1, 16)
VLLM = "vLLM"
SERVER = environment.ROOT / "examples" / "serve.py"
HEAD = """# Results of serving

[The page of inference](DOCS/inference.md) says what was measured and how. \
Memory is the peak of the server's process. The tokens are
compared with those of the dense model in the same batches.
"""
COLUMNS: tuple[tuple[Any, ...], ...] = (
    ("server", "server", ""), ("weights", "weights", ""),
    ("weights, GB", lambda row: cell(row.get("weights_nbytes") and row["weights_nbytes"] / 1e9, ".2f")),
    ("peak, GB", lambda row: cell(row.get("peak_nbytes") and row["peak_nbytes"] / 1e9, ".2f")),
    ("seconds", "seconds", ".1f"), ("tokens a second", "tokens_per_second", ".1f"), ("of dense", "of_dense", ".2f"),
    ("answers with the dense tokens", lambda row: f"{row['equal']} of {NUM_REQUESTS}"),
)  # fmt: skip


def requests(vocabulary: int) -> list[Request]:
    """Prompts and answers of mixed length; each word is drawn anew."""
    draw = random.Random(SEED)
    return [
        {
            "prompt": [draw.randrange(3, vocabulary) for _ in range(draw.randint(*PROMPT_LENGTHS))],
            "max_tokens": draw.randint(*ANSWER_LENGTHS),
        }
        for _ in range(NUM_REQUESTS)
    ]


@dataclass(frozen=True)
class Server:
    """A running server, how many bytes its weights take, and its process."""

    address: str
    weights: int
    process: int

    def post(self, what: Any) -> Any:
        request = urllib.request.Request(self.address, json.dumps(what).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


@contextmanager
def served(model: Path) -> Iterator[Server]:
    """A server with the model, until the ``with`` statement ends."""
    command = [sys.executable, str(SERVER), str(model), "--port", "0", "--batch", str(LARGEST_BATCH)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment.child()) as process:
        assert process.stdout is not None
        try:
            found = re.match(r"(\S+) serves .*: weights ([\d,]+) bytes", process.stdout.readline())
            assert found is not None, "the server has not started"
            yield Server(found[1], int(found[2].replace(",", "")), process.pid)
        finally:
            process.kill()


def drive(server: Server, every: list[Request]) -> list[dict[str, Any]]:
    """The answers to requests that come in waves of 2 to 17: the first of a wave finds the server idle."""
    draw = random.Random(SEED)
    answers: list[dict[str, Any]] = []
    with ThreadPoolExecutor(LARGEST_BATCH + 1) as clients:
        while len(answers) < len(every):
            wave = every[len(answers) :][: draw.randint(2, LARGEST_BATCH + 1)]
            answers += clients.map(lambda request: server.post(request), wave)
    return answers


def batches(answers: list[dict[str, Any]]) -> list[list[int]]:
    """The requests that were answered together, by number, row after row."""
    found: dict[int, dict[int, int]] = {}
    for index, answer in enumerate(answers):
        found.setdefault(answer["batch"], {})[answer["row"]] = index
    return [[rows[row] for row in sorted(rows)] for _, rows in sorted(found.items())]


def replay(server: Server, every: list[Request], schedule: list[list[int]]) -> dict[str, Any]:
    """The tokens of each answer where batches are sent as they are, what all of it took, and what memory."""
    tokens: list[list[int]] = [[] for _ in every]
    start = time.perf_counter()
    for batch in schedule:
        for index, answer in zip(batch, server.post([every[index] for index in batch]), strict=True):
            tokens[index] = answer["tokens"]
    seconds = time.perf_counter() - start
    return {
        "tokens": tokens,
        "seconds": seconds,
        "peak_nbytes": peak_nbytes(server.process),
        "weights_nbytes": server.weights,
    }


def measure(size: str, data: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Rows of our server, and what the batches were."""
    paths, every = Paths(data / size), requests(SIZES[size].vocabulary)
    model = prepare(replace(SIZES[size], profiles=("fast",)), paths)
    with served(paths.compressed("fast")) as server:
        answers = drive(server, every)
        schedule = batches(answers)
        compressed = replay(server, every, schedule)
    with served(paths.dense) as server:
        dense = replay(server, every, schedule)
    rows = [_row("serve.py", "dense", dense, dense), _row("serve.py", "compressed", compressed, dense)]
    live = [answer["tokens"] for answer in answers]
    rows.append({"server": "serve.py", "weights": "compressed, live", "equal": common(live, dense["tokens"])})
    return {
        "environment": facts,
        "model": model,
        "schedule": schedule,
        "num_prompt_tokens": sum(len(request["prompt"]) for request in every),
        "rows": rows,
    }


def measure_vllm(python: Path, results: dict[str, Any], data: Path) -> dict[str, Any]:
    """`results` with rows of vLLM on the same batches in the place of older ones."""
    size = results["model"]["name"]
    paths, every = Paths(data / size), requests(SIZES[size].vocabulary)
    places = {"dense": paths.dense, "compressed": paths.compressed("fast")}
    found = {name: _vllm(python, path, every, results["schedule"]) for name, path in places.items()}
    rows = [row for row in results["rows"] if row["server"] != VLLM]
    rows += [_row(VLLM, name, each, found["dense"]) for name, each in found.items()]
    return {**results, "rows": rows}


def common(answers: list[list[int]], expected: list[list[int]]) -> int:
    """How many answers have the expected tokens."""
    return sum(one == other for one, other in zip(answers, expected, strict=True))


def _row(server: str, weights: str, found: dict[str, Any], dense: dict[str, Any]) -> Row:
    count = sum(map(len, found["tokens"]))
    return {
        "server": server,
        "weights": weights,
        "weights_nbytes": found.get("weights_nbytes"),  # vLLM packs dense ones into memory that no parameter has
        "peak_nbytes": found["peak_nbytes"],
        "seconds": found["seconds"],
        "tokens": count,
        "tokens_per_second": count / found["seconds"],
        "of_dense": found["seconds"] / dense["seconds"],
        "equal": common(found["tokens"], dense["tokens"]),
    }


def _vllm(python: Path, model: Path, every: list[Request], schedule: list[list[int]]) -> dict[str, Any]:
    script = Path(__file__).with_name("vllm_batches.py")
    task = json.dumps({"model": str(model), "requests": every, "schedule": schedule})
    done = subprocess.run([python, script], input=task, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _parts(results: dict[str, Any]) -> list[str]:
    sizes, facts = list(map(len, results["schedule"])), results["model"]
    text = (
        f"{NUM_REQUESTS} requests in {len(sizes)} batches of {min(sizes)} to {max(sizes)}; "
        f"{results['num_prompt_tokens']:,} tokens of prompts, answers of at most {ANSWER_LENGTHS[1]}. Model "
        f"{facts['name']}: {facts['parameters'] / 1e9:.2f} billion parameters, BF16, two threads."
    )
    made = pages.environment_lines(results["environment"])
    return [HEAD.strip(), text, made, of_columns(COLUMNS, results["rows"])]


PAGE = Page("served", _parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, into build/bench; its figures mean nothing")
    parser.add_argument("--model", choices=("1b", "0.4b"), default="1b", help="0.4b has a third of the weights of 1b")
    parser.add_argument(
        "--data", type=Path, default=environment.ROOT / "build" / "inference", help="folder of the models"
    )
    parser.add_argument(
        "--vllm", type=Path, metavar="PYTHON", help="adds rows of vLLM to the results; of an environment that has it"
    )
    options = parser.parse_args()
    folder = environment.folder(quick=options.quick)
    file = folder / "served.json"
    facts = environment.describe("python -m benchmarks.inference.served", folder)
    if options.vllm:
        found = measure_vllm(options.vllm, json.loads(file.read_text()), options.data)
    else:
        found = measure("tiny" if options.quick else options.model, options.data, facts)
    PAGE.keep(summary.rounded(found), folder)


if __name__ == "__main__":
    main()
