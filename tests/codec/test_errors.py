"""The hierarchy of errors, what they say, and how context is added to them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tensorwire import errors
from tensorwire.errors import CorruptDataError, ErrorContext, LimitExceededError, TensorwireError


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("FormatError", (TensorwireError, ValueError)),
        *((f"{name}Error", (errors.FormatError,)) for name in ("CorruptData", "TruncatedData", "UnsupportedVersion")),
        ("LimitExceededError", (errors.FormatError,)),
        ("DoesNotFit", (TensorwireError, ValueError)),
        ("UnsupportedTensorError", (TensorwireError, TypeError)),
    ],
)
def test_hierarchy(name: str, bases: tuple[type, ...]) -> None:
    assert getattr(errors, name).__bases__ == bases


def test_message_says_what_where_and_what_to_do() -> None:
    error = CorruptDataError("expected 1, got 2", file=Path("a.bin"), tensor="layer.0", block=3, byte=64)
    assert str(error) == (
        "expected 1, got 2 (file 'a.bin', tensor 'layer.0', block 3, byte 64); "
        "the data is damaged or not of this format: fetch it again from its source"
    )
    assert (error.file, error.tensor, error.block, error.byte) == (Path("a.bin"), "layer.0", 3, 64)


def test_message_leaves_out_what_is_not_known() -> None:
    assert str(LimitExceededError("expected at most 1, got 2")) == "expected at most 1, got 2"
    assert str(LimitExceededError("expected 1", block=0, byte=0)) == "expected 1 (block 0, byte 0)"
    assert str(CorruptDataError("expected 1", advice="do this")) == "expected 1; do this"


def test_context_names_file_and_tensor_and_the_innermost_wins() -> None:
    with (
        pytest.raises(CorruptDataError) as caught,
        ErrorContext(file="outer", tensor="outer"),
        ErrorContext(tensor="inner"),
    ):
        raise CorruptDataError("expected 1", byte=7)
    assert (caught.value.file, caught.value.tensor, caught.value.byte) == ("outer", "inner", 7)
    assert "(file 'outer', tensor 'inner', byte 7)" in str(caught.value)


def test_context_lets_other_exceptions_and_success_pass() -> None:
    with pytest.raises(KeyError, match="x"), ErrorContext(file="f"):
        raise KeyError("x")
    with ErrorContext(file="f"):
        pass


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(CorruptDataError("expected 1", file="f", block=2, advice="do this")))
    assert str(error) == "expected 1 (file 'f', block 2); do this"
    assert error.block == 2
