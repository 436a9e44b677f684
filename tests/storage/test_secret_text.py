"""What is secret in URLs and options is in no text, whatever it looks like and however a library prints it."""

from __future__ import annotations

import re
import traceback
from urllib.parse import quote, unquote

import pytest

import tensorwire
from tensorwire.cli import main
from tensorwire.storage.locations import locate, said
from tensorwire.storage.secret_text import Secrets, shown
from tests.support.acting import raising
from tests.support.stores import faulty_store

SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (f"https://user:{SECRET}/y@host/a", "https://host/a"),
        (f"https://user: {SECRET}@host:80/a", "https://host:80/a"),
        (f"https://user:{SECRET}#@host/a", "https://host/a"),
        (f"https://user:{SECRET}?@host/a", "https://host/a"),
        (f"HTTPS://{SECRET}@[::1]:80/a", "HTTPS://[::1]:80/a"),
        (f"https://[::1]/a@b?x={SECRET}::y", "https://[::1]/a@b"),
        (f"https://host/a? {SECRET}", "https://host/a"),
        (f"https://host/a?b='{SECRET}'", "https://host/a"),
        (f"https://host/a;token={SECRET}", "https://host/a"),
        ("https://host/a;b.safetensors", "https://host/a;b.safetensors"),
        (f"s3://key:{SECRET}/+@bucket/a", "s3://bucket/a"),
        (f"simplecache::https://u:{SECRET}@host/a?{SECRET}", "simplecache::https://host/a"),
        (f"zip://a.safetensors::https://u:{SECRET}@host/b.zip?{SECRET}", "zip://a.safetensors::https://host/b.zip"),
        ("hf://org/model@main/a", "hf://org/model@main/a"),
    ],
)
def test_a_url_is_shown_without(url: str, text: str) -> None:
    assert shown(url) == said(url) == text


@pytest.mark.parametrize(
    "secret", ["pass/word+x==", "pass word", "pass%2Fword", "päss&wörd", "quo'te\"d\\x", "a:b:c:d"]
)
@pytest.mark.parametrize(
    "place", ["s3://key:{}@bucket/a", "https://host/a?sig={}", "https://host/a?sig={}&b=c", "option"]
)
def test_a_secret_is_in_no_text_of_others(secret: str, place: str) -> None:
    """As it is, encoded, decoded, escaped, and in pieces."""
    options = {"client_kwargs": {"headers": [{"X-Own": f"Bearer {secret}"}]}, "secret": secret.encode()}
    secrets = Secrets("s3://bucket/a", options) if place == "option" else Secrets(place.format(secret))
    for form in (secret, unquote(secret), quote(secret), quote(secret, safe=""), repr(secret)[1:-1]):
        text = f'Invalid bucket name "key:{form}@bucket" at offset 7'
        assert form not in secrets.without(text)
        assert secrets.without(text).endswith("at offset 7")
    for piece in re.findall(r"\w{3,}", f"{secret} {unquote(secret)}"):
        assert secrets.without(f"port could not be cast: '{piece}'") == "port could not be cast: '***'"


def test_a_name_stays_where_it_has_what_a_user_has() -> None:
    with faulty_store():
        path = locate("faulty://a@bucket/data@v1/a@b")
        assert (str(path), path.name) == ("faulty:///bucket/data@v1/a@b", "a@b")


def test_a_short_secret_is_taken_out_as_a_word_alone() -> None:
    assert Secrets("s3://key:net@bucket/a").without("no net, the network is down") == "no ***, the network is down"


def test_a_proxy_among_the_options_has_secrets_too() -> None:
    secrets = Secrets("https://host/a", {"proxy": f"http://me:{SECRET}@proxy", "anon": False, "region": "eu-west-1"})
    assert secrets.without(f"proxy me:{SECRET} in eu-west-1") == "proxy *** in eu-west-1"


@pytest.mark.parametrize("kind", [OSError, ValueError, RuntimeError, ImportError, PermissionError])
def test_what_a_store_says_has_none(kind: type[Exception]) -> None:
    failing = raising(kind(f"no such thing as 'user:{SECRET}' or token {SECRET[::-1]}"))
    with faulty_store(info=failing, ls=failing, find=failing, cat_file=failing):
        path = locate(f"faulty://user:{SECRET}@bucket/a", {"token": SECRET[::-1]})
        for call in (path.exists, path.stat, lambda: list(path.iterdir()), lambda: list((path / "b").files())):
            with pytest.raises((OSError, ValueError, ImportError)) as caught:
                call()
            text = "".join(traceback.format_exception(caught.value)) + repr(path) + repr(path.parent)
            assert "no such thing as '***' or token ***" in text
            assert SECRET not in text
            assert SECRET[::-1] not in text


@pytest.mark.parametrize(
    "url",
    [
        f"http://u:{SECRET}/y@127.0.0.1:1/x",
        f"http://127.0.0.1:1/x;token={SECRET}",
        f"http://u: {SECRET}@127.0.0.1:1/x",
        f"http://127.0.0.1:1/x? {SECRET}",
        f"http://127.0.0.1:1/x?a='{SECRET}'",
        f"zip://m.safetensors::http://u:{SECRET}@127.0.0.1:1/x.zip",
        f"memory://x?sig={SECRET}",
        f"memory://x?{SECRET}",
    ],
)
@pytest.mark.parametrize("command", [["verify"], ["inspect", "--json"], ["compress", "-o", "out"]])
def test_the_command_line_says_none(url: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiohttp", reason="fsspec's HTTP needs aiohttp")
    assert main([*command, url]) in (1, 2)
    written = capsys.readouterr()
    assert SECRET not in written.out + written.err


def test_a_query_is_in_no_name() -> None:
    """Where a store takes it for a part of the key, and where it has no equals sign."""
    with faulty_store() as store:
        store.pipe({f"/a?{SECRET}/b?c=d": b"1", f"/e?{SECRET}": b"2"})
        folder, file = locate(f"faulty://a?{SECRET}"), locate(f"faulty://e?{SECRET}")
        [below] = folder.iterdir()
        assert (folder.name, below.path_in(folder), below.stat().st_size) == ("a", "b?c=d", 1)
        assert (file.name, file.path_in(file.parent), file.stat().st_size) == ("e", "e", 1)
        assert SECRET not in f"{folder!r} {below!r} {file!r}"


def test_memory_has_no_query() -> None:
    """Nothing would read it, and fsspec writes names to its log."""
    with pytest.raises(ValueError, match=r"^memory://a: expected a URL without query"):
        tensorwire.save_file({}, f"memory://a?{SECRET}")
