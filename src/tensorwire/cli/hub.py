"""Names of models on a hub, which people give where a path is meant, and the hub's cache on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"(?P<owner>\w[\w.-]*)/(?P<name>\w[\w.-]*)")
_FILE = re.compile(r"\.[A-Za-z]+$")


def advice_on(path: object) -> str:
    """What is said behind "there is no such path" if it may be the name of a model on a hub; else an empty text."""
    name = str(path)
    if not _may_be_name(name):
        return ""
    snapshot = _in_cache(name)
    if snapshot is not None:
        return f"; the hub's cache has this model: name {str(snapshot)!r}"
    return f"; nothing is downloaded here: first run hf download {name} --local-dir {name.partition('/')[2]}"


def found_by_name(path: Path) -> Path:
    """`path`, or what the hub's cache has of a model of this name, if there is no such path."""
    name = str(path)
    return path if path.exists() or not _may_be_name(name) else _in_cache(name) or path


def _may_be_name(name: str) -> bool:
    """Whether it may be that of a model, and not a file, or a word that is not right."""
    found = _NAME.fullmatch(name)
    return found is not None and not _FILE.search(name) and not Path(found["owner"]).is_dir()


def _in_cache(name: str) -> Path | None:
    """The snapshot of a model that the cache has, where main leads or else the newest."""
    root = _cache() / f"models--{name.replace('/', '--')}"
    found = sorted(root.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
    main = root / "refs" / "main"
    current = root / "snapshots" / main.read_text().strip() if main.is_file() else None
    return current if current in found else found[-1] if found else None


def _cache() -> Path:
    """Where huggingface_hub keeps its cache: as it finds out itself."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(os.path.expandvars(os.environ.get("HF_HUB_CACHE") or f"{home}/hub")).expanduser()
