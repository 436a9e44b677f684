"""tensorwire fit"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options, output
from .failures import FINDING

if TYPE_CHECKING:
    from ..checkpoint.operations.weights import Weights
    from ..storage.locations import Location
    from .architecture import Cache
    from .fitting import Form

_CONFIG = "config.json"
_DEFAULT_CONTEXT = 4096
_MOST = 1 << 40  # tokens or sequences
_KV_DTYPES = ("auto", "bf16", "f16", "f32", "f8")
_ON_THE_HOST = "what does not fit can stay compressed on the host: tensorwire.torch.offload, docs/offload.md"
_ON_THE_DISK = (
    "what does not fit can stay compressed on the disk: tensorwire.load_file(..., compressed=True, "
    "resident_nbytes=...), docs/inference.md"
)
_NOT_COUNTED = "activations, and what torch and a driver take: name less --memory to leave room for them"


@dataclass(frozen=True)
class Fit:
    """Whether a model fits; the document of --json.

    Attributes:
        sizes: where the sizes of the compressed forms come from: "files", "samples" or "config.json".
        memory_nbytes, memory: what the model has to fit into, and what that is.
        context, batch, kv_dtype: tokens of a sequence, sequences, and dtype of the values of the key-value cache.
        cache_nbytes_per_token: of one sequence while no window is full; None where the cache is not known.
        forms: the dense model, then each profile.
        command: what runs the model compressed, line by line; nothing if no compressed form fits.
        notes: what is not known, or is to be known.
    """

    model: str
    sizes: str
    memory_nbytes: int
    memory: str
    context: int
    batch: int
    kv_dtype: str
    cache_nbytes_per_token: int | None
    forms: list[Form]
    command: list[str]
    notes: list[str]

    @property
    def fits(self) -> bool:
        return any(form.fits for form in self.forms)


@click.command()
@click.argument("path", type=options.EXISTING_PATH, metavar="MODEL")
@click.option(
    "--memory",
    type=options.SIZE,
    metavar="SIZE",
    help="The memory to fit into: 24GB (10^9 bytes), 24GiB (2^30). By default that of the first GPU, or else what this "
    "machine lets a process have.",
)
@click.option(
    "--context",
    type=click.IntRange(1, _MOST),
    metavar="N",
    help="Tokens of a sequence, prompt and answer; by default 4096, or fewer if the model takes no more.",
)
@click.option(
    "--batch", type=click.IntRange(1, _MOST), default=1, show_default=True, metavar="N", help="Sequences at a time."
)
@click.option(
    "--kv-dtype",
    type=options.Choice(_KV_DTYPES),
    default="auto",
    metavar="DTYPE",
    help="Dtype of the key-value cache: bf16, f16, f32 or f8; by default that of the model.",
)
@options.threads_option
@options.json_option
def command(
    path: Location,
    memory: int | None,
    context: int | None,
    batch: int,
    kv_dtype: str,
    threads: int | None,
    as_json: bool,
) -> int:
    """Say whether a model fits into memory with its context, dense and compressed.

    MODEL is a directory or a file, plain or compressed. The compressed sizes of a plain model are estimated from
    samples; those of a compressed one are the true ones. A config.json alone, or a directory with nothing else, gives
    an estimate from the numbers in it.

    Column workspace is the largest weight, which is dense while a layer multiplies. Column cache is the key-value cache
    that config.json describes, with its windows. Activations, and the memory of torch and of a driver, are not counted.

    Exit code 0: it fits in one of the forms; 3: in none.

    \b
    Example:
      tensorwire fit llama --memory 24GB
      tensorwire fit llama.tensorwire --memory 16GiB --context 32768
    """
    fit = _fit(path, memory, context, batch, kv_dtype, threads)
    if as_json:
        output.print_json(fit)
    else:
        _print(fit)
    return 0 if fit.fits else FINDING


def _fit(
    path: Location, memory: int | None, context: int | None, batch: int, kv_dtype: str, threads: int | None
) -> Fit:
    from ..codec import cpu_target
    from . import fitting, machine
    from .architecture import cache_of, continues_text

    found = machine.gpus()
    gpu = found[0] if found else None
    if memory is None:
        memory, owner = machine.memory_of(gpu)
    else:
        owner = "--memory"
    config = _config(path)
    notes = []
    cache: Cache | None = None
    if config is None:
        notes.append(f"no {_CONFIG} beside the weights, so the key-value cache is not known; none is counted")
    else:
        try:
            cache = cache_of(config)
        except ValueError as error:
            notes.append(f"{error}; none is counted")
    weights, sizes = _weights(path, config, threads)
    limit = None if cache is None else cache.limit
    if context is None:
        context = min(_DEFAULT_CONTEXT, limit or _DEFAULT_CONTEXT)
    elif limit is not None and context > limit:
        notes.append(f"{_CONFIG} says that the model takes {limit:,} tokens at most")
    if kv_dtype == "auto":
        kv_dtype = fitting.value_dtype(_dtype(config), weights.dtype)
    value_nbytes = fitting.VALUE_NBYTES[kv_dtype]
    if cache is not None and cache.latent:
        notes.append("the cache is that of latents, as engines for MLA keep it; Transformers keeps keys and values")
    stored = weights.stored
    forms = fitting.forms(
        weights.nbytes, weights.largest_nbytes, stored, memory, cache,
        context=context, batch=batch, value_nbytes=value_nbytes,
    )  # fmt: skip
    best = fitting.quickest(forms, machine.advice(gpu, cpu_target()).profile)
    lines = []
    if best is None:
        notes.append(_ON_THE_DISK if gpu is None else _ON_THE_HOST)
    if best is not None and sizes != _CONFIG:
        runs = config is not None and path.is_dir() and continues_text(config)
        lines = _commands(path, weights.compressed, best.form, runs, gpu is not None)
    return Fit(
        model=str(path),
        sizes=sizes,
        memory_nbytes=memory,
        memory=owner,
        context=context,
        batch=batch,
        kv_dtype=kv_dtype,
        cache_nbytes_per_token=None if cache is None else cache.numel_per_token * value_nbytes,
        forms=forms,
        command=lines,
        notes=notes,
    )


def _config(path: Location) -> dict[str, Any] | None:
    from ..checkpoint.directory.config_and_index import read_config

    location = path / _CONFIG if path.is_dir() else path.parent / _CONFIG
    return read_config(location) if location.is_file() else None


def _dtype(config: dict[str, Any] | None) -> str | None:
    """The dtype that the model computes in, by torch's name."""
    from .architecture import text_model

    part = text_model(config or {})
    name = part.get("dtype") or part.get("torch_dtype")
    return name if isinstance(name, str) else None


