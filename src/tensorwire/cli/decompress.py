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

    Every file is checked against the SHA-256 of its original. Somebody may have edited or lost a file beside the
    tensors, such as README.md. It is restored if tensorwire.json holds the original; else it is kept as it is, and
    the exit code is 3.

    Without DST the result stands next to SRC: MODEL.tensorwire becomes MODEL, A.tensorwire.safetensors becomes
    A.safetensors; a name without the suffix gains .decompressed. If there are several SRC, DST is a directory. SRC
    "-" is standard input and DST "-" is standard output, for one .safetensors file. What goes to standard output is
    checked as it goes: wait for exit code 0 before you use it.

    \b
    Example:
      tensorwire decompress llama.tensorwire
      tensorwire decompress small/model.safetensors model.safetensors --force
      curl -s $URL | tensorwire decompress - model.safetensors
    """
    from ..checkpoint import decompress_checkpoint

    return convert(decompress_checkpoint, beside=options.decompressed_path, **settings)
