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
    found = _NAME.fullmatch(name)
    if found is None or _FILE.search(name) or Path(found["owner"]).is_dir():  # a file, or a word that is not right
        return ""
    snapshot = _in_cache(name)
    if snapshot is not None:
        return f"; the hub's cache has this model: name {str(snapshot)!r}"
    return f"; nothing is downloaded here: first run hf download {name} --local-dir {found['name']}"


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
