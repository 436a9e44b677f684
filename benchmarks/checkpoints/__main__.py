"""python -m benchmarks.checkpoints PAGE, of dcp, directories, remote, training: what `make PAGE` measures."""

from benchmarks.checkpoints.run import main

main()
