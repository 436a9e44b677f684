"""What FrameEncoder can ask for besides the tensor: alignments, padding, extensions; and what a reader checks of it."""

from __future__ import annotations

from typing import Any

import pytest

import tensorwire
from reference.tensorwire_reference import decode
from tensorwire import CorruptDataError, FormatError, FrameEncoder, FrameReader, TruncatedDataError
from tests.support import registry
from tests.support.encoders import encode
from tests.support.frames import decompress

NUMEL = 50_001
BASE = registry.weights("BF16", NUMEL, "base").tobytes()
CONTENT = bytes(b ^ (i % 9001 == 0) for i, b in enumerate(BASE))
OWNER = bytes.fromhex("9e0f5a7c31d24b86")  # drawn at random once: private extensions begin with such bytes


def encoded(*, relative: bool = False, **options: Any) -> bytes:
    return encode(CONTENT, "BF16", (NUMEL,), base=BASE if relative else None, **options)


# Alignments and padding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [False, True], ids=["plain", "relative"])
@pytest.mark.parametrize(
    ("block", "frame"), [(32, 32), (32, 2**21), (64, 64), (128, 4096), (512, 1024), (4096, 4096), (4096, None)]
)
def test_alignments(block: int, frame: int | None, relative: bool) -> None:
    data = encoded(relative=relative, block_alignment=block, frame_alignment=frame)
    info = tensorwire.frame_info(data)
    frame = frame or block
    assert (info.block_alignment, info.frame_alignment) == (block, frame)
    assert info.header_nbytes % frame == info.frame_nbytes % frame == 0
    assert info.frame_nbytes == len(data) == info.header_nbytes + info.data_nbytes + info.padding_nbytes
    blocks = FrameReader(data).block_infos(data[info.header_nbytes :])
    assert all(each.offset % block == each.nbytes % block == 0 for each in blocks)
    base = BASE if relative else None
    assert decompress(data, base) == decode(data, base).data == CONTENT
    assert decompress(data, base, verify=False) == CONTENT
    assert bytes(tensorwire.decompress_range(data, 9001, 20_000, base=base)) == CONTENT[9001:20_000]


@pytest.mark.parametrize("chunk", [1, 777, 65_536])
def test_chunks_of_any_size_give_the_same_frame(chunk: int) -> None:
    content, shape = CONTENT[:2000] if chunk == 1 else CONTENT, (1000 if chunk == 1 else NUMEL,)
    options: dict[str, Any] = {"block_alignment": 256, "frame_alignment": 4096, "extensions": {2**31: OWNER + b"x"}}
    assert encode(content, "BF16", shape, chunk=chunk, **options) == encode(content, "BF16", shape, **options)


def test_by_default_the_frame_is_that_of_compress() -> None:
    assert encoded() == tensorwire.compress(CONTENT, dtype="BF16")


@pytest.mark.parametrize(("asked", "least"), [(0, 0), (1, 1), (1024, 1024), (2**21, 2**21)])
def test_padding_is_at_least_what_was_asked_for(asked: int, least: int) -> None:
    data = encoded(padding_nbytes=asked)
    info = tensorwire.frame_info(data)
    assert least <= info.padding_nbytes < least + 32
    assert decompress(data) == CONTENT
    assert (data[info.header_nbytes :]).startswith(encoded()[info.header_nbytes :])


@pytest.mark.parametrize("relative", [False, True], ids=["plain", "relative"])
def test_padding_is_there_and_zero(relative: bool) -> None:
    data, base = bytearray(encoded(relative=relative, padding_nbytes=96)), BASE if relative else None
    info = tensorwire.frame_info(data)
    start = info.header_nbytes + info.data_nbytes
    for place in (start, start + 31, len(data) - 1):
        data[place] = 1
        for call in (
            lambda: decompress(data, base),
            lambda: decompress(data, base, verify=False),
            lambda: tensorwire.decompress_range(data, 0, 2, base=base),
        ):
            with pytest.raises(CorruptDataError, match="zeros behind the blocks") as caught:
                call()
            assert caught.value.byte == start
        data[place] = 0
    with pytest.raises(TruncatedDataError):
        decompress(data[:-1], base)
    with pytest.raises(CorruptDataError):
        decompress(data + b"\0", base)


def test_a_frame_that_changes_nothing_has_extensions_and_padding_too() -> None:
    data = encode(
        BASE, "BF16", (NUMEL,), base=BASE, padding_nbytes=64, frame_alignment=256, extensions={2**31 + 7: OWNER}
    )
    info = tensorwire.frame_info(data)
    assert (info.data_nbytes, info.frame_nbytes % 256, len(data)) == (0, 0, info.frame_nbytes)
    assert info.padding_nbytes >= 64
    assert FrameReader(data).extensions == {2**31 + 7: OWNER}
    assert decompress(data, BASE) == decode(data, BASE).data == BASE


