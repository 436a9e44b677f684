"""tensorwire transcode"""

from __future__ import annotations

from typing import Any

import click

from . import options
from .conversion import convert


@click.command()
@options.places_argument
@options.output_option
@click.option("--profile", type=options.PROFILE, required=True, help=options.PROFILE_HELP)
@options.base_option
@options.strict_option
@options.threads_option
@options.force_option
@options.quiet_option
@options.json_option
def command(**settings: Any) -> int:
    """Compress a compressed checkpoint with another profile.

    The result is the one that compressing the original gives. The content is checked on the way. DST must be given.
    If there are several SRC, it is a directory. "-" is standard input or output, as for decompress. With --base the
    result is relative to OLD; a SRC that is relative needs it.

    \b
    Example:
      tensorwire transcode llama.tensorwire archive/llama --profile compact
      tensorwire transcode delta smaller --profile compact --base step-1000
    """
    from ..checkpoint import transcode_checkpoint

    return convert("transcode", transcode_checkpoint, beside=None, **settings)
