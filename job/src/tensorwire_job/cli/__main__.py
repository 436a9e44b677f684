"""``python -m tensorwire_job.cli``: the program tensorwire-job."""

import sys

from . import main

sys.exit(main())
