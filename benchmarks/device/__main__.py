"""python -m benchmarks.device: what `make device` measures."""

from benchmarks.device.run import main

main()
