"""tensorwire-job completion"""

from tensorwire.cli.completion import command

__all__ = ["command"]
