"""The page of a rank: shared memory that its probe writes and its node reads; and other files that both need."""
