"""Text that came from elsewhere, such as a name in a file, made safe to print; sizes and counts in words; objects in a
line."""

from __future__ import annotations


def escape(text: str) -> str:
    """`text` with a backslash escape for every character that moves a cursor, breaks a line or cannot be seen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def size(nbytes: int) -> str:
    """90.9 MB, in powers of 1000 as GB/s are."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 999.5 or unit == "PB":
            break
        value /= 1000
    return f"{nbytes} B" if unit == "B" else f"{value:.3g} {unit}"


def count(number: int, noun: str) -> str:
    """1 tensor, 2,300 tensors."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def in_a_line(thing: object, *facts: object) -> str:
    """What `__repr__` gives of an object: its class, then what tells it from another one, where None is left out, as in
    ``<TensorReader model.safetensors, 44 tensors>``. Nothing is read for it, and it holds for what is closed."""
    told = ", ".join(escape(str(fact)) for fact in facts if fact is not None)
    return f"<{type(thing).__name__} {told}>"
