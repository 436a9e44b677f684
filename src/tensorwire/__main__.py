"""``python -m tensorwire`` is the command ``tensorwire``."""

import sys

from .cli import main

sys.exit(main())
