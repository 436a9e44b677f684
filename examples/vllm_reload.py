"""Have a vLLM server take the weights that a follower has put in place, as ``tensorwire sync follow --exec`` wants it:

    export VLLM_SERVER_DEV_MODE=1
    vllm serve served --load-format tensorwire
    tensorwire sync follow store served --exec "python vllm_reload.py http://localhost:8000 served"

The server and `follow` run at the same time. Nothing but Python is needed here. If a call fails, the server stays
paused, and `follow` ends with exit code 1; docs/vllm.md says what to do then.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def post(url: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"{url}: {error}: {error.read().decode()}")


def main(server: str, directory: str) -> None:
    post(f"{server}/pause?mode=wait&clear_cache=false")  # what has begun is answered with the weights it began with
    arguments = {"weights_path": str(Path(directory).resolve())}
    post(f"{server}/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
    if not post(f"{server}/reset_prefix_cache")["success"]:
        sys.exit(f"{server} still uses its prefix cache, which is that of the old weights")
    post(f"{server}/update_weight_version", {"new_version": os.environ["TENSORWIRE_VERSION"]})
    post(f"{server}/resume")


if __name__ == "__main__":
    main(*sys.argv[1:])
