"""The errors that docs/format.md names, and one for the encoder."""


class FormatError(ValueError):
    """Base of the errors that a decoder raises for a frame."""


class CorruptDataError(FormatError):
    """A rule of the format is broken or a checksum does not match."""


class TruncatedDataError(FormatError):
    """The frame ends before its header says it does."""


class UnsupportedVersionError(FormatError):
    """The version, a required feature or a coding is unknown."""


class LimitExceededError(FormatError):
    """A size is above the format's cap."""


class BaseMismatchError(ValueError):
    """The base of a relative frame is another tensor, or was not given."""


class UnfitError(ValueError):
    """Raised inside the encoder: the requested coding cannot represent this block."""


def require(condition: bool, message: str) -> None:
    """Raise `CorruptDataError(message)` unless `condition` holds."""
    if not condition:
        raise CorruptDataError(message)
