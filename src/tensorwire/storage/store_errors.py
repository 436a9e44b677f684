"""What stores say when they fail."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import TruncatedDataError

if TYPE_CHECKING:
    from .secret_text import Secrets

CHANGED = "the object changed while it was read"
_ARGUMENTS = re.compile(r"(unexpected keyword|missing \d+ required) .*")
_REFUSED = (401, 403)  # by HTTP
_UNKNOWN = "Protocol not known"  # fsspec's words
_ADVICE = "; look at your credentials for this store"


@contextmanager
def clear_errors(where: str, secrets: Secrets) -> Iterator[None]:
    """Errors of stores as OSErrors that name the place, without what may be secret, and without those behind them."""
    try:
        yield
    except TruncatedDataError:
        raise
    except ImportError as error:
        raise ImportError(f"{where}: {secrets.without(str(error))}") from None
    except TypeError as error:
        named = _ARGUMENTS.search(str(error))  # nothing else, since it may be a value
        text = f": {secrets.without(named[0])}" if named else ""
        raise ValueError(f"{where}: expected storage_options that this store knows{text}") from None
    except ValueError as error:
        text = secrets.without(str(error))
        advice = "; install its package, or correct the URL" if text.startswith(_UNKNOWN) else ""
        raise ValueError(f"{where}: {text}{advice}") from None
    except OSError as error:
        text = secrets.without(str(error.strerror or error)) or os.strerror(error.errno or errno.EIO)
        kind = type(error) if type(error).__module__ == "builtins" else OSError
        text += _ADVICE * isinstance(error, PermissionError)
        raise kind(error.errno or _NUMBERS.get(kind, errno.EIO), text, where) from None
    except Exception as error:
        text = f"{type(error).__name__}: {secrets.without(str(error))}"
        if getattr(error, "status", None) in _REFUSED or "Credentials" in type(error).__name__:
            raise PermissionError(errno.EACCES, text + _ADVICE, where) from None
        raise OSError(errno.EIO, text, where) from None


_NUMBERS = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES, FileExistsError: errno.EEXIST}
