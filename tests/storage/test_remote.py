"""Objects by URL: ranges, pieces that are fetched ahead, errors that name the place and nothing secret."""

from __future__ import annotations

import os
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from tensorwire.errors import TruncatedDataError
from tensorwire.storage.inputs import open_input, read_file
from tensorwire.storage.locations import inside, locate, same
from tensorwire.storage.remote import RemotePath, is_url
from tensorwire.storage.remote_file import BATCH, GAP_NBYTES, PIECE_NBYTES, Pieces, RemoteFile, merged
from tensorwire.storage.secret_text import shown
from tensorwire.storage.upload import Upload
from tests.support.acting import raising
from tests.support.stores import FileStore, faulty_store
from tests.support.web import serving

CONTENT = bytes(range(256)) * 1000


def ranges_asked(store: Any) -> list[tuple[int, int]]:
    return [arguments[1:3] for name, arguments in store.asked if name == "cat_file"]


def test_what_is_a_url() -> None:
    for text in ("s3://bucket/a", "memory://a", "hf://org/model@rev/x", "simplecache::s3://bucket/a", "gs://b"):
        assert is_url(text), text
    for text in ("a/b", "/a//b", "C:/x", "-", "a:b", "://x", Path("s3://bucket")):
        assert not is_url(text), text


def test_local_urls_are_paths(tmp_path: Path) -> None:
    assert locate(f"file://{tmp_path}/a") == tmp_path / "a"
    assert locate(tmp_path) == tmp_path


def test_one_url_by_other_options_is_another_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by another endpoint: it does not go on where the first one has stopped."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    places = {
        Upload(RemotePath.of("memory://a/b", options), force=False, owned=lambda place: ()).place
        for options in ({"endpoint_url": "one"}, {"endpoint_url": "two"}, {"endpoint_url": "one"}, {})
    }
    assert len(places) == 3


def test_other_credentials_go_on_with_the_same_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whatever depth of the options they stand."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def place(secret: str, region: str = "eu", account: str = "a") -> Path:
        options = {
            "key": secret, "secret": secret, "account_key": secret, "account_name": account,
            "client_kwargs": {"region_name": region, "headers": [{"Authorization": secret}]},
            "ssh": {"password": secret},
        }  # fmt: skip
        return Upload(RemotePath.of("memory://a/b", options), force=False, owned=lambda place: ()).place

    assert place("one") == place("two")
    assert len({place("one"), place("one", region="us"), place("one", account="b")}) == 3


def test_a_presigned_url_is_called_by_its_path_alone() -> None:
    pytest.importorskip("aiohttp", reason="fsspec's HTTP needs aiohttp")
    for query in ("?X-Amz-Signature=secret&x=/y", "?secret", "#secret"):
        path = RemotePath.of(f"https://user:secret@host/folder/a.safetensors{query}")
        assert (path.name, path.suffix, str(path)) == (
            "a.safetensors",
            ".safetensors",
            "https://host/folder/a.safetensors",
        )
        assert path.path_in(path.parent) == "a.safetensors"


def test_options_that_a_store_lacks_are_told() -> None:
    with pytest.raises(ValueError, match=r"github://x: expected storage_options .* 'org' and 'repo'"):
        locate("github://x")
    pytest.importorskip("aiohttp", reason="fsspec's HTTP needs aiohttp")
    with pytest.raises(ValueError, match=r"https://host/a: .*'acces'") as caught:
        locate("https://host/a", {"client_kwargs": {"acces": "hunter2"}}).exists()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://user:se@cret@host/a@b", "https://host/a@b"),
        ("no right to read 'sftp://user:se@cr@et@host:22/a'", "no right to read 'sftp://host:22/a'"),
        ("no URL at all? yes", "no URL at all? yes"),
    ],
)
def test_text_of_a_url_has_nothing_secret(url: str, text: str) -> None:
    assert shown(url) == text


def test_errors_of_other_kinds_become_os_errors() -> None:
    with faulty_store(cat_file=raising(RuntimeError("the session is closed"))) as store:
        store.pipe_file("/a", CONTENT)
        with pytest.raises(OSError, match=r"RuntimeError: the session is closed: 'faulty:///a'"):
            RemoteFile(locate("faulty://a")).read(0, 10)


