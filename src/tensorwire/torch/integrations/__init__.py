"""Where other packages meet compressed weights."""