@pytest.mark.parametrize(
    "options",
    [
        *({"block_alignment": number} for number in (0, 16, 48, 8192, 2**31, -32)),
        *({"frame_alignment": number} for number in (16, 96, 2**22, 2**31)),
        {"block_alignment": 4096, "frame_alignment": 2048},
        *({"padding_nbytes": number} for number in (-1, 2**21 + 1, 2**32)),
    ],
    ids=str,
)
def test_forms_that_are_none(options: dict[str, Any]) -> None:
    """The error has the number that was given last, as it was given."""
    with pytest.raises(ValueError, match=rf"expected .*, got {list(options.values())[-1]}$"):
        FrameEncoder("BF16", (NUMEL,), **options)


def test_what_an_encoder_says_of_arguments_of_another_kind() -> None:
    for shape in (10, ("10",), (1.5,)):
        with pytest.raises(TypeError, match="expected a shape as a sequence of whole numbers, got"):
            FrameEncoder("BF16", shape)  # type: ignore[arg-type]
    plain, relative = FrameEncoder("BF16", (NUMEL,)), FrameEncoder("BF16", (NUMEL,), relative=True)
    with pytest.raises(ValueError, match=r"expected finish\(\) before info"):
        _ = plain.info
    out = bytearray(plain.data_bound(len(CONTENT)))
    with pytest.raises(ValueError, match="expected no base for a plain frame, got one"):
        plain.encode(CONTENT, out, base=BASE)
    with pytest.raises(ValueError, match=r"expected base=, .* for a relative frame, got none"):
        relative.encode(CONTENT, out)


# Extensions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extensions",
    [
        {},
        {1: b"\1\0\0\0"},
        {2**31 + 5: OWNER},
        {2**32 - 1: OWNER + b"last", 2**31: OWNER + b"private", 2**31 + 77: bytes(range(256)), 1: b"1234"},
        {2**31 + 99: bytes(100_000)},
    ],
    ids=lambda each: str(list(each)),
)
@pytest.mark.parametrize("relative", [False, True], ids=["plain", "relative"])
def test_extensions_come_back(extensions: dict[int, bytes], relative: bool) -> None:
    """Tags that nobody has named are kept readable, and nobody else minds them."""
    data = encoded(relative=relative, extensions=extensions)
    reader = FrameReader(data)
    assert reader.extensions == extensions
    assert list(reader.extensions) == sorted(extensions)
    assert reader.info.header_nbytes == FrameReader.header_size(data[:128])
    base = BASE if relative else None
    assert decompress(data, base) == decode(data, base).data == CONTENT
    plain = encoded(relative=relative)
    assert data[reader.info.header_nbytes :] == plain[tensorwire.frame_info(plain).header_nbytes :]


def test_extensions_may_be_any_buffer() -> None:
    first, second = 2**31 + 8, 2**31 + 9
    data = encoded(extensions={second: memoryview(b"abcdefgh").cast("H"), first: bytearray(OWNER)})
    assert FrameReader(data).extensions == {first: OWNER, second: b"abcdefgh"}


@pytest.mark.parametrize("content", [b"", b"123", b"12345"])
def test_the_encoder_has_a_number_of_four_bytes(content: bytes) -> None:
    """It is refused before anything is encoded."""
    with pytest.raises(ValueError, match=rf"expected 4 bytes for the extension with tag 1, .*, got {len(content)}"):
        FrameEncoder("BF16", (NUMEL,), extensions={1: content})


@pytest.mark.parametrize("content", [b"", OWNER[:7]])
def test_a_private_extension_says_whose_it_is(content: bytes) -> None:
    with pytest.raises(
        ValueError, match=rf"expected 8 bytes or more for the extension .* random .*, got {len(content)}"
    ):
        FrameEncoder("BF16", (NUMEL,), extensions={2**31 + 1: content})


@pytest.mark.parametrize("tag", [-1, 0, 2, 3, 4, 5, 6, 7, 77, 2**30, 2**31 - 1, 2**32])
def test_tags_that_belong_to_the_format(tag: int) -> None:
    """Readers skip them, whatever they will mean; writers of today leave them alone."""
    with pytest.raises(ValueError, match=rf"expected tags of your own, from 2\*\*31 .*, got {tag}$"):
        FrameEncoder("BF16", (NUMEL,), extensions={tag: b""})


@pytest.mark.parametrize(
    ("extensions", "text"),
    [
        ({"a": b""}, "expected extensions as a mapping of tags"),
        ([1], "expected extensions as a mapping of tags"),
        ({2**31: "a"}, "expected bytes for the extension with tag 2147483648, got str"),
    ],
    ids=["tag", "list", "text"],
)
def test_what_is_no_extension(extensions: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        FrameEncoder("BF16", (NUMEL,), extensions=extensions)


def test_extensions_are_under_the_second_checksum() -> None:
    data = bytearray(encoded(extensions={2**31: OWNER + b"notes"}))
    data[data.index(b"notes")] ^= 1
    tensorwire.frame_info(data)
    with pytest.raises(FormatError, match="checksum"):
        FrameReader(data)
