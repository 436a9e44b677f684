"""Text for ``tensorwire run``: a causal language model of Transformers that stays compressed, and its tokenizer."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import click
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from .._ground.text import escape
from ..checkpoint import verify
from ..checkpoint.directory.config_and_index import is_compressed_config
from ..checkpoint.directory.distributed import refusal
from ..checkpoint.directory.paths import MANIFEST_NAME
from ..errors import CorruptDataError
from ..torch import memory_report
from ..torch.integrations.transformers import TensorwireConfig
from . import output
from .hub import advice_on

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_GREEDY = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
_LOCAL = {"local_files_only": True, "trust_remote_code": False}  # or Transformers asks whether to run a model's code


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to generate.

    Attributes:
        compressed_while_loading: whether its files are plain.
        unused: tensors of its files that the model has no place for.
        seconds: that loading took.
    """

    path: Path
    model: Any
    tokenizer: Any
    compressed_while_loading: bool
    unused: list[str]
    seconds: float


@dataclass(frozen=True)
class Generation:
    """What a model wrote, and what it took.

    Attributes:
        model: the path of its directory.
        text, tokens: without the prompt; a token that ends the text is among the tokens.
        num_prompt_tokens: with those of the chat template.
        tokens_per_second: from the first token on; None if there is one token only.
        nbytes, dense_nbytes: of all parameters and buffers, as they are in memory and as they would be uncompressed.
        peak_nbytes: the most memory that the process has had.
        unused: tensors of the files that the model has no place for.
    """

    model: str
    text: str
    tokens: list[int]
    num_prompt_tokens: int
    load_seconds: float
    first_token_seconds: float
    tokens_per_second: float | None
    nbytes: int
    dense_nbytes: int
    peak_nbytes: int
    compressed_while_loading: bool
    unused: list[str]

    @property
    def ratio(self) -> float:
        return self.dense_nbytes / self.nbytes


def load(path: Path) -> LoadedModel:
    """The model of a directory, compressed, and its tokenizer; nothing is fetched from a hub.

    Raises:
        click.ClickException: there is no such model, or none that continues text.
        TensorwireError: it is compressed and damaged.
    """
    start = time.perf_counter()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    compressed = _check_directory(path)
    tokenizer = _tokenizer(path)
    try:
        how = {} if compressed else {"quantization_config": TensorwireConfig()}
        model, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **how, **_LOCAL)
    except Exception as error:  # what Transformers raises is its own business
        text = f"Transformers cannot load {str(path)!r}: {_line(error)}"
        if compressed:
            _raise_damage(path)
        elif (path / MANIFEST_NAME).is_file():
            text += "; its config.json says nothing of compressed weights: is it the one that compress wrote?"
        raise click.ClickException(text) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        lacks = output.count(len(missing), "tensor")
        raise click.ClickException(f"{str(path)!r} lacks {lacks} of the model, such as {missing[0]!r}")
    unused = sorted(report["unexpected_keys"])
    return LoadedModel(path, model.eval(), tokenizer, not compressed, unused, time.perf_counter() - start)


def _check_directory(path: Path) -> bool:
    """Whether the model in it is compressed; an error says why nothing in it can be run."""
    name, config = repr(str(path)), path / "config.json"
    if not path.exists():
        raise click.UsageError(f"no directory {name}{advice_on(path)}")
    if not config.is_file():
        text = f"expected a directory with config.json, safetensors files and a tokenizer, got {name}"
        if path.is_dir() and (refused := refusal(path, [file.name for file in path.iterdir()])):
            raise click.UsageError(str(refused))
        if any(file.suffix == ".gguf" for file in (path, *path.glob("*"))):
            text += "; GGUF is another format, which llama.cpp runs"
        raise click.UsageError(text)
    data = config.read_bytes()
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{str(config)!r} is no JSON, is it damaged? {_line(error)}") from None
    try:
        architecture = facts["architectures"][0]
    except (LookupError, TypeError):
        raise click.UsageError(f"{str(config)!r} names no architecture: expected the config.json of a model") from None
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise click.UsageError(
            f"{name} is a {architecture}, which does not continue text: expected a causal language model, such as "
            "LlamaForCausalLM; others run in Python, with from_pretrained"
        )
    compressed = is_compressed_config(data)
    if not compressed and facts.get("quantization_config") is not None:
        raise click.UsageError(f"{name} is quantized already: expected weights of BF16, F16, F32 or F8")
    return compressed