def test_paths() -> None:
    with faulty_store() as store:
        store.pipe({"/run/model/a.safetensors": b"1", "/run/model/sub/b.txt": b"22", "/run/c": b"3"})
        root = locate("faulty://run/model/")
        assert isinstance(root, RemotePath)
        assert (root.name, root.is_dir(), root.is_file(), root.exists()) == ("model", True, False, True)
        assert sorted(path.name for path in root.iterdir()) == ["a.safetensors", "sub"]
        found = {path.path_in(root): path.stat().st_size for path in root.files()}
        assert found == {"a.safetensors": 1, "sub/b.txt": 2}
        file = root / "a.safetensors"
        assert (file.suffix, file.stem, file.parent, file.is_file()) == (".safetensors", "a", root, True)
        assert same(file, locate("faulty://run/model/a.safetensors"))
        assert inside(file, root)
        assert not inside(locate("faulty://run/c"), root)
        assert not inside(locate("/run/model/a"), root)
        assert not (root / "none").exists()
        with pytest.raises(FileNotFoundError, match="faulty:///run/model/none"):
            (root / "none").stat()


def test_reads_are_the_ranges_that_were_asked_for() -> None:
    with faulty_store() as store:
        store.pipe_file("/a", CONTENT)
        with open_input(locate("faulty://a")) as file:
            assert file.nbytes == len(CONTENT)
            assert file.read(0, 8) == CONTENT[:8]
            assert file.read(8, 100) == CONTENT[8:108]
            assert file.read(100_000, 10) == CONTENT[100_000:100_010]
            assert file.read(len(CONTENT) - 3, 10) == CONTENT[-3:]
        asked = ranges_asked(store)
        assert len(asked) == 3, "the beginning once, then each range"
        assert asked[1:] == [(100_000, 100_010), (len(CONTENT) - 3, len(CONTENT))]
        assert next(name for name, _ in store.asked if name != "invalidate_cache") == "info"


def test_a_store_that_is_not_asynchronous_is_asked_for_the_ranges_alone() -> None:
    """And not for what a cache of fsspec's files would read ahead."""
    store = FileStore()
    store.pipe_file("/a", CONTENT)
    store.fetched.clear()
    assert store.cat_file("/a", 100_000, 100_010) == CONTENT[100_000:100_010]
    assert store.fetched == [(100_000, len(CONTENT))], "what fsspec does unless told otherwise"
    store.fetched.clear()
    place = RemotePath(store, "/a")
    assert place.fetch([(100_000, 100_010), (5, 8)]) == [CONTENT[100_000:100_010], CONTENT[5:8]]
    assert store.fetched == [(100_000, 100_010), (5, 8)]


def test_a_store_whose_files_have_no_such_cache_is_read_too() -> None:
    def plain(own: Any, path: str, start: int, stop: int) -> Any:
        return own(path, start, stop)

    with faulty_store(cat_file=plain) as store, open_input(_put(store)) as file:
        assert file.read(100_000, 10) == CONTENT[100_000:100_010]


@pytest.mark.usefixtures("small_pieces")
def test_a_store_that_is_not_asynchronous_is_asked_one_thing_at_a_time() -> None:
    asked = Lock()

    def alone(own: Any, *arguments: Any, **options: Any) -> Any:
        assert asked.acquire(blocking=False)
        try:
            time.sleep(0.001)
            return own(*arguments, **options)
        finally:
            asked.release()

    with faulty_store() as store, open_input(_put(store)) as file:
        store.faults.update(cat_file=alone, info=alone)
        file.expect([(0, len(CONTENT))])
        with ThreadPoolExecutor(3) as threads:
            starts = range(0, len(CONTENT), 5000)
            assert b"".join(threads.map(lambda start: file.read(start, 5000), starts)) == CONTENT


def test_a_closed_file_is_told() -> None:
    with faulty_store() as store:
        store.pipe_file("/a", CONTENT)
        file = RemoteFile(locate("faulty://a"))
        file.close()
        with pytest.raises(ValueError, match="is closed"):
            file.read(0, 1)


