"""A group of commands, each in a module of its own that is imported when the command is called."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import click

from .._ground.packages import from_clone
from . import failures

ENTRY_POINTS = "tensorwire.commands"
"""The group of entry points by which other distributions give a command."""


class CommandGroup(click.Group):
    """Each command is the attribute `command` of the module of its name in `package`. `sections` has them in order, by
    the title under which the help lists them.

    A command in `others` comes from another distribution, which stands there by its name, by an entry point.
    """

    def __init__(
        self,
        *,
        package: str,
        sections: Mapping[str, Sequence[str]],
        others: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._package = package
        self._sections = sections
        self._others = dict(others or {})
        self._names = tuple(name for names in sections.values() for name in names)
        self.modules = tuple(name for name in self._names if name not in self._others)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command
        if cmd_name in self.modules:
            command = importlib.import_module(f"{self._package}.{cmd_name}").command
            return command
        if cmd_name not in self._others:
            return None
        distribution = self._others[cmd_name]
        for point in entry_points(group=ENTRY_POINTS, name=cmd_name):
            if point.dist is None or (point.dist.name or "").replace("_", "-") != distribution:
                continue
            try:
                command = point.load()
            except Exception as error:  # a broken distribution leaves our other commands alone
                return _refusing(cmd_name, distribution, "Cannot be loaded", str(error) or type(error).__name__)
            return command
        return _refusing(cmd_name, distribution, "Is not installed", from_clone(f"./{cmd_name}"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._names))
        room = formatter.width - 6 - width
        for title, names in self._sections.items():
            commands = [self.get_command(ctx, name) for name in names]
            rows = [
                (name.ljust(width), command.get_short_help_str(room))
                for name, command in zip(names, commands, strict=True)
                if command is not None
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # click's own help here is no error before 8.2
            print(ctx.get_help(), file=sys.stderr)
            ctx.exit(failures.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._names and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self._names, n=1)
            advice = f"did you mean '{near[0]}'?" if near else f"the commands are {', '.join(self._names)}."
            raise click.UsageError(f"No such command {name!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)


class _UnavailableError(click.ClickException):
    """A command of another distribution, which is not there. Its help would say no more."""

    exit_code = failures.USAGE


def _refusing(name: str, distribution: str, reason: str, more: str) -> click.Command:
    """A command that says why it is not there."""

    def refuse(arguments: tuple[str, ...]) -> None:
        text = f"{name} is a command of {distribution}, which {reason[0].lower()}{reason[1:]}: {more}"
        raise _UnavailableError(text)

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        help=f"{reason}: {more}.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
