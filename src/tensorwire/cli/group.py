"""A group of commands, each in a module of its own that is imported when the command is called."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from . import failures


class CommandGroup(click.Group):
    """Each command is the attribute `command` of the module of its name in `package`; they are listed in order."""

    def __init__(self, *, package: str, modules: Sequence[str], **settings: Any) -> None:
        super().__init__(**settings)
        self._package = package
        self._modules = tuple(modules)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        command: click.Command = importlib.import_module(f"{self._package}.{cmd_name}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # click's own help here is no error before 8.2
            print(ctx.get_help(), file=sys.stderr)
            ctx.exit(failures.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._modules and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self._modules, n=1)
            advice = f"did you mean '{near[0]}'?" if near else f"the commands are {', '.join(self._modules)}."
            raise click.UsageError(f"No such command {name!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)
