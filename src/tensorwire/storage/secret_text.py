"""URLs and texts without what may be secret: users, passwords, queries, and credentials in options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote, unquote_plus

CREDENTIAL = re.compile(r"key|secret|token|passw|passphrase|credential|cookie|auth(?!ority)|sas\b", re.IGNORECASE)
"""Names of options that say who asks, and not for what."""

_ALSO_SECRET = re.compile(r"headers|connection_string", re.IGNORECASE)
_LINK = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)(.*)", re.DOTALL)
_NEXT_LINK = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.\-]*://)")
_BEFORE_PATH = re.compile(r"[^/?#]*")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
_QUERY = re.compile(r"[?#].*|;[^/]*=.*", re.DOTALL)
_BREAKS = re.compile(r"[\s/:@?#&=;,'\"%+\\]+")

_FOREIGN_USER = re.compile(r"(?<=://)[^/\s]*@")  # up to the last "@": a password may hold one
_FOREIGN_QUERY = re.compile(r"(https?://[^\s?#'\"]*)[?#][^\s'\"]*|\?[^\s'\"?]*=[^\s'\"]*", re.IGNORECASE)

_LEAST, _LEAST_IN_WORDS = 3, 6
"""Characters of what is taken out of texts; shorter ones than the latter only where they are words of their own."""


class _Url(NamedTuple):
    shown: str
    user: str
    query: str


def _parsed(link: str) -> _Url:
    """A URL of one store. What cannot be a host and a port is taken for a part of the password."""
    found = _LINK.fullmatch(link)
    if found is None:
        return _Url(_without_urls(link), "", "")
    scheme, rest = found.groups()
    before = _BEFORE_PATH.match(rest)
    user, sign, host = (before[0] if before else "").rpartition("@")
    if _HOST.fullmatch(host) is None and "@" in rest:
        user, sign, _ = rest.rpartition("@")
    rest = rest[len(user) + len(sign) :]
    query = _QUERY.search(rest)
    return _Url(scheme + (rest if query is None else rest[: query.start()]), user, "" if query is None else query[0])


def shown(url: str) -> str:
    """A URL, chained ones too, without users, passwords and queries; of other texts, the URLs in it."""
    return "::".join(_parsed(link).shown for link in _NEXT_LINK.split(url))


class Secrets:
    """What is secret in a URL and in the options that go with it. Thread-safe."""

    def __init__(self, url: str, options: Any = None) -> None:
        parsed = [_parsed(link) for link in _NEXT_LINK.split(url)]
        users = [rf"(^/*|://+){re.escape(each.user)}@" for each in parsed if each.user]
        self._own = re.compile("|".join([*users, *(re.escape(each.query) for each in parsed if each.query)]) or "(?!)")
        whole = set(_of_url(url)) | set(_of_options(options, is_secret=False))
        forms = {form for secret in whole for form in _forms(secret)}
        self._found = re.compile(
            "|".join(
                re.escape(form) if len(form) >= _LEAST_IN_WORDS else rf"(?<!\w){re.escape(form)}(?!\w)"
                for form in sorted(forms, key=len, reverse=True)
                if len(form) >= _LEAST
            )
            or "(?!)"
        )

    def cut(self, place: str) -> str:
        """The name of a place without what the store has kept in it of the URL: user and query."""
        return self._own.sub(lambda found: "".join(filter(None, found.groups())), place)

    def without(self, text: str) -> str:
        """A text of others without any of them, and without those of other URLs in it."""
        return _without_urls(self._found.sub("***", text))


def _without_urls(text: str) -> str:
    """A text without users, passwords and queries of the URLs in it, as far as one sees where they end."""
    return _FOREIGN_QUERY.sub(lambda found: found[1] or "", _FOREIGN_USER.sub("", text))


def _of_url(url: str) -> Iterator[str]:
    """What is secret in it, the whole and its parts."""
    for link in _NEXT_LINK.split(url):
        _, user, query = _parsed(link)
        yield from (user, *user.split(":", 1))
        yield from (query, query[1:])
        for each in re.split(r"[&;?#]", query):
            name, sign, value = each.partition("=")
            yield value if sign else name


def _of_options(value: Any, *, is_secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            named = CREDENTIAL.search(str(name)) or _ALSO_SECRET.search(str(name))
            yield from _of_options(each, is_secret=is_secret or bool(named))
    elif isinstance(value, (list, tuple, set)):
        for each in value:
            yield from _of_options(each, is_secret=is_secret)
    elif isinstance(value, bytes):
        yield from _of_options(value.decode(errors="replace"), is_secret=is_secret)
    elif isinstance(value, str):
        yield from (value,) if is_secret else _of_url(value)


def _forms(secret: str) -> Iterator[str]:
    """A secret as libraries may print it: encoded, decoded, escaped, or one piece of it alone."""
    for form in (secret, unquote(secret), unquote_plus(secret)):
        yield from (form, quote(form), quote(form, safe=""), quote_plus(form), repr(form)[1:-1])
        yield from _BREAKS.split(form)
