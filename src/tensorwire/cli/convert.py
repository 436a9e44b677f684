"""tensorwire convert"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options
from .conversion import convert_distributed

if TYPE_CHECKING:
    from ..storage.locations import Location


@click.command()
@click.argument("src", type=options.EXISTING_PATH, metavar="CHECKPOINT")
@click.argument("dst", type=options.WRITTEN_PATH)
@click.option(
    "--to",
    type=options.Choice(["safetensors", "torch"]),
    default="safetensors",
    show_default=True,
    help="safetensors writes a model directory, with shards and an index from 5 GB on; torch writes one file, as "
    "torch.save does.",
)
@click.option(
    "--key",
    metavar="KEY",
    help="Write only what stands below KEY in the state dict, such as model, under names without it.",
)
@options.base_option
@options.max_nbytes_option
@options.threads_option
@options.force_option
@options.quiet_option
@options.json_option
def command(src: Location, dst: Location, **settings: Any) -> int:
    """Write what a distributed checkpoint of torch holds as files for other tools.

    CHECKPOINT is a directory that torch.distributed.checkpoint has saved to, by TensorwireWriter or by torch's own
    FileSystemWriter. Its tensors are whole in DST, whatever ranks have saved them, byte for byte those of
    full_tensor(). A model directory needs the config.json and the tokenizer of the model beside it to be loaded.

    A safetensors file holds tensors alone: a note names what was left out. --to torch takes it along, as far as
    torch's weights_only loader does, and needs PyTorch. So does a CHECKPOINT of torch's own writer.

    \b
    Example:
      tensorwire convert run/step-1000 llama-1000 --key model
      tensorwire convert run/step-1000 step-1000.pt --to torch
    """
    from ..checkpoint import convert_checkpoint

    if options.STANDARD_STREAM in (src, dst):
        raise click.UsageError("'-' stands for one file of a pipe: name a CHECKPOINT and a DST")
    try:
        return convert_distributed(convert_checkpoint, src, dst, **settings)
    except ImportError as error:
        raise click.UsageError(str(error)) from None
