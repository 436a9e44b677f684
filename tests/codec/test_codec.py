"""Round trips, sizes, determinism: what the codec promises for good data."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorwire
from tensorwire import TruncatedDataError
from tensorwire.codec import ContentHasher, FrameEncoder, FrameReader, content_hash, exponent_histogram
from tensorwire.codec.frame.chunks import new_frame
from tests.support import registry
from tests.support.drawn import drawn
from tests.support.families import each_of
from tests.support.frame_surgery import content_hash as specified_content_hash
from tests.support.frames import compress, decompress
from tests.support.registry import DTYPES, FLOATS, PROFILES, Input


def size_bound(item: Input, info: tensorwire.FrameInfo) -> int:
    """The bound of docs/format.md, "Size bound"."""
    header = -(-(128 + 8 * len(item.shape) + 8 * info.num_blocks) // 64) * 64
    return header + -(-len(item.data) // 32) * 32 + 32


def check_round_trip(item: Input, profile: str) -> None:
    memory = bytearray(item.data)
    options = {"dtype": item.dtype, "shape": item.shape, "profile": profile}
    frame = compress(item, profile)
    assert tensorwire.compress(memory, **options, out=bytearray(tensorwire.compress_bound(memory, **options))) == frame
    assert memory == item.data, "what is compressed is never written to"
    info = tensorwire.frame_info(frame)
    assert (info.dtype, info.shape, info.profile) == (item.dtype, item.shape, profile)
    assert info.uncompressed_nbytes == len(item.data)
    assert info.frame_nbytes == len(frame) <= size_bound(item, info)
    assert info.content_hash == specified_content_hash(item.data)
    assert decompress(frame) == item.data
    assert decompress(frame, verify=False) == item.data


@pytest.mark.parametrize("profile", PROFILES)
@each_of(registry.small_inputs(), family=lambda item: item.dtype, name=str)
def test_round_trip(item: Input, profile: str) -> None:
    check_round_trip(item, profile)


@pytest.mark.parametrize("profile", PROFILES)
@each_of(registry.pattern_inputs(), family=lambda item: item.dtype, name=str)
def test_round_trip_of_every_pattern(item: Input, profile: str) -> None:
    check_round_trip(item, profile)


# The others have the words of one of these, and are in no other way split.
BOUNDARY_DTYPES = [
    dtype if dtype in (*FLOATS, "F64", "I32", "I16", "I8", "BOOL", "C64", "F4", "MXINT_12") else slow_param
    for dtype in DTYPES
    for slow_param in (pytest.param(dtype, marks=pytest.mark.slow),)
]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", BOUNDARY_DTYPES)
def test_round_trip_around_run_and_block_boundaries(dtype: str, profile: str) -> None:
    sample = registry.opaque_input(dtype, 8) if dtype in registry.OPAQUE else registry.tiny_input(dtype)
    block_words = tensorwire.frame_info(compress(sample, profile)).block_words
    if dtype in registry.OPAQUE:
        items = [registry.opaque_input(dtype, count + 1) for count in registry.boundary_counts(block_words)]
    else:
        items = registry.boundary_inputs(dtype, block_words)
    for item in items:
        check_round_trip(item, profile)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_outlier_per_block_costs_little(dtype: str) -> None:
    block_words = tensorwire.frame_info(compress(registry.tiny_input(dtype))).block_words
    words = registry.weights(dtype, 8 * block_words)
    calm = compress(Input("calm", dtype, words.shape, words.tobytes()))
    words[::block_words] = np.iinfo(words.dtype).max
    item = Input("outliers", dtype, words.shape, words.tobytes())
    assert decompress(compress(item)) == item.data
    assert len(compress(item)) < len(calm) * 1.02


@pytest.mark.parametrize("profile", ["fast", "compact"])
@pytest.mark.parametrize(("dtype", "most"), [("BF16", 0.72), ("F16", 0.92), ("F32", 0.88), ("F8_E5M2", 0.92)])
def test_weights_shrink(dtype: str, most: float, profile: str) -> None:
    words = registry.weights(dtype, 200_000)
    assert len(compress(Input("w", dtype, words.shape, words.tobytes()), profile)) < most * words.nbytes


@pytest.mark.parametrize("profile", ["fast", "compact"])
@pytest.mark.parametrize("dtype", ["BF16", "F32", "I16"])
def test_columns_of_zeros_are_found(dtype: str, profile: str) -> None:
    """Wherever they stand: a column of a row of 2^k words must not escape the encoder's sample."""
    word = registry.word_type(dtype)
    words = np.random.default_rng(5).integers(1, np.iinfo(word).max, (256, 512), dtype=word)
    for first in (0, 1):
        pruned = words.copy()
        pruned[:, first::2] = 0
        assert len(compress(Input("w", dtype, pruned.shape, pruned.tobytes()), profile)) < 0.6 * words.nbytes


