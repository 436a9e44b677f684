"""The version of the package: read by the build (pyproject.toml) and at run time."""

__version__ = "0.1.0"
