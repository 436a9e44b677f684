"""Files on the disk: positioned reads and writes, threads that overlap them, and the staging directory of a result."""