def test_a_profile_never_loses_to_a_faster_one() -> None:
    """`fast` has all kinds of `enec`, `compact` all of `fast`, and each takes the smallest."""
    lost = []
    mixed = [registry.mixed_input(dtype) for dtype in (*FLOATS, *registry.PLAIN)]
    for item in [*registry.small_inputs(), *registry.pattern_inputs(), *mixed]:
        enec, fast, compact = (len(compress(item, profile)) for profile in ("enec", "fast", "compact"))
        if fast > 1.005 * enec or compact > fast:
            lost.append((str(item), enec, fast, compact))
    assert not lost


@pytest.mark.parametrize("profile", PROFILES)
@drawn(25, 60)
@given(data=st.data())
def test_round_trip_of_arbitrary_bytes(profile: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from((*FLOATS, *registry.PLAIN)))
    word = np.dtype(registry.word_type(dtype))
    chunk = st.one_of(
        st.binary(max_size=300),
        st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(0, 5000)),
        st.builds(lambda unit, count: unit * count, st.binary(min_size=1, max_size=16), st.integers(0, 500)),
    )
    content = b"".join(data.draw(st.lists(chunk, max_size=6)))
    content = content[: len(content) // word.itemsize * word.itemsize]
    check_round_trip(Input("", dtype, (len(content) // word.itemsize,), content), profile)


# Threads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", ["BF16", "F32", "F8_E4M3", "I32", "U8"])
def test_any_number_of_threads_decodes(dtype: str, profile: str) -> None:
    words = registry.weights(dtype, 300_001, "threads")
    frame = compress(Input("", dtype, words.shape, words.tobytes()), profile)
    for threads in (1, 2, 3, 16):
        assert decompress(frame, threads=threads) == words.tobytes()


def test_concurrent_calls_do_not_disturb_each_other() -> None:
    items = [item for item in registry.small_inputs() if item.dtype in ("BF16", "F32")]
    expected = [compress(item, "compact") for item in items]

    def work(_: int) -> None:
        for item, frame in zip(items, expected, strict=True):
            assert compress(item, "compact", threads=2) == frame
            assert decompress(frame, threads=2) == item.data

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# Chunks -------------------------------------------------------------------------------------------------------------


def test_what_an_encoder_refuses_changes_nothing() -> None:
    content = registry.weights("BF16", 100_000, "refused").tobytes()
    encoder = FrameEncoder("BF16", (100_000,))
    out = bytearray(encoder.data_bound(2 * len(content)))
    with pytest.raises(ValueError, match="the last 200000 bytes"):
        encoder.encode(content + b"\0", out)
    with pytest.raises(ValueError, match="an output of"):
        encoder.encode(content, bytearray(10))
    with pytest.raises(ValueError, match="read-only"):
        encoder.encode(content, bytes(out))
    with pytest.raises(ValueError, match="bytes of content"):
        encoder.finish()
    assert encoder.consumed_nbytes == 0
    blocks = out[: encoder.encode(content, out)]
    assert encoder.finish() + blocks == tensorwire.compress(content, dtype="BF16")


# (shape, words of a block): the multiple of lcm(row, 256) nearest to 32768 between 16384 and 65536, if there is one.
@pytest.mark.parametrize(
    ("dtype", "shape", "profile", "expected"),
    [
        ("BF16", (1_000_000,), "fast", 32_768),
        ("BF16", (), "fast", 32_768),
        ("BF16", (1000, 1), "fast", 32_768),
        ("BF16", (0, 1000), "fast", 32_768),
        ("BF16", (384, 1536), "fast", 32_256),
        ("BF16", (1000, 384), "enec", 33_024),
        ("F32", (8, 4096, 11_008), "resident", 33_024),
        ("BF16", (10, 65_536), "fast", 65_536),
        ("BF16", (10, 49_152), "fast", 49_152),
        ("BF16", (10, 65_537), "fast", 32_768),
        ("BF16", (10, 257), "fast", 32_768),
        ("BF16", (10, 2**40), "fast", 32_768),
        ("BF16", (1000, 1000), "compact", 256_000),
        ("BF16", (10, 196_608), "compact", 196_608),
        ("F4", (10, 2000), "fast", 32_000),
        ("F4", (10, 2001), "fast", 32_768),
        ("MXINT_12", (10, 2**20), "fast", 32_768),
    ],
)
def test_blocks_are_whole_rows_where_that_is_possible(
    dtype: str, shape: tuple[int, ...], profile: str, expected: int
) -> None:
    bits = {"F4": 4, "MXINT_12": 12}.get(dtype, 0)
    assert new_frame(dtype, bits, shape, profile).block_words == expected


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", ["BF16", "F32", "U8"])
def test_any_range_of_content(dtype: str, profile: str) -> None:
    words = registry.weights(dtype, 150_000, "ranges")
    content = words.tobytes()
    frame = compress(Input("", dtype, words.shape, content), profile)
    generator = registry.rng("ranges")
    spans = [(0, 0), (0, 1), (len(content) - 1, len(content)), (len(content), len(content)), (0, len(content))]
    spans += [tuple(sorted(generator.integers(0, len(content), 2).tolist())) for _ in range(60)]
    spans += [(start, start + 3) for start in range(65_530, 65_545)]
    for start, stop in spans:
        assert bytes(tensorwire.decompress_range(frame, start, stop)) == content[start:stop], (start, stop)


def test_a_range_needs_only_its_blocks() -> None:
    words = registry.weights("BF16", 500_000)
    content = words.tobytes()
    frame = compress(Input("", "BF16", words.shape, content))
    nbytes = FrameReader.header_size(frame[: FrameReader.MIN_HEADER_NBYTES])
    reader = FrameReader(frame[:nbytes])
    assert reader.info == tensorwire.frame_info(frame)
    lo, hi = reader.data_range(400_000, 400_010)
    assert hi - lo < 2 * reader.info.block_words * 2
    out = bytearray(10)
    reader.decode(frame[nbytes + lo : nbytes + hi], out, start=400_000, stop=400_010, data_offset=lo)
    assert out == content[400_000:400_010]
    with pytest.raises(TruncatedDataError, match="expected the blocks at bytes"):
        reader.decode(frame[nbytes + lo : nbytes + hi - 32], out, start=400_000, stop=400_010, data_offset=lo)
    with pytest.raises(ValueError, match="expected the blocks at bytes"):
        reader.decode(frame[nbytes + lo : nbytes + hi], out, start=400_000, stop=400_010, data_offset=lo + 32)


@pytest.mark.parametrize("span", [(-1, 3), (3, 2), (0, 601), (601, 601)])
def test_range_outside_the_tensor(span: tuple[int, int]) -> None:
    frame = compress(registry.tiny_input("BF16"))
    with pytest.raises(ValueError, match=r"expected a range within \[0, 600\)"):
        tensorwire.decompress_range(frame, *span)


def test_block_infos_add_up() -> None:
    block_words = new_frame("BF16", 0, (10**6,), "fast").block_words
    words = registry.weights("BF16", 3 * block_words + 100)
    words[block_words : 2 * block_words] = 0
    frame = compress(Input("", "BF16", words.shape, words.tobytes()))
    reader = FrameReader(frame)
    infos = reader.block_infos(frame[reader.info.header_nbytes :])
    assert len(infos) == reader.info.num_blocks
    assert sum(info.num_words for info in infos) == len(words)
    assert sum(info.nbytes for info in infos) == reader.info.data_nbytes
    assert [info.offset for info in infos[1:]] == [info.offset + info.nbytes for info in infos[:-1]]
    assert [info.kind for info in infos[:3]] == ["cascade", "constant", "cascade"]
    for info in infos:
        assert info.rest_nbytes + info.kind_nbytes <= info.nbytes


# Hashes and counts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256, 257, 131_071, 131_072, 131_073, 2_000_000])
def test_content_hash_is_the_specified_one(nbytes: int) -> None:
    content = registry.rng("hash").bytes(nbytes)
    assert content_hash(content) == specified_content_hash(content)
    for step in (3 * 131_072, 100_001, 131_073, 400_000):
        hasher = ContentHasher(threads=2)
        for start in range(0, nbytes, step):
            hasher.update(content[start : start + step])
        assert hasher.hexdigest() == specified_content_hash(content)


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponent_histogram(dtype: str) -> None:
    words = registry.random_words(dtype, 3001)
    _, exponent_bits, mantissa_bits, _ = FLOATS[dtype]
    exponents = (words >> words.dtype.type(mantissa_bits)) & words.dtype.type((1 << exponent_bits) - 1)
    expected = np.bincount(exponents, minlength=256)
    assert exponent_histogram(dtype, words.tobytes()) == expected.tolist()
    assert exponent_histogram(dtype, words.tobytes(), expected.tolist()) == (2 * expected).tolist()


@pytest.mark.parametrize(("dtype", "nbytes"), [("I32", 8), ("I64", 8), ("NO_SUCH", 8), ("BF16", 3)])
def test_exponent_histogram_of_something_without(dtype: str, nbytes: int) -> None:
    with pytest.raises(ValueError, match="exponent"):
        exponent_histogram(dtype, bytes(nbytes))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["BF16", "F32", "U8"])
def test_tensor_beyond_4_gib(dtype: str) -> None:
    nbytes = 2**32 + 6 * 2**20 + 40_000
    # Pages that nobody has written to take no memory.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    words = registry.weights(dtype, 3_000_000).tobytes()[:3_000_000]
    for start in (0, 2**31 - 1000, 2**32 - 1_000_000, nbytes - len(words)):
        pages[start : start + len(words)] = words
    shape = (nbytes // np.dtype(registry.word_type(dtype)).itemsize,)
    frame = tensorwire.compress(pages, dtype=dtype, shape=shape)
    assert tensorwire.frame_info(frame).uncompressed_nbytes == nbytes
    assert len(frame) < 2**28
    hasher, window = ContentHasher(), 2**29
    for start in range(0, nbytes, window):
        stop = min(start + window, nbytes)
        chunk = tensorwire.decompress_range(frame, start, stop)
        assert chunk == memoryview(pages)[start:stop]
        hasher.update(chunk)
    assert hasher.hexdigest() == tensorwire.frame_info(frame).content_hash
