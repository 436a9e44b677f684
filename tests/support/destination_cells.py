"""Every writer against everything that may stand at its destination: what docs/cli.md says, tried out.

Run as ``python -m tests.support.destination_cells DIRECTORY`` it builds a place for each example and writer, lets the
writer write, compares all that stood there before and prints a line of JSON for each try. Mount points and devices need
root, and a mount namespace of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tensorwire._ground.new_file import NewFile
from tensorwire.checkpoint import (
    apply_checkpoint,
    compress_checkpoint,
    decompress_checkpoint,
    save_file,
    transcode_checkpoint,
)
from tests.support.checkpoint_models import container, layer, write_model

if TYPE_CHECKING:
    from collections.abc import Callable

YES, FORCE, BASE, NO = "yes", "force", "base", "no"
COLUMNS = COMPRESSED, RESTORED, IN_PLACE = "`compress`, `transcode`", "`decompress`", "`decompress --in-place`"

NOTHING, OURS, MODEL, EMPTY, PACKED, PLAIN, AROUND, ELSE = (
    "nothing",
    "a file that tensorwire wrote, or that is no model",
    "a model in a file that tensorwire did not write",
    "an empty directory",
    "a compressed directory, as its manifest lists it",
    "a directory of files that are all written anew",
    "a mount point, the working directory, your home directory, or a directory that holds one of them",
    "anything else",
)
TABLE = {
    NOTHING: (YES, YES, NO),
    OURS: (FORCE, FORCE, NO),
    MODEL: (NO, FORCE, BASE),
    EMPTY: (FORCE, FORCE, NO),
    PACKED: (FORCE, NO, NO),
    PLAIN: (NO, FORCE, BASE),
    AROUND: (NO, NO, BASE),
    ELSE: (NO, NO, NO),
}
DIRECTORIES = (EMPTY, PACKED, PLAIN, AROUND)
"""Rows of directories; for a result that is a file they are anything else, as OURS and MODEL are for a directory."""


class Example(NamedTuple):
    """Something that may stand at a destination.

    Attributes:
        build: puts it at a path.
        is_base: whether it is what the deltas of the kit are relative to, or in its place.
        reason: why a directory of this kind is refused.
    """

    row: str
    build: Callable[[Place], object]
    is_base: bool = False
    reason: str = ""


class Writer(NamedTuple):
    """Something that writes: the column of the table, what it reads, and a function of source, destination, force."""

    column: str
    source: str
    write: Callable[[Path, Path, bool], object]
    is_directory: bool = False


WRITERS = {
    "compress file": Writer(COMPRESSED, "a.safetensors", lambda a, b, f: compress_checkpoint(a, b, force=f)),
    "transcode file": Writer(
        COMPRESSED, "small.safetensors", lambda a, b, f: transcode_checkpoint(a, b, profile="enec", force=f)
    ),
    "decompress file": Writer(RESTORED, "small.safetensors", lambda a, b, f: decompress_checkpoint(a, b, force=f)),
    "plot": Writer(RESTORED, "", lambda a, b, f: NewFile(b, force=f, example="x.svg").write(b"<svg>")),
    "save_file": Writer(RESTORED, "", lambda a, b, f: save_file({"w": np.arange(9.0)}, b)),
    "apply file": Writer(IN_PLACE, "delta.safetensors", lambda a, b, f: apply_checkpoint(a, b, force=f)),
    "compress directory": Writer(COMPRESSED, "model", lambda a, b, f: compress_checkpoint(a, b, force=f), True),
    "transcode directory": Writer(
        COMPRESSED, "packed", lambda a, b, f: transcode_checkpoint(a, b, profile="enec", force=f), True
    ),
    "decompress directory": Writer(RESTORED, "packed", lambda a, b, f: decompress_checkpoint(a, b, force=f), True),
    "apply directory": Writer(IN_PLACE, "delta", lambda a, b, f: apply_checkpoint(a, b, force=f), True),
}


class Place:
    """Where one try takes place: `dst` is what `writer` writes to, `src` what it is made from."""

    def __init__(self, base: Path, kit: Path, example: str, writer: Writer) -> None:
        self.base, self.kit, self.writer = base, kit, writer
        (base / "place").mkdir(parents=True)
        name = {"a model in another format": "x.pt", "any other file": "x.txt"}.get(example, "x.safetensors")
        self.dst, self.src, self.outside = base / "place" / name, base / "src", base / "outside"
        if writer.source:
            self.copy(writer.source, self.src)
        EXAMPLES[example].build(self)

    def copy(self, name: str, path: Path | None = None) -> Path:
        """Something of the kit."""
        source, path = self.kit / name, self.dst if path is None else path
        (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
        return path

    def put_replaceable(self, path: Path | None = None) -> Path:
        """What the writer may replace if nothing else speaks against it."""
        if not self.writer.is_directory:
            return self.copy("a.safetensors" if self.writer.column == IN_PLACE else "small.safetensors", path)
        return self.put_directory(path)

    def put_directory(self, path: Path | None = None) -> Path:
        return self.copy("packed" if self.writer.column == COMPRESSED else "model", path)

    def mount(self) -> None:
        self.put_replaceable(self.outside)
        self.dst.mkdir() if self.writer.is_directory else self.dst.touch()
        subprocess.run(["mount", "--bind", self.outside, self.dst], check=True)

    def mount_inside(self) -> None:
        inside = self.put_directory() / "vae"
        subprocess.run(["mount", "--bind", inside, inside], check=True)

    def bind(self) -> None:
        """A socket, whose name may be long."""
        with socket.socket(socket.AF_UNIX) as server:
            old = Path.cwd()
            os.chdir(self.dst.parent)
            server.bind(self.dst.name)
            os.chdir(old)

    def link_source(self) -> None:
        if not self.writer.is_directory:
            os.link(self.src, self.dst)
            return
        self.src.rename(self.dst)
        (self.base / "alias").symlink_to(self.dst.parent)
        self.src = self.base / "alias" / self.dst.name

    def put_around_source(self) -> None:
        self.put_directory()
        self.src = self.src.rename(self.dst / "inside")

    def put_in_source(self) -> None:
        if not self.writer.is_directory:
            self.src = self.src.rename(self.copy("model", self.base / "srcs") / "src")
        self.dst = (self.src if self.writer.is_directory else self.src.parent) / "inside"
        self.dst.mkdir()


EXAMPLES = {
    "nothing": Example(NOTHING, lambda p: None),
    "a compressed file": Example(OURS, lambda p: p.copy("small.safetensors")),
    "any other file": Example(OURS, lambda p: p.dst.write_bytes(b"PK or whatever")),
    "a safetensors file": Example(MODEL, lambda p: p.copy("a.safetensors"), is_base=True),
    "a model in another format": Example(MODEL, lambda p: p.dst.write_bytes(b"PK or whatever")),
    "an empty directory": Example(EMPTY, lambda p: p.dst.mkdir()),
    "a compressed directory": Example(PACKED, lambda p: p.copy("packed")),
    "a model": Example(PLAIN, lambda p: p.copy("model"), is_base=True),
    "a mount point": Example(AROUND, Place.mount, True, "is a mount point"),
    "a directory that holds a mount point": Example(AROUND, Place.mount_inside, True, "mount point"),
    "the working directory": Example(AROUND, Place.put_directory, True, "working directory"),
    "a directory that holds the working directory": Example(AROUND, Place.put_directory, True, "working directory"),
    "your home directory": Example(AROUND, Place.put_directory, True, "home directory"),
    "a compressed directory that holds another file": Example(
        ELSE,
        lambda p: (p.copy("packed") / "vae" / "notes.txt").write_text("mine"),
        reason="holds a file that the result does not replace",
    ),
    "a compressed directory with an original": Example(
        ELSE, lambda p: shutil.copy(next((p.kit / "model").glob("model-*")), p.copy("packed"))
    ),
    "any other directory": Example(ELSE, lambda p: (p.dst.mkdir(), (p.dst / "thesis.tex").write_text("mine"))),
    "a link to a file": Example(ELSE, lambda p: p.dst.symlink_to(p.copy("small.safetensors", p.outside))),
    "a link to a directory": Example(ELSE, lambda p: p.dst.symlink_to(p.put_directory(p.outside))),
    "a link that leads nowhere": Example(ELSE, lambda p: p.dst.symlink_to(p.outside)),
    "a device": Example(ELSE, lambda p: os.mknod(p.dst, 0o666 | stat.S_IFCHR, os.makedev(1, 3))),
    "a pipe": Example(ELSE, lambda p: os.mkfifo(p.dst)),
    "a socket": Example(ELSE, Place.bind),
    "SRC by another name": Example(ELSE, Place.link_source, reason="are the same"),
    "a directory that holds SRC": Example(ELSE, Place.put_around_source, reason="lie in each other"),
    "a directory in SRC": Example(ELSE, Place.put_in_source, reason="lie in each other"),
}
NEEDS_ROOT = {"a device", "a mount point", "a directory that holds a mount point"}
"""And a mount namespace."""


def make_kit(kit: Path) -> None:
    """What places are built from."""
    kit.mkdir()
    write_model(kit / "model", num_shards=1, width=40)
    compress_checkpoint(kit / "model", kit / "packed")
    (kit / "a.safetensors").write_bytes(container(layer(0, 1, 40)))
    compress_checkpoint(kit / "a.safetensors", kit / "small.safetensors")
    shutil.copytree(kit / "model", kit / "next")
    for path in (kit / "next").glob("model-*"):
        path.write_bytes(container(layer(0, 30, 40), {"format": "pt"}))
    compress_checkpoint(kit / "next", kit / "delta", base=kit / "model")
    (kit / "next.safetensors").write_bytes(container(layer(0, 30, 40)))
    compress_checkpoint(kit / "next.safetensors", kit / "delta.safetensors", base=kit / "a.safetensors")


def snapshot(base: Path) -> dict[str, list[object]]:
    """Everything below `base`: kind, permissions, inode, owner, and content or where it leads to."""
    found: dict[str, list[object]] = {}
    for directory, directories, files in os.walk(base):
        for name in (*directories, *files):
            path = Path(directory, name)
            status = path.lstat()
            content: object = status.st_rdev
            if stat.S_ISLNK(status.st_mode):
                content = str(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes().hex()
            found[str(path.relative_to(base))] = [status.st_mode, status.st_ino, status.st_uid, content]
    return found


def attempt(example: str, place: Place, *, force: bool) -> dict[str, object]:
    """Let the writer write, and say what became of it and of everything that stood there."""
    before = snapshot(place.base)
    home, old = os.environ.get("HOME", ""), Path.cwd()
    try:
        if example == "the working directory":
            os.chdir(place.dst)
        elif example == "a directory that holds the working directory":
            os.chdir(place.dst / "vae")
        elif example == "your home directory":
            os.environ["HOME"] = str(place.dst)
        try:
            place.writer.write(place.src, place.dst, force)
            error = ""
        except (OSError, ValueError) as caught:
            error = f"{type(caught).__name__}: {caught}"
    finally:
        os.chdir(old)
        os.environ["HOME"] = home
    after = snapshot(place.base)
    name = str(place.dst.relative_to(place.base))
    return {
        "error": error,
        "lost": sorted(path for path, facts in before.items() if after.get(path) != facts and path != name),
        "new": sorted(after.keys() - before.keys()),
        "replaced": name in after and before.get(name) != after[name],
        "destination": name,
    }


def main(root: Path) -> None:
    os.fsync = os.fdatasync = os.fstat  # no try depends on what a disk would hold if the machine stopped
    make_kit(root / "kit")
    for number, (name, example) in enumerate(EXAMPLES.items()):
        for writer, chosen in WRITERS.items():
            if (name in NEEDS_ROOT and os.geteuid() != 0) or ("SRC" in name and not chosen.source):
                continue
            for force in (False, True):
                place = Place(root / f"{number}-{writer}-{force}", root / "kit", name, chosen)
                tried = attempt(name, place, force=force)
                print(json.dumps({"row": example.row, "example": name, "writer": writer, "force": force, **tried}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
