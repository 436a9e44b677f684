"""tensorwire completion"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Example:
      eval "$(tensorwire completion bash)"        in ~/.bashrc; zsh likewise in ~/.zshrc
      tensorwire completion fish > ~/.config/fish/completions/tensorwire.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    print(kind(ctx.find_root().command, {}, "tensorwire", "_TENSORWIRE_COMPLETE").source())
