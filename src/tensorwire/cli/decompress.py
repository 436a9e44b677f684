"""tensorwire decompress"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import options
from .conversion import apply, check_given, convert


@click.command()
@options.places_argument
@options.output_option
@options.base_option
@click.option(
    "--in-place",
    is_flag=True,
    help="Change OLD itself into the checkpoint that SRC was made from, file by file, and write nothing else.",
)
@options.strict_option
@options.max_nbytes_option
@options.threads_option
@options.force_option
@options.quiet_option
@options.json_option
def command(
    places: tuple[Path, ...], output: Path | None, base: tuple[Path, ...] | None, in_place: bool, **settings: Any
) -> int:
    """Restore a checkpoint, byte for byte.

    Every file is checked against the SHA-256 of its original. A user may have edited or lost a file beside the
    tensors, such as README.md. It is restored if tensorwire.json holds the original; else it is kept as it is, and
    the exit code is 3.

    Without DST the result stands next to SRC: MODEL.tensorwire becomes MODEL, A.tensorwire.safetensors becomes
    A.safetensors; a name without the suffix gains .decompressed. If there are several SRC, DST is a directory. SRC
    "-" is standard input and DST "-" is standard output, for one .safetensors file.

    If SRC was compressed with --base, it needs the same OLD. With --in-place OLD itself is changed, and there is no
    DST. Every file of OLD is checked before the first one is changed. If the run is interrupted, each file is the old
    or the new one, and the same command does the rest.

    \b
    Example:
      tensorwire decompress llama.tensorwire
      tensorwire decompress small/model.safetensors model.safetensors --force
      tensorwire decompress delta step-2000 --base step-1000
      tensorwire decompress delta --base weights --in-place
      curl -s $URL | tensorwire decompress - model.safetensors
    """
    from ..checkpoint import apply_checkpoint, decompress_checkpoint

    if not in_place:
        settings.update(places=places, output=output, base=base)
        return convert("decompress", decompress_checkpoint, beside=options.decompressed_path, **settings)
    if base is None:
        raise click.UsageError("--in-place needs --base OLD, the checkpoint that is to be changed")
    if len(base) > 1:
        raise click.UsageError(
            "--in-place takes one OLD, which is plain: apply the deltas one by one, the oldest first; or name a DST"
        )
    if len(places) != 1 or output is not None:
        raise click.UsageError("--in-place takes one SRC, and no DST: OLD itself is changed")
    if places[0] == options.STANDARD_STREAM:
        raise click.UsageError("--in-place takes a SRC that is read twice, and '-' is a stream: name a file")
    check_given(places)
    return apply(apply_checkpoint, places[0], base[0], **settings)
