"""python -m benchmarks.device [TABLE...]: what `make device` measures."""

from benchmarks.device.run import main

main()
