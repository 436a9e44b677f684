"""tensorwire compress"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options
from .conversion import convert

if TYPE_CHECKING:
    from pathlib import Path

    from ..codec import Profile


@click.command()
@click.argument("src", type=options.EXISTING_PATH)
@click.argument("dst", type=options.NEW_PATH, required=False)
@click.option("--profile", type=options.PROFILE, default="fast", show_default=True, help=options.PROFILE_HELP)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave out the files and directories that match, as in a .gitignore; may be repeated. .git is left out "
    "anyway, unless --exclude '!.git' is given.",
)
@options.threads_option
@options.dry_run_option
@options.force_option
@options.json_option
def command(
    src: Path,
    dst: Path | None,
    profile: Profile,
    exclude: tuple[str, ...],
    threads: int | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Compress a checkpoint.

    SRC is a .safetensors file or a directory; all other files in a directory travel along, except those that
    --exclude names. Without DST the result
    stands next to SRC: MODEL becomes MODEL.tensorwire, A.safetensors becomes A.tensorwire.safetensors. DST appears
    at once, when it is whole; a run that was interrupted goes on where it stopped when it is repeated.

    \b
    Example:
      tensorwire compress llama --dry-run
      tensorwire compress llama /mnt/small/llama --profile compact --exclude '*.bin' --exclude onnx/
    """
    from ..checkpoint import compress_checkpoint

    return convert(
        compress_checkpoint,
        src,
        dst or options.compressed_path(src),
        as_json=as_json,
        profile=profile,
        exclude=exclude,
        threads=threads,
        dry_run=dry_run,
        force=force,
    )
