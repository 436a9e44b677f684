"""tensorwire run"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .._ground.packages import require
from .._ground.text import escape
from . import options, output
from .hub import found_by_name

if TYPE_CHECKING:
    from .generation import Generation


@click.command()
@click.argument("path", type=options.LOCAL_PATH, metavar="MODEL")
@click.argument("prompt", default=str(options.STANDARD_STREAM))
@click.option(
    "-n",
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    metavar="N",
    help="End after N tokens, if the model has not ended by itself.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Draw each token at random from seed N, as the model's generation_config.json says. By default the likeliest "
    "token is taken each time, which gives the same text each time.",
)
@options.json_option
def command(path: Path, prompt: str, max_new_tokens: int, seed: int | None, as_json: bool) -> None:
    """Continue a text, or answer it, with a language model whose weights stay compressed in memory.

    MODEL is a directory of Transformers with a tokenizer: one that compress has made, or a plain one, which is
    compressed while it is loaded; or the name of one that the hub's cache has. Nothing is written. The tokens are those
    of the plain model. If the tokenizer has a chat template, PROMPT is a message to answer. Without PROMPT, or for "-",
    the text is read from standard input.

    The text goes to standard output as it comes. Tokens a second and the memory that the weights take go to standard
    error. It runs on the CPU, and needs torch and Transformers.

    \b
    Example:
      tensorwire run llama.tensorwire "The capital of France is"
      tensorwire run llama "Tell me a story." --seed 1 -n 500
      tensorwire run llama.tensorwire < question.txt > answer.txt
    """
    text = _prompt(prompt)
    for package in ("torch", "transformers"):
        options.require(package, "tensorwire run", "transformers")
    begun = time.perf_counter()
    with output.progress("importing transformers"):
        try:
            require("transformers", (5, 16), "tensorwire run needs transformers")
            from . import generation
        except ImportError as error:
            raise click.UsageError(str(error)) from None
    import_seconds = time.perf_counter() - begun
    with output.progress(f"loading {path.name}"):
        loaded = generation.load(found_by_name(path))
    result = generation.generate(loaded, text, max_new_tokens=max_new_tokens, seed=seed, stream=not as_json)
    if as_json:
        output.print_json(result)
    else:
        _print(result, import_seconds)


def _prompt(prompt: str) -> str:
    """The text to continue."""
    from_stream = prompt == str(options.STANDARD_STREAM)
    if from_stream and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError("Missing argument 'PROMPT': a text to continue, or to answer.")
    data = sys.stdin.buffer.read() if from_stream else os.fsencode(prompt)
    try:
        text = data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"expected a prompt in UTF-8: {error}") from None
    if not text:
        raise click.UsageError(f"expected a prompt, got an empty {'standard input' if from_stream else 'text'}")
    return text


def _print(result: Generation, import_seconds: float) -> None:
    speed = f"{output.decimals(result.tokens_per_second, 1)} a second after the first, "
    lines = [
        f"{output.count(len(result.tokens), 'token')}, {speed if result.tokens_per_second else ''}first after "
        f"{result.first_token_seconds:.2f} s; loaded in {result.load_seconds:.1f} s, transformers "
        f"imported in {import_seconds:.1f} s",
        f"weights: {output.size(result.nbytes)} in memory, {output.size(result.dense_nbytes)} dense, ratio "
        f"{result.ratio:.3f}; peak of the process {output.size(result.peak_nbytes)}",
    ]
    if result.compressed_while_loading:
        saving = shlex.join(["tensorwire", "compress", result.model])
        lines.append(f"note: the weights were compressed while they were loaded; {saving} saves that")
    if result.unused:
        unused = f"{output.count(len(result.unused), 'tensor')} of the files, such as {result.unused[0]!r}"
        lines.append(f"note: the model that config.json describes has no place for {unused}")
    if sys.stdout.isatty():
        lines.insert(0, "")
    print(*map(escape, lines), sep="\n", file=sys.stderr)
