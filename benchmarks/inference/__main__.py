"""python -m benchmarks.inference: everything that `make inference` measures."""

from benchmarks.inference.run import main

main()
