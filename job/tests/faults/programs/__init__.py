"""Training programs that faults befall; each is a script as a user writes it."""
