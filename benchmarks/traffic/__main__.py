"""python -m benchmarks.traffic [TABLE...]: what `make traffic` measures."""

from benchmarks.traffic.run import main

main()
