"""python -m benchmarks.checkpoints dcp|remote: what `make dcp` and `make remote` measure."""

from benchmarks.checkpoints.run import main

main()
