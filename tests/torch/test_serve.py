"""examples/serve.py: requests are answered in batches, with the tokens of the dense model in the same batches."""

from __future__ import annotations

import runpy
import subprocess
import sys
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import tensorwire

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks.inference.served import Server, batches, served  # noqa: E402
from tests.support import forks, text_models  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers warns of its own and torch's future
    pytest.mark.xdist_group("server"),  # which starts once
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    text_models.save(root / "dense")
    tensorwire.compress_checkpoint(root / "dense", root / "compressed")
    return root


def forked(command: list[str], env: dict[str, str], **options: Any) -> subprocess.Popen[str]:
    """A script that is run by a fork, which need not import transformers anew."""

    def act() -> None:
        sys.argv = command[1:]
        runpy.run_path(command[1], run_name="__main__")

    return forks.popen(act, env, args=command, **options)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A fork has no more threads of torch, so there are none here either: their number decides the order of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with ExitStack() as stack:
        with patch.object(subprocess, "Popen", forked):
            running = stack.enter_context(served(folder / "compressed"))
        yield running
    torch.set_num_threads(threads)


def test_batches_have_the_tokens_of_the_dense_model(folder: Path, server: Server, repository: Path) -> None:
    example: Any = runpy.run_path(str(repository / "examples" / "serve.py"))
    requests = [
        {"prompt": [2 + (7 * i + j) % 50 for j in range(1 + i % 9)], "max_tokens": 1 + i % 8} for i in range(24)
    ]
    with ThreadPoolExecutor(20) as clients:
        answers = list(clients.map(server.post, requests))
    schedule = batches(answers)
    assert max(map(len, schedule)) > 1
    assert max(map(len, schedule)) <= 16
    dense = transformers.AutoModelForCausalLM.from_pretrained(folder / "dense")
    dense.get_output_embeddings().register_forward_pre_hook(example["whole_inputs"])
    for batch in schedule:
        expected = example["generate"](dense, [example["Request"](**requests[index]) for index in batch])
        assert [answers[index]["tokens"] for index in batch] == expected
    again = [answer for batch in schedule for answer in server.post([requests[index] for index in batch])]
    assert [answer["tokens"] for answer in again] == [answers[index]["tokens"] for batch in schedule for index in batch]


def test_a_text_is_answered_with_a_text(server: Server) -> None:
    tokenizer = text_models.tokenizer()
    answer = server.post({"prompt": "Twice", "max_tokens": 5})
    assert answer["text"] == tokenizer.decode(answer["tokens"], skip_special_tokens=True)
    assert answer["tokens"] == server.post({"prompt": tokenizer("Twice")["input_ids"], "max_tokens": 5})["tokens"]


@pytest.mark.parametrize(
    "request_",
    [{}, [], 7, {"prompt": ""}, {"prompt": "a", "max_tokens": 0}, {"prompt": "a" * 300}, [{"prompt": "a"}] * 17],
)
def test_a_bad_request_is_told_and_the_server_goes_on(server: Server, request_: Any) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as told:
        server.post(request_)
    assert b"expected" in told.value.read() or request_ in ({}, 7)
    told.value.close()
    assert len(server.post({"prompt": "a", "max_tokens": 2})["tokens"]) <= 2


@pytest.mark.slow
def test_it_starts_as_a_program(folder: Path) -> None:
    """And imports by itself what reads the weights."""
    with served(folder / "compressed") as server:
        assert len(server.post({"prompt": "Twice", "max_tokens": 5})["tokens"]) in range(1, 6)
