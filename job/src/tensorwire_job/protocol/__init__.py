"""Messages between agents and the analyzer's service."""
