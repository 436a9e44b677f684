"""tensorwire decompress"""

from __future__ import annotations

from typing import Any

import click

from . import options
from .conversion import convert


@click.command()
@options.places_argument
@options.output_option
@options.strict_option
@options.threads_option
@options.dry_run_option
@options.force_option
@options.quiet_option
@options.json_option
def command(**settings: Any) -> int:
    """Restore a checkpoint, byte for byte.

    Every file is checked against the SHA-256 of its original. Files beside the tensors, such as README.md, may have
    been edited or lost since: they are restored where tensorwire.json holds the original, else kept as they are, and
    the exit code is 3. Without DST the result stands next to SRC: MODEL.tensorwire becomes MODEL,
    A.tensorwire.safetensors becomes A.safetensors; a name without the suffix gains .decompressed. DST of several SRC
    is a directory. SRC "-" is standard input, DST "-" is standard output: one .safetensors file, which is checked
    when all of it has been written.

    \b
    Example:
      tensorwire decompress llama.tensorwire
      tensorwire decompress small/model.safetensors model.safetensors --force
      curl -s $URL | tensorwire decompress - model.safetensors
    """
    from ..checkpoint import decompress_checkpoint

    return convert(decompress_checkpoint, beside=options.decompressed_path, **settings)
