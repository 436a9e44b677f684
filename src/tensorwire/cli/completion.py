"""tensorwire completion"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .options import Choice
from .program import completion_variable


@click.command()
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Example:
      eval "$(tensorwire completion bash)"  # in ~/.bashrc; zsh: in ~/.zshrc
      tensorwire completion fish | source   # in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = ctx.find_root()
    program = str(root.info_name)
    print(kind(root.command, {}, program, completion_variable(program)).source())
