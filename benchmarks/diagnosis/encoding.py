"""What reports of agents cost in our encoding, and in msgspec's MessagePack of whole observations.

`python -m benchmarks.diagnosis.encoding > benchmarks/results/diagnosis-encoding.md` writes a table. It needs msgspec,
which tensorwire does not. A simulated job of 1,024 healthy ranks runs for some seconds; every node reports once a
second. Whole: msgspec encodes what an agent sees and decodes it into the same data classes, checking types. Arrays: the
same without the names of fields, in structures of msgspec that have the fields of the data classes. The first two
reports are left out: those of ours that come first are whole too. CPU time is that of one core for 1,000 ranks and one
second of the job.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from tensorwire.diagnosis import model
from tensorwire.diagnosis.model import Observation
from tensorwire.diagnosis.protocol.connection import _from_text, _to_text
from tensorwire.diagnosis.protocol.encoding import Decoder, Encoder

from .. import environment
from .layout import Layout
from .simulated_job import SimulatedJob

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 12
_FIRST = 2


def structures() -> dict[str, type]:
    """The data classes of an observation as structures that are arrays in MessagePack."""
    made: dict[str, type] = {}
    for kind in (model.Operation, model.Timing, model.ProcessGroup, model.Process, model.Rank, model.Edge, Observation):
        hints = get_type_hints(kind, localns={**vars(model), **made})
        fields = [(field.name, _in(hints[field.name], made)) for field in dataclasses.fields(kind)]
        made[kind.__name__] = msgspec.defstruct(kind.__name__, fields, array_like=True)
    return made


def _in(hint: Any, made: dict[str, type]) -> Any:
    """A type with data classes replaced by what was made of them."""
    if getattr(hint, "__args__", None) and not isinstance(hint, str):
        arguments = tuple(_in(argument, made) for argument in hint.__args__)
        return hint.copy_with(arguments) if hasattr(hint, "copy_with") else _rebuilt(hint, arguments)
    return made.get(getattr(hint, "__name__", ""), hint)


def _rebuilt(hint: Any, arguments: tuple[Any, ...]) -> Any:
    origin = getattr(hint, "__origin__", None)
    if origin is not None:
        return origin[arguments if len(arguments) > 1 else arguments[0]]
    union = arguments[0]
    for argument in arguments[1:]:
        union = union | argument
    return union


def _structure(value: Any, made: dict[str, type]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return made[type(value).__name__](*(_structure(field, made) for field in fields))
    if isinstance(value, list):
        return [_structure(item, made) for item in value]
    if isinstance(value, dict):
        return {key: _structure(item, made) for key, item in value.items()}
    return value


def main() -> None:
    made = structures()
    arrays = msgspec.msgpack.Decoder(made["Observation"])
    encoders: dict[str, Encoder] = {}
    decoders: dict[str, Decoder] = {}
    packer, unpacker = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Observation)

    def ours(node: str, observation: Observation) -> bytes:
        return _to_text(encoders.setdefault(node, Encoder()).report(observation))

    def read_ours(node: str, data: bytes) -> object:
        decoder = decoders.setdefault(node, Decoder())
        decoder.apply(_from_text(data))
        return list(decoder.ranks(node, 0.0)), list(decoder.edges())

    ways: dict[str, tuple[Callable[[str, Observation], bytes], Callable[[str, bytes], Any]]] = {
        "changes, in rows of integers (ours)": (ours, read_ours),
        "whole observations (msgspec, MessagePack)": (
            lambda _, observation: packer.encode(observation),
            lambda _, data: unpacker.decode(data),
        ),
        "arrays (msgspec, MessagePack)": (
            lambda _, observation: packer.encode(observation),
            lambda _, data: arrays.decode(data),
        ),
    }
    layout = Layout(8, 4, 32)
    scale = 1000 / layout.world_size / (_SECONDS - _FIRST)
    print("# What a report of an agent costs\n")
    print(f"A simulated job of {layout.world_size} healthy ranks for {_SECONDS} s. Every node reports once a second.")
    print("CPU time is that of one core for 1,000 ranks and one second, without connections.\n")
    versions = f"Python {platform.python_version()}, msgspec {msgspec.__version__}"
    print(f"- Machine: {environment.describe('')['cpu']}; {versions}")
    print("- `python -m benchmarks.diagnosis.encoding`\n")
    print("| encoding | bytes a rank and second | agents' CPU, ms | analyzer's CPU, ms |")
    print("|---|---|---|---|")
    for name, (encode, decode) in ways.items():
        job = SimulatedJob(layout, 0)
        nbytes, encoding, decoding = 0, 0.0, 0.0
        for now in range(_SECONDS):
            job.advance(float(now))
            for node, seen in job.observe().items():
                observation = _structure(seen, made) if name.startswith("arrays") else seen
                start = time.thread_time()
                data = encode(node, observation)
                middle = time.thread_time()
                decode(node, data)
                stop = time.thread_time()
                if now >= _FIRST:
                    nbytes, encoding, decoding = nbytes + len(data), encoding + middle - start, decoding + stop - middle
        print(f"| {name} | {nbytes * scale / 1000:.1f} | {encoding * scale * 1e3:.1f} | {decoding * scale * 1e3:.1f} |")


if __name__ == "__main__":
    main()
