"""Write the golden frames of version 1, from the root: `PYTHONPATH=. python -m reference.make_golden`.

See tests/golden/README.md for when that is allowed.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from reference.tensorwire_reference import decode
from reference.tensorwire_reference.hashes import content_hash
from reference.tensorwire_reference.header import LAYOUT
from tests.support.conformance import CASES, Case
from tests.support.malformed import MALFORMED, Malformed

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "v1"
MAX_TOTAL_NBYTES = 750_000


def main() -> None:
    cases = [(case, case.build()) for case in CASES if case.golden]
    malformed = [(one, one.build()) for one in MALFORMED]
    used = [item.base for item, _ in (*cases, *malformed)]
    bases = {content_hash(base).hex(): base for base in used if base is not None}
    files = {f"{case.name}.tw": frame for case, frame in cases}
    files |= {f"invalid/{one.name}.tw": frame for one, frame in malformed}
    files |= {f"bases/{name}": base for name, base in bases.items()}
    total = sum(map(len, files.values()))
    if total > MAX_TOTAL_NBYTES:
        raise SystemExit(f"the files take {total} bytes together; at most {MAX_TOTAL_NBYTES} belong in a repository")
    _write(files, [_entry(case, frame) for case, frame in cases], [_of_malformed(one) for one, _ in malformed])
    print(f"{len(cases)} frames, {len(malformed)} invalid ones, {len(bases)} bases, {total} bytes")


def _name_of(base: bytes | None) -> str | None:
    return None if base is None else content_hash(base).hex()


def _entry(case: Case, frame: bytes) -> dict[str, Any]:
    decoded = decode(frame, case.base)
    if decoded.data != case.data:
        raise SystemExit(f"{case.name} does not decode to its input")
    header = decoded.header
    return {
        "name": case.name,
        "dtype": header.dtype,
        "shape": header.shape,
        "bits": header.bits,
        "layout": list(frame[LAYOUT]),
        "profile": header.profile,
        "block_words": header.block_words,
        "block_alignment": header.block_alignment,
        "frame_alignment": header.frame_alignment,
        "header_nbytes": header.header_nbytes,
        "padding_nbytes": header.padding_nbytes,
        "optional_features": header.optional_features,
        "extensions": {tag: content.hex() for tag, content in header.extensions.items()},
        "nbytes": len(case.data),
        "sha256": sha256(case.data).hexdigest(),
        "content_hash": header.content_hash.hex(),
        "base": _name_of(case.base),
        "codings": decoded.codings,
    }


def _of_malformed(malformed: Malformed) -> dict[str, Any]:
    return {"name": malformed.name, "error": malformed.error, "base": _name_of(malformed.base)}


def _write(files: dict[str, bytes], frames: list[dict[str, Any]], invalid: list[dict[str, Any]]) -> None:
    for folder in (GOLDEN, GOLDEN / "invalid", GOLDEN / "bases"):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.iterdir():
            if stale.is_file():
                stale.unlink()
    for name, content in files.items():
        (GOLDEN / name).write_bytes(content)
    lists = (",\n".join(map(json.dumps, entries)) for entries in (frames, invalid))
    manifest = '{{"version": 1, "frames": [\n{}\n], "invalid": [\n{}\n]}}\n'.format(*lists)
    (GOLDEN / "manifest.json").write_text(manifest)


if __name__ == "__main__":
    main()
