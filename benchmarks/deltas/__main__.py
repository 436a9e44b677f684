"""python -m benchmarks.deltas: everything that `make deltas` measures."""

from benchmarks.deltas.run import main

main()