def _weights(path: Location, config: dict[str, Any] | None, threads: int | None) -> tuple[Weights, str]:
    """What the weights take, and what says so."""
    from ..checkpoint.operations.weights import Weights, weights_of
    from . import fitting
    from .architecture import num_weights

    if path.name != _CONFIG and path.name.endswith(".json") and not path.is_dir():
        raise click.UsageError(f"expected a directory, a file of weights or {_CONFIG}, got {path.name!r}")
    if path.name != _CONFIG and not (config is not None and path.is_dir() and _holds_no_weights(path)):
        weights = weights_of(path, ("resident", "fast", "compact"), threads)
        return weights, "files" if weights.compressed else "samples"
    if config is None:
        raise click.UsageError(f"no {_CONFIG} in {str(path.parent)!r}")
    try:
        numel, largest = num_weights(config)
    except ValueError as error:
        raise click.UsageError(f"{error}; give the directory with its safetensors files") from None
    dtype = {"bf16": "BF16", "f16": "F16", "f32": "F32"}[fitting.value_dtype(_dtype(config))]
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        if quantization.get("quant_method") != "fp8":
            raise click.UsageError(
                f"{_CONFIG} is of a model that is quantized: give the directory with its safetensors files"
            )
        dtype = "F8_E4M3"
    nbytes = numel * fitting.WIDTHS[dtype]
    stored = {profile: round(nbytes / ratio) for profile, ratio in fitting.RATIOS[dtype].items()}
    return Weights(nbytes, largest * fitting.WIDTHS[dtype], stored, False, dtype), _CONFIG


def _holds_no_weights(path: Location) -> bool:
    return not any(True for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth") for _ in path.glob(pattern))


def _commands(path: Location, compressed: bool, profile: str, runs: bool, on_gpu: bool) -> list[str]:
    """What makes the model compressed, if it is not, and what runs it, if it continues text."""
    lines = []
    place = path
    if not compressed:
        place = options.compressed_path(path) if isinstance(path, Path) else Path(f"{path.name}{options.SUFFIX}")
        lines.append(["tensorwire", "compress", str(path), str(place), "--profile", profile])
    if runs and on_gpu:
        load = f"model = AutoModelForCausalLM.from_pretrained({str(place)!r}, device_map='cuda')"
        code = f"import tensorwire.torch; from transformers import AutoModelForCausalLM; {load}"
        lines.append(["python", "-i", "-c", code])
    elif runs:
        lines.append(["tensorwire", "run", str(place), "The capital of France is"])
    return [shlex.join(line) for line in lines]


_SOURCES = {
    "files": "the sizes are those of the files",
    "samples": "compressed sizes are estimated from samples of the weights",
    _CONFIG: f"all sizes are an estimate from {_CONFIG}: nothing of the weights was seen",
}


def _print(fit: Fit) -> None:
    output.print_line(f"{fit.model}: {output.size(fit.memory_nbytes)} of memory ({fit.memory})")
    if fit.cache_nbytes_per_token is not None:
        sequences = f"{output.count(fit.batch, 'sequence')} of {output.count(fit.context, 'token')}"
        per_token = f"{output.size(fit.cache_nbytes_per_token)} a token in {fit.kv_dtype}"
        output.print_line(f"{sequences}; key-value cache {per_token}")
    print()
    columns = ("form", ">weights", ">workspace", ">cache", ">left", "fits", ">longest context")
    output.print_table(columns, [_row(form) for form in fit.forms], less_important=("workspace", "cache"))
    print()
    for note in (_SOURCES[fit.sizes], *fit.notes, f"not counted: {_NOT_COUNTED}"):
        output.print_wrapped(f"note: {note}")
    if fit.command:
        print()
    for line in fit.command:
        output.print_line(line)


def _row(form: Form) -> tuple[str, ...]:
    sign, left = ("-", -form.left_nbytes) if form.left_nbytes < 0 else ("", form.left_nbytes)
    return (
        form.form,
        output.size(form.weights_nbytes),
        output.size(form.workspace_nbytes) if form.workspace_nbytes else "-",
        "-" if form.cache_nbytes is None else output.size(form.cache_nbytes),
        sign + output.size(left),
        "yes" if form.fits else "no",
        _context_text(form),
    )


def _context_text(form: Form) -> str:
    if form.longest_context is None:
        return "-" if form.cache_nbytes is None else "any"
    return f"{form.longest_context:,}"
