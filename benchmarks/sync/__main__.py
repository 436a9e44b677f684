"""python -m benchmarks.sync: what `make sync` measures."""

from benchmarks.sync.run import main

main()
