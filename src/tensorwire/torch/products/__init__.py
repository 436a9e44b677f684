"""Products with a compressed weight on the CPU."""
