"""tensorwire transcode"""

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
@click.argument("dst", type=options.NEW_PATH)
@click.option("--profile", type=options.PROFILE, required=True, help=options.PROFILE_HELP)
@options.strict_option
@options.threads_option
@options.dry_run_option
@options.force_option
@options.json_option
def command(
    src: Path,
    dst: Path,
    profile: Profile,
    strict: bool,
    threads: int | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Compress a compressed checkpoint with another profile.

    The result is the one that compressing the original gives. The content is checked on the way.

    \b
    Example:
      tensorwire transcode llama.tensorwire archive/llama --profile compact
    """
    from ..checkpoint import transcode_checkpoint

    return convert(
        transcode_checkpoint,
        src,
        dst,
        as_json=as_json,
        profile=profile,
        strict=strict,
        threads=threads,
        dry_run=dry_run,
        force=force,
    )
