"""Write the golden frames of version 0, from the root: `PYTHONPATH=.:tests python -m reference.make_golden`.

See tests/golden/README.md for when that is allowed.
"""

import json
from hashlib import sha256
from pathlib import Path

from conformance import CASES

from reference.tensorwire_reference import decode

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "v0"
MAX_TOTAL_NBYTES = 600_000


def main() -> None:
    frames = {case.name: (case, case.build()) for case in CASES if case.golden}
    total = sum(len(frame) for _, frame in frames.values())
    if total > MAX_TOTAL_NBYTES:
        raise SystemExit(f"the frames take {total} bytes together; at most {MAX_TOTAL_NBYTES} belong in a repository")
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for stale in GOLDEN.glob("*.tw"):
        stale.unlink()
    entries = []
    for name, (case, frame) in frames.items():
        decoded = decode(frame)
        if decoded.data != case.data:
            raise SystemExit(f"{name} does not decode to its input")
        (GOLDEN / f"{name}.tw").write_bytes(frame)
        entries.append(
            {
                "name": name,
                "dtype": decoded.dtype,
                "shape": decoded.shape,
                "bits": decoded.bits,
                "profile": decoded.profile,
                "block_log2": decoded.block_log2,
                "nbytes": len(case.data),
                "sha256": sha256(case.data).hexdigest(),
                "codings": decoded.codings,
            }
        )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (GOLDEN / "manifest.json").write_text(f'{{"version": 0, "frames": [\n{lines}\n]}}\n')
    print(f"{len(frames)} frames, {total} bytes")


if __name__ == "__main__":
    main()
