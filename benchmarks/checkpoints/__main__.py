"""python -m benchmarks.checkpoints dcp|remote|training: what `make dcp`, `make remote` and `make training` measure."""

from benchmarks.checkpoints.run import main

main()
