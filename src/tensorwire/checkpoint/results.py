"""What the operations on checkpoints return: plain data, ready to be printed or turned into JSON.

Every class is a frozen dataclass of numbers, strings, tuples and dicts of these, so ``dataclasses.asdict`` and
``json.dumps`` take it as it is. Paths of files inside a checkpoint are relative, with forward slashes; the path of a
single file is its own name. Sizes are in bytes, times in seconds. What these attributes mean is the same everywhere:

Attributes:
    src, dst, path, a, b, base: the paths of checkpoints as given; None as `base` if there was none, of several bases
        the newest.
    dtype: as in safetensors.
    seconds: wall time.
    changed: files beside the tensors that are not what they were when the checkpoint was compressed.
    excluded: files and directories that are left out, or were when the checkpoint was compressed: those that match
        `exclude`, and the history of a clone. A directory's path ends with a slash.
    ignored: files and directories in a compressed directory that its manifest does not know; they are not carried over.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._ground.text import count, in_a_line, size


def _ratio(uncompressed: int, compressed: int) -> float:
    return uncompressed / compressed if compressed else 0.0


@dataclass(frozen=True)
class ChangedFile:
    """A file beside the tensors that is not what it was when the checkpoint was compressed.

    Attributes:
        path: relative to the checkpoint.
        status: "edited" (it holds other bytes; damage looks the same) or "missing".
        outcome: what decompressing makes of it: "restored" (the manifest holds the original), "kept" (the file that is
            there is taken) or "left out" (there is none).
    """

    path: str
    status: str
    outcome: str

    @property
    def message(self) -> str:
        """The fact as a sentence."""
        fact = "is missing" if self.status == "missing" else "was edited or damaged after it was compressed"
        consequence = {
            "restored": "decompressing restores the original, which tensorwire.json holds",
            "kept": "decompressing keeps it as it is now",
            "left out": "decompressing leaves it out",
        }[self.outcome]
        return f"{self.path} {fact}; {consequence}"


@dataclass(frozen=True)
class FileReport:
    """One file of a checkpoint that was read and written.

    Attributes:
        path: relative to the checkpoint.
        kind: "safetensors" or "torch" (coded or decoded), "replaced" (config.json or an index that had to change),
            "copied", "manifest" (tensorwire.json, which a compressed directory has and its original has not), or
            "index" (which "convert" writes).
        nbytes_in: size of the file read, for "convert" of what its tensors take in the checkpoint; 0 if there is none.
        nbytes_out: size of the file written; 0 if there is none.
        num_tensors: tensors in the file, of a torch file its large storages; 0 if the kind is another.
        num_compressed: how many of them are stored compressed on the compressed side.
        num_relative: how many of these are relative to a base there.
        resumed: an earlier, interrupted run had already finished it.
    """

    path: str
    kind: str
    nbytes_in: int
    nbytes_out: int
    num_tensors: int = 0
    num_compressed: int = 0
    num_relative: int = 0
    resumed: bool = False


@dataclass(frozen=True)
class CheckpointReport:
    """What `compress_checkpoint`, `decompress_checkpoint`, `transcode_checkpoint`, `apply_checkpoint` or
    `convert_checkpoint` did.

    Attributes:
        action: "compress", "decompress", "transcode", "apply" or "convert".
        profile: profile of the compressed side of the operation, after it for "transcode"; None where it is not known.
        files: in the order of their names.
        exact: the checkpoint is the original byte for byte, by the SHA-256 of every file. False after decompressing a
            file without a record of its original, which gives all tensors bit for bit under a new header, and where a
            changed file was kept or left out; always True for "compress", which writes the record.
        notices: what files had that their results do not get, such as access control lists; for "convert" what is no
            tensor; and where something is kept that came to `dst` at the last moment.
    """

    action: str
    src: str
    dst: str
    profile: str | None
    files: tuple[FileReport, ...]
    seconds: float
    exact: bool = True
    ignored: tuple[str, ...] = ()
    changed: tuple[ChangedFile, ...] = ()
    notices: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    base: str | None = None

    def __repr__(self) -> str:
        return in_a_line(
            self,
            f"{self.action} {self.src} to {self.dst}",
            self.profile,
            count(len(self.files), "file"),
            f"{size(self.nbytes_in)} to {size(self.nbytes_out)}",
            f"ratio {self.ratio:.3f}",
            f"{self.seconds:.2f} s",
        )

    @property
    def nbytes_in(self) -> int:
        """Bytes read: the sum over all files."""
        return sum(file.nbytes_in for file in self.files)

    @property
    def nbytes_out(self) -> int:
        """Bytes written: the sum over all files."""
        return sum(file.nbytes_out for file in self.files)

    @property
    def ratio(self) -> float:
        """Uncompressed over compressed size of all files; for "transcode" old compressed over new compressed size."""
        if self.action in ("decompress", "apply", "convert"):
            return _ratio(self.nbytes_out, self.nbytes_in)
        return _ratio(self.nbytes_in, self.nbytes_out)


@dataclass(frozen=True)
class Estimate:
    """What `estimate_ratio` expects of compressing a checkpoint.

    Attributes:
        profile: of the compression.
        nbytes_in: size of all files.
        nbytes_out: what they are expected to take.
        lowest_nbytes_out, highest_nbytes_out: two standard errors below and above it.
        num_samples: samples of tensors that were encoded.
        sample_nbytes: their size.
        sample_share: their size as a part of that of all tensors.
    """

    src: str
    profile: str
    nbytes_in: int
    nbytes_out: int
    lowest_nbytes_out: int
    highest_nbytes_out: int
    num_samples: int
    sample_nbytes: int
    sample_share: float
    seconds: float
    excluded: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return in_a_line(
            self,
            self.src,
            self.profile,
            f"{size(self.nbytes_in)} to about {size(self.nbytes_out)}",
            f"ratio {self.lowest_ratio:.3f} to {self.highest_ratio:.3f}",
        )

    @property
    def ratio(self) -> float:
        return _ratio(self.nbytes_in, self.nbytes_out)

    @property
    def lowest_ratio(self) -> float:
        return _ratio(self.nbytes_in, self.highest_nbytes_out)

    @property
    def highest_ratio(self) -> float:
        return _ratio(self.nbytes_in, self.lowest_nbytes_out)


@dataclass(frozen=True)
class Problem:
    """Something wrong with a checkpoint.

    Attributes:
        kind: name of the error class, e.g. "CorruptDataError" or "FileNotFoundError".
        message: the whole message, position and advice included; control characters escaped.
        file: relative path of the file to blame.
        tensor: name of the tensor, None where no tensor is to blame.
        block: index of the block within the tensor, or None.
        byte: offset within the tensor's frame (or the file, where no tensor is to blame), or None.
    """

    kind: str
    message: str
    file: str
    tensor: str | None = None
    block: int | None = None
    byte: int | None = None


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found. `ok` is True when there are no problems: all tensors that have checksums are as they were.

    Attributes:
        kind: "compressed", or "plain" for files that hold nothing of ours (their structure was checked, there is
            nothing to check their data against).
        num_files, num_tensors: how many were looked at.
        nbytes: uncompressed bytes that were decoded and checked.
        exact: decompressing gives the original byte for byte, by the SHA-256 of every file.
        problems: in the order found; at most one for each tensor, plus those of files.
        num_relative: tensors that are relative to a base.
        num_unchecked: how many of them there was no base for: their blocks were checked and their content was not.
        num_plain: tensors in plain files without a record of their hash: only the structure of these was checked.
        ignored: in a directory without a manifest, files that are called as those of a model are, and were not checked:
            they have no large tensor, or are in a form that nothing here reads.
    """

    path: str
    kind: str
    num_files: int
    num_tensors: int
    nbytes: int
    seconds: float
    exact: bool
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()
    changed: tuple[ChangedFile, ...] = ()
    base: str | None = None
    num_relative: int = 0
    num_unchecked: int = 0
    num_plain: int = 0

    def __repr__(self) -> str:
        return in_a_line(
            self,
            self.path,
            self.kind,
            count(self.num_files, "file"),
            count(self.num_tensors, "tensor"),
            size(self.nbytes),
            "ok" if self.ok else count(len(self.problems), "problem"),
        )

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as `inspect` sees it.

    Attributes:
        name: its original name.
        file: relative path of the file that holds it.
        shape: sizes of the dimensions.
        numel: number of elements.
        nbytes: uncompressed size.
        stored_nbytes: size in the file: frame and padding, or `nbytes` if it is stored plain.
        profile: "enec", "fast", "compact" or "resident"; None if it is stored plain.
        num_blocks: blocks of the frame by kind ("stored", "constant", "enec", "cascade", "entropy", "plain",
            "zeros", "cascade2", "modal", "scaled", "parts"; of a relative frame also "same", "sparse", "dense"); None
            if it is stored plain.
        base_name: for a relative tensor, what the base calls the tensor that it is relative to; else None.
        base_file: the path, in its directory, of the other file that holds that tensor; None if a base has to be given.
        base_hash: the content hash that this tensor must have.
        base_found: whether that file, or the given base, has it; None if no base was given.
        exponent_bits: bits per element that are spent on exponents: streams of the exponents, and index, headers and
            padding with them (all that is not sign and mantissa). None without an exponent or if stored plain.
        sign_mantissa_bits: bits per element spent on sign and mantissa. Mantissa bits that are coded together with the
            exponent count here, one bit each, as they would take alone. None as above.
        exponent_entropy: order-0 entropy of the exponents in bits per element, the bound of a coder that knows
            the tensor's histogram and nothing else. None for dtypes without an exponent and for empty tensors.
        exponent_counts: 256 counts, index = exponent; None as above.
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    numel: int
    nbytes: int
    stored_nbytes: int
    profile: str | None = None
    num_blocks: dict[str, int] | None = None
    exponent_bits: float | None = None
    sign_mantissa_bits: float | None = None
    exponent_entropy: float | None = None
    exponent_counts: tuple[int, ...] | None = None
    base_name: str | None = None
    base_file: str | None = None
    base_hash: str | None = None
    base_found: bool | None = None

    def __repr__(self) -> str:
        return in_a_line(
            self,
            repr(self.name),
            self.dtype,
            self.shape,
            self.profile,
            f"{size(self.nbytes)} in {size(self.stored_nbytes)}",
        )

    @property
    def ratio(self) -> float:
        return _ratio(self.nbytes, self.stored_nbytes)


