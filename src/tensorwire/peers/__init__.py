"""Other codecs behind one interface, for ``tensorwire bench`` and for benchmarks/."""
