"""Training traffic: `make traffic`."""
