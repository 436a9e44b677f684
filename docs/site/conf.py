"""Sphinx makes build/docs of the Markdown in the repository: `make docs`. Nothing is fetched from elsewhere.

The source folder is the repository, so that a link from docs/ to any other file is the same in both. toc.yml lists the
pages; one that it lacks, and a link to nothing, fail the build.
"""

from tensorwire import __version__

project = "tensorwire"
project_copyright = "the tensorwire authors"
version = release = __version__

extensions = ["myst_parser", "sphinx_external_toc", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
include_patterns = [
    "docs/*.md",
    "job/docs/*.md",
    "benchmarks/results/*.md",
    "benchmarks/results/*/*.md",
    "reference/README.md",
    "tests/golden/README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "RELEASE.md",
    "SECURITY.md",
    "job/CHANGELOG.md",
    "job/SECURITY.md",
    "job/benchmarks/results/*.md",
]
external_toc_path = "docs/site/toc.yml"
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"tensorwire {version}"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_extra_path = ["start"]
html_copy_source = False
html_show_sphinx = False
