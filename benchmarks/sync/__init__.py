"""Publishing what training changed, and following it: `make sync`."""
