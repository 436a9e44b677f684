"""What diffusers reads beside tensors, config.json and the index of shards: as they were before it was compressed.

The weights come dense from safetensors, and nothing else in diffusers is to know of the compression.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ...checkpoint.directory.config_and_index import CONFIG_KEY, check_config, original_config
from ...files.names import tensor_name


def reading(theirs: classmethod[Any, Any, Any], is_on: Callable[[], bool]) -> classmethod[Any, Any, Any]:
    """`ConfigMixin._dict_from_json_file`, which does not tell of the compression."""

    def _dict_from_json_file(cls: Any, json_file: Any) -> Any:
        config = theirs.__get__(None, cls)(json_file)
        if not is_on() or not isinstance(config, dict):
            return config
        found = original_config(config)
        if found is not config:
            check_config(config[CONFIG_KEY])
        return found

    return classmethod(_dict_from_json_file)


def listing(theirs: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    """`_get_checkpoint_shard_files`, which names no payloads: diffusers would warn that it does not use them."""

    @wraps(theirs)
    def _get_checkpoint_shard_files(*arguments: Any, **options: Any) -> Any:
        files, metadata = theirs(*arguments, **options)
        if is_on():
            homes = metadata["weight_map"]
            payloads = {name for name in homes if tensor_name(name) in homes}
            metadata["weight_map"] = {name: home for name, home in homes.items() if name not in payloads}
            metadata["all_checkpoint_keys"] = [n for n in metadata["all_checkpoint_keys"] if n not in payloads]
        return files, metadata

    return _get_checkpoint_shard_files
