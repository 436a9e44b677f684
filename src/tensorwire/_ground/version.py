"""The version of the package: read by the build (pyproject.toml, CMakeLists.txt) and at run time."""

__version__ = "0.1.0"
