"""python -m benchmarks.codecs: everything that `make bench` measures."""

from benchmarks.codecs.run import main

main()
