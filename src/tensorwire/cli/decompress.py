"""tensorwire decompress"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options
from .conversion import convert

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("src", type=options.EXISTING_PATH)
@click.argument("dst", type=options.NEW_PATH, required=False)
@options.strict_option
@options.threads_option
@options.dry_run_option
@options.force_option
@options.json_option
def command(
    src: Path, dst: Path | None, strict: bool, threads: int | None, dry_run: bool, force: bool, as_json: bool
) -> int:
    """Restore a checkpoint, byte for byte.

    Every file is checked against the SHA-256 of its original. Files beside the tensors, such as README.md, may have
    been edited or lost since: they are restored where tensorwire.json holds the original, else kept as they are, and
    the exit code is 3. Without DST the result stands next to SRC:
    MODEL.tensorwire becomes MODEL, A.tensorwire.safetensors becomes A.safetensors; a name without the suffix gains
    .decompressed.

    \b
    Example:
      tensorwire decompress llama.tensorwire
      tensorwire decompress small/model.safetensors model.safetensors --force
    """
    from ..checkpoint import decompress_checkpoint

    return convert(
        decompress_checkpoint,
        src,
        dst or options.decompressed_path(src),
        as_json=as_json,
        strict=strict,
        threads=threads,
        dry_run=dry_run,
        force=force,
    )
