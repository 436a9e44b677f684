"""python -m benchmarks.checkpoints dcp|directories|remote: what `make dcp`, `make directories` and `make remote` do."""

from benchmarks.checkpoints.run import main

main()