@dataclass(frozen=True)
class RecordedBase:
    """What a compressed checkpoint says of the base that it is relative to.

    Attributes:
        name: the last part of the path that it had.
        hash: of all its tensors (docs/checkpoints.md, "Identity"); None in a shard, whose directory records it.
        found: whether the base that was given has this hash; None if none was given or nothing is recorded.
    """

    name: str
    hash: str | None = None
    found: bool | None = None


@dataclass(frozen=True)
class InspectReport:
    """What `inspect` found.

    Attributes:
        kind: "compressed" or "plain".
        files: relative paths of the safetensors files.
        tensors: by file, then in the order of their data.
        metadata: ``__metadata__`` of the files without our own entries, merged (the first file wins).
        file_nbytes: size of the safetensors files on disk.
        restorable: a record of the original files is there, so that decompressing restores them byte for byte.
        recorded_base: what the base was called, and the hash of all its tensors, as far as that is recorded.
    """

    path: str
    kind: str
    files: tuple[str, ...]
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]
    file_nbytes: int
    restorable: bool
    base: str | None = None
    recorded_base: RecordedBase | None = None

    def __repr__(self) -> str:
        return in_a_line(
            self,
            self.path,
            self.kind,
            count(len(self.files), "file"),
            count(len(self.tensors), "tensor"),
            f"{size(self.nbytes)} in {size(self.stored_nbytes)}",
            f"ratio {self.ratio:.3f}",
        )

    @property
    def nbytes(self) -> int:
        """Uncompressed size of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def stored_nbytes(self) -> int:
        return sum(tensor.stored_nbytes for tensor in self.tensors)

    @property
    def ratio(self) -> float:
        return _ratio(self.nbytes, self.stored_nbytes)
