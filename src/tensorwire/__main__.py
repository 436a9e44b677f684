"""The command ``tensorwire``, which is also ``python -m tensorwire``."""

import sys


def main() -> int:
    """Run the command line. A package that it needs and that is missing is a line, not a traceback."""
    try:
        from .cli import main as run

        return run()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "tensorwire"):
            raise
        print(
            f"tensorwire: the command line needs the package {package}, which is not installed; pip install {package}",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
