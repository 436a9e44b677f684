"""tensorwire compress"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from . import output as printing
from .conversion import check_given, convert, convert_in_place, left_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..checkpoint import Estimate

_NOT_IN_PLACE = ("base", "chain", "files", "force")


@click.command()
@options.places_argument
@options.output_option
@click.option("--profile", type=options.PROFILE, default="fast", show_default=True, help=options.PROFILE_HELP)
@options.base_option
@click.option(
    "--chain",
    is_flag=True,
    help="SRC is a directory of checkpoints: make each one relative to the one before it, by the numbers in their "
    "names, and every eighth to none. Each can be opened alone.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave out the files and directories that match, as in a .gitignore; may be repeated. .git is left out "
    "anyway, unless --exclude '!.git' is given.",
)
@click.option(
    "--files",
    multiple=True,
    metavar="NAME",
    callback=lambda context, parameter, given: given or None,
    help="Compress this file of tensors in the directory SRC alone; may be repeated. Many processes do so at once, "
    "beside DST, and the command without --files then makes DST of it.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Compress SRC in place: each file gives way to its compressed one when that gives it back, byte for byte. "
    "There is no DST.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Write nothing: encode a sample of SRC, and print the ratio to expect and what --exclude leaves out.",
)
@options.threads_option
@options.force_option
@options.quiet_option
@options.json_option
def command(
    places: tuple[Path, ...], output: Path | None, estimate: bool, replace: bool, as_json: bool, **settings: Any
) -> int:
    """Compress a checkpoint.

    SRC is a .safetensors file, a file of torch.save or a directory. Other files of a directory are copied, except those
    that --exclude names. Without DST the result stands next to SRC: MODEL becomes MODEL.tensorwire, A.safetensors
    becomes A.tensorwire.safetensors. If there are several SRC, DST is a directory. SRC "-" is standard input and DST
    "-" is standard output, for one .safetensors file.

    With --base the result is a delta: it holds what differs from OLD, and can be decompressed only with OLD. A
    directory holds each tensor once, though several files have it; with --chain, of each checkpoint in it what differs
    from the one before.

    DST appears when it is whole. If a run is interrupted, the same command goes on where it stopped. What was written
    is not read back: verify does that, and --replace does so by itself.

    With --replace every argument is a SRC, and SRC itself becomes the result: the disk needs room for its largest file
    once more. If the run is interrupted, each file is the old or the new one, and the same command does the rest.

    \b
    Example:
      tensorwire compress llama --estimate
      tensorwire compress llama /mnt/small/llama --profile compact
      tensorwire compress *.safetensors -o small
      tensorwire compress step-2000 delta --base step-1000
      tensorwire compress run small --chain
      tensorwire compress checkpoint-* --replace
      curl -s $URL | tensorwire compress - model.safetensors
    """
    from ..checkpoint import compress_checkpoint, estimate_ratio, replace_checkpoint

    if replace:
        for name, given in (("-o", output), ("--estimate", estimate), *_not_in_place(settings)):
            if given:
                raise click.UsageError(f"--replace does not take {name}: SRC itself becomes the result")
        settings = {name: given for name, given in settings.items() if name not in _NOT_IN_PLACE}
        return convert_in_place(replace_checkpoint, places, as_json=as_json, **settings)
    if not estimate:
        settings.update(places=places, output=output, as_json=as_json)
        return convert("compress", compress_checkpoint, beside=options.compressed_path, **settings)
    if len(places) != 1 or output is not None or places[0] == options.STANDARD_STREAM:
        raise click.UsageError("--estimate takes one SRC that exists, and no DST")
    check_given(places)
    if settings["force"]:
        raise click.UsageError("--estimate does not take --force: it writes nothing")
    if settings["files"] is not None:
        raise click.UsageError("--estimate does not take --files: it samples all of SRC")
    if settings["chain"]:
        raise click.UsageError("--estimate does not take --chain: diff --stats OLD NEW says what a checkpoint takes")
    if settings["base"] is not None:
        raise click.UsageError("--estimate does not take --base: diff --stats OLD SRC says what a delta takes")
    found = estimate_ratio(places[0], **{name: settings[name] for name in ("profile", "exclude", "threads")})
    if as_json:
        printing.print_json(found)
    elif not settings["quiet"]:
        _print(found)
    return 0


def _not_in_place(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((f"--{name}", settings[name]) for name in _NOT_IN_PLACE)


def _print(found: Estimate) -> None:
    printing.print_line(
        f"{found.src}: {printing.size(found.nbytes_in)} to about {printing.size(found.nbytes_out)}, ratio "
        f"{found.ratio:.3f} ({found.lowest_ratio:.3f} to {found.highest_ratio:.3f}), {found.seconds:.2f} s"
    )
    share = f"{found.sample_share:.2g}" if found.sample_share < 0.01 else f"{found.sample_share:.0%}"
    printing.print_line(
        f"{printing.count(found.num_samples, 'sample')}: {printing.size(found.sample_nbytes)}, {share} of the "
        f"tensors' bytes; the range is two standard errors on either side"
    )
    for note in left_out(found.excluded):
        printing.print_line(f"note: {note}")