def test_a_reader_is_not_used_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for threads that are not there, and share connections with the process before."""
    with faulty_store() as store, open_input(_put(store)) as file:
        file.expect([(0, len(CONTENT))])
        assert file.read(0, 1) == CONTENT[:1], "all is here now"
        process = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: process + 1)
        for call in (lambda: file.read(0, 1), file.check_unchanged, lambda: list(file.path.parent.iterdir())):
            with pytest.raises(OSError, match=r"opened in another process, .*; open it anew in this one: 'faulty:///"):
                call()
        with open_input(locate("faulty://a")) as anew:
            assert anew.read(0, 10) == CONTENT[:10]


def test_a_folder_is_no_file() -> None:
    with faulty_store() as store:
        store.pipe_file("/a/b", CONTENT)
        with pytest.raises(IsADirectoryError):
            open_input(locate("faulty://a"))


def test_a_whole_file_that_is_too_large_is_refused() -> None:
    with faulty_store() as store:
        store.pipe_file("/a", CONTENT)
        assert read_file(locate("faulty://a"), len(CONTENT)) == CONTENT
        with pytest.raises(OSError, match="expected at most 10 bytes"):
            read_file(locate("faulty://a"), 10)


def test_pieces_hold_all_ranges_and_skip_gaps() -> None:
    far = 10 * PIECE_NBYTES
    assert merged([(100, 200), (0, 50)]) == [(0, 200)]
    assert merged([(0, 10), (9 + GAP_NBYTES, 9 + GAP_NBYTES + 5)]) == [(0, 14 + GAP_NBYTES)]
    assert merged([(0, 10), (10 + GAP_NBYTES, 11 + GAP_NBYTES)]) == [(0, 10), (10 + GAP_NBYTES, 11 + GAP_NBYTES)]
    assert merged([(5, 5)]) == []
    assert merged([(far, far + PIECE_NBYTES + 1)]) == [
        (far, far + PIECE_NBYTES),
        (far + PIECE_NBYTES, far + PIECE_NBYTES + 1),
    ]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.storage.remote_file.PIECE_NBYTES", 1000)


@pytest.mark.usefixtures("small_pieces")
def test_expected_ranges_come_in_pieces_a_batch_ahead() -> None:
    with faulty_store() as store, open_input(_put(store)) as file:
        file.expect([(0, len(CONTENT))])
        out = memoryview(bytearray(len(CONTENT)))
        for start in range(0, len(CONTENT), 100):
            file.read_into(start, out[start : start + 100])
            ahead = max(stop for _, stop in ranges_asked(store))
            assert ahead <= (start // (1000 * BATCH) + 2) * 1000 * BATCH, "at most the next batch is under way"
        assert out == CONTENT
        assert sorted(ranges_asked(store)) == [(start, start + 1000) for start in range(0, len(CONTENT), 1000)]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("step", [1, -1, 7, -7])
def test_at_most_twelve_pieces_are_kept(step: int) -> None:
    """In whatever order they are read."""
    alive = 0

    class Piece(bytes):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def fetch(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        nonlocal alive
        alive += len(ranges)
        return [Piece(CONTENT[start:stop]) for start, stop in ranges]

    pieces = Pieces(fetch, lambda: None, [(0, len(CONTENT))])
    for start in range(0, len(CONTENT), 1000)[::step]:
        assert bytes(pieces.part(start, start + 1000) or b"") == CONTENT[start : start + 1000]
        for thread in threading.enumerate():
            if thread.name == "tensorwire-fetch":
                thread.join()
        assert alive <= 3 * BATCH == 12


@pytest.mark.usefixtures("small_pieces")
def test_threads_that_read_in_another_order_get_the_same_bytes() -> None:
    with faulty_store() as store, open_input(_put(store)) as file:
        file.expect([(0, len(CONTENT))])
        out = bytearray(len(CONTENT))
        view = memoryview(out)
        starts = list(range(0, len(CONTENT), 700))

        def read(mine: list[int]) -> None:
            for start in mine:
                stop = min(start + 700, len(CONTENT))
                file.read_into(start, view[start:stop])

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(read, (starts[part::3][:: 1 - 2 * (part == 2)] for part in range(3))))
        assert out == CONTENT


@pytest.mark.usefixtures("small_pieces")
def test_an_object_that_is_replaced_while_it_is_read_is_told() -> None:
    with faulty_store() as store, open_input(_put(store)) as file:
        file.expect([(0, len(CONTENT))])
        file.read(0, 100)
        store.pipe_file("/a", CONTENT[::-1])
        with pytest.raises(OSError, match="the object changed while it was read"):
            file.read(0, len(CONTENT))


@pytest.mark.parametrize(
    "mark",
    [
        "ETag", "etag", "md5Hash", "generation",  # s3fs; adlfs and others; gcsfs
        "xet_hash", "blob_id", "sha",  # huggingface_hub; github
        "Content-MD5", "Digest", "Last-Modified",  # http
        "LastModified", "last_modified", "mtime", "modificationTime", "modify", "created",  # times of all the others
    ],
)  # fmt: skip
def test_another_content_of_the_same_size_is_told_by_any_mark(mark: str) -> None:
    state = "one"

    def info(own: Any, path: str) -> Any:
        return {"name": path, "size": len(CONTENT), "type": "file", mark: state}

    with faulty_store(info=info) as store, open_input(_put(store)) as file:
        file.check_unchanged()
        state = "two"
        with pytest.raises(OSError, match="the object changed while it was read"):
            file.check_unchanged()


def test_a_listing_that_a_store_keeps_is_not_believed() -> None:
    """huggingface_hub keeps listings although it is told not to."""
    kept: dict[str, Any] = {}

    def info(own: Any, path: str) -> Any:
        return kept.setdefault(path, own(path))

    def forget(own: Any, path: str) -> None:
        kept.pop(path, None)

    with faulty_store(info=info, invalidate_cache=forget) as store, open_input(_put(store)) as file:
        file.check_unchanged()
        store.pipe_file("/a", CONTENT[1:])
        with pytest.raises(OSError, match="the object changed while it was read"):
            file.check_unchanged()
        store.pipe_file("/a", CONTENT[2:])
        assert open_input(locate("faulty://a")).nbytes == len(CONTENT) - 2


def test_an_error_of_a_fetch_comes_to_each_reader() -> None:
    with faulty_store() as store:
        place = _put(store)
        store.faults["cat_file"] = raising(ConnectionResetError(104, "Connection reset by peer"))
        with open_input(place) as file:
            file.expect([(0, len(CONTENT))])
            for _ in range(2):
                with pytest.raises(ConnectionResetError, match="faulty:///a"):
                    file.read(0, 100)


@pytest.mark.parametrize("cut", [-1, 100])
def test_a_body_of_another_size_is_told(cut: int) -> None:
    """A server that cuts a body, or answers a range with all of it."""

    def other(own: Any, path: str, start: int, stop: int) -> bytes:
        return own(path)[start : stop - 1] if cut < 0 else own(path)

    text = r"expected 500 bytes from 10000 on, got \d+ from the store"
    with (
        faulty_store(cat_file=other) as store,
        open_input(_put(store)) as file,
        pytest.raises(TruncatedDataError, match=text),
    ):
        file.read(10_000, 500)


def test_a_server_that_tells_no_size_is_refused() -> None:
    with faulty_store(info=lambda own, path, **options: {**own(path), "size": None}) as store:
        place = _put(store)
        with pytest.raises(OSError, match="does not tell the size of this: download it first"):
            open_input(place)


@pytest.mark.parametrize("name", ["iterdir", "files", "glob"])
def test_a_folder_has_so_many_objects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.storage.remote.MAX_ENTRIES", 2)
    with faulty_store() as store:
        folder = locate("faulty://run")
        for number in range(3):
            store.pipe_file(f"/run/{number}", b"")
            if number == 1:
                assert len(list(folder.glob("*") if name == "glob" else getattr(folder, name)())) == 2
        with pytest.raises(OSError, match="expected at most 2 objects in a folder, got more: 'faulty:///run'"):
            list(folder.glob("*") if name == "glob" else getattr(folder, name)())


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    """A folder with a zip, a packed one and a tar of two files, one of them in a folder."""
    (tmp_path / "a").write_bytes(CONTENT)
    for name, kind in (("a.zip", zipfile.ZIP_STORED), ("packed.zip", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(tmp_path / name, "w", kind) as archive:
            archive.write(tmp_path / "a", "a")
            archive.write(tmp_path / "a", "sub/b")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a", "a")
        archive.add(tmp_path / "a", "sub/b")
    return tmp_path


@pytest.mark.parametrize("kind", ["zip://{}::file://{}/a.zip", "zip://{}::{}/packed.zip", "tar://{}::file://{}/a.tar"])
@pytest.mark.parametrize("name", ["a", "sub/b"])
def test_a_file_in_an_archive(kind: str, name: str, archives: Path) -> None:
    place = locate(kind.format(name, archives))
    assert isinstance(place, RemotePath)
    assert place.path_in(place.parent) == place.name == name[-1]
    with open_input(place) as file:
        assert file.read(100_000, 10) + file.read(0, 10) == CONTENT[100_000:100_010] + CONTENT[:10]
    root = locate(kind.format("", archives))
    assert isinstance(root, RemotePath)
    assert {each.path_in(root) for each in root.files()} == {"a", "sub/b"}
    assert {each.path_in(root) for each in root.iterdir()} == {"a", "sub"}
    assert (root / name).is_file()
    assert not (root / "none").exists()


@pytest.mark.parametrize("kind", ["simplecache::zip://sub/b::{}", "zip://sub/b::simplecache::{}", "zip://sub/b::{}"])
def test_a_file_in_an_archive_of_a_server(kind: str, archives: Path) -> None:
    with serving(x=(archives / "a.zip").read_bytes()) as web:
        place = locate(kind.format(f"{web.url}/x?token=hunter2"))
        with open_input(place) as file:
            assert file.read(100_000, 10) == CONTENT[100_000:100_010]
        assert "hunter2" not in str(place)


def _put(store: Any) -> Any:
    store.pipe_file("/a", CONTENT)
    return locate("faulty://a")
