"""The version of the package: read by the build (pyproject.toml, CMakeLists.txt) and at run time."""

__version__ = "0.1.0.dev0"

INSTALL = "pip install . in its repository"
"""How to get the package. Compressed directories carry it: the owner puts the address here, before frames of
version 1 are frozen."""
