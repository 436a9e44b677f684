"""python -m benchmarks.engines [SECTION...]: what `make engines` measures."""

from benchmarks.engines.run import main

main()
