"""python -m job.tests.faults.together: what all runs of variants come to, beside what is aimed at."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import variant_page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m job.tests.faults.together", description=__doc__)
    default = variant_page.JSON
    parser.add_argument("files", type=Path, nargs="*", default=[default], help=f"results (default: {default.name})")
    rows = [row for path in parser.parse_args().files for row in json.loads(path.read_text())["runs"]]
    print(variant_page.together(rows))


if __name__ == "__main__":
    main()
