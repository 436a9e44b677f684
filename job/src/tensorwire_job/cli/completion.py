"""tensorwire-job completion"""

from __future__ import annotations

import copy

from tensorwire.cli import completion

command = copy.copy(completion.command)
command.help = (command.help or "").replace("tensorwire ", "tensorwire-job ")