def _tokenizer(path: Path) -> Any:
    text = f"{str(path)!r} has no tokenizer that can be loaded: copy tokenizer.json and tokenizer_config.json to it"
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **_LOCAL)
    except Exception as error:  # as above
        raise click.UsageError(f"{text} ({_line(error)})") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what some classes make of no file at all
        raise click.UsageError(text)
    return tokenizer


def _raise_damage(path: Path) -> None:
    """Transformers keeps to its log what a damaged tensor raised."""
    for problem in verify(path).problems:
        raise CorruptDataError(problem.message, advice="")


def _line(error: Exception) -> str:
    return shorten(str(error), 300) or type(error).__name__


def generate(loaded: LoadedModel, prompt: str, *, max_new_tokens: int, seed: int | None, stream: bool) -> Generation:
    """Continue a text, or answer it, with at most so many tokens.

    Args:
        seed: of tokens that are drawn at random; None takes the likeliest each time.
        stream: print the text to standard output as it comes.

    Raises:
        click.UsageError: the prompt has no tokens, or more than the model can read.
        click.ClickException: the tokenizer, its chat template or Transformers fails.
    """
    model = loaded.model
    try:
        inputs = _tokens(loaded.tokenizer, prompt)
    except Exception as error:  # a template is a program of the model's, and raises what it likes
        what = f"the tokenizer of {str(loaded.path)!r}, or its chat template, cannot take the prompt"
        raise click.ClickException(f"{what}: {_line(error)}") from error
    length = inputs["input_ids"].shape[1]
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize
    if not 0 < length < limit:
        raise click.UsageError(f"expected a prompt of 1 to {limit - 1} tokens for this model, got {length}")
    if seed is not None:
        torch.manual_seed(seed)
    streamer = _Stream(loaded.tokenizer, echo=stream)
    start = time.perf_counter()
    try:
        found = model.generate(
            **inputs,
            **({"do_sample": True} if seed is not None else _GREEDY),
            num_beams=1,
            return_dict_in_generate=False,
            max_new_tokens=min(max_new_tokens, limit - length),
            streamer=streamer,
        )
    except OSError:  # of standard output
        raise
    except Exception as error:  # such as a setting of generation_config.json whose package is not there
        raise click.ClickException(f"Transformers cannot generate with {str(loaded.path)!r}: {_line(error)}") from error
    tokens = found[0, length:].tolist()
    first, *_, last = streamer.times[0], *streamer.times
    memory = memory_report(model)
    return Generation(
        model=str(loaded.path),
        text=loaded.tokenizer.decode(tokens, skip_special_tokens=True),
        tokens=tokens,
        num_prompt_tokens=length,
        load_seconds=loaded.seconds,
        first_token_seconds=first - start,
        tokens_per_second=(len(tokens) - 1) / (last - first) if len(tokens) > 1 else None,
        nbytes=memory.nbytes,
        dense_nbytes=memory.dense_nbytes,
        peak_nbytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        compressed_while_loading=loaded.compressed_while_loading,
        unused=loaded.unused,
    )


def _tokens(tokenizer: Any, prompt: str) -> dict[str, torch.Tensor]:
    """What a model takes; the text is a message to it if the tokenizer has a chat template."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        found = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    else:
        found = tokenizer(prompt, return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


class _Stream(TextStreamer):  # type: ignore[misc] # the checker does not see transformers
    """Notes when each token came, and prints the text if it is to."""

    def __init__(self, tokenizer: Any, *, echo: bool) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.times: list[float] = []
        self._echo = echo

    def put(self, value: torch.Tensor) -> None:
        if not self.next_tokens_are_prompt:
            self.times.append(time.perf_counter())
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if not self._echo:
            return
        if sys.stdout.isatty():  # which would obey what a model writes
            text = _CONTROL.sub(lambda found: escape(found[0]), text)
        print(text, end="\n" if stream_end else "", flush=True)
