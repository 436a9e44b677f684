"""Every writer against everything that may stand at its destination: what docs/cli.md says, tried out.

Run as ``python -m tests.support.destination_cells DIRECTORY`` it builds a place for each pair of the two, lets the
writer write, compares all that stood there before and prints a line of JSON for each try: first as the user that runs
it, then, if that is root, as another. Mount points and devices need root, and a mount namespace of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

OTHER_USER = 65534
YES, FORCE, BASE, NO, NONE = "yes", "force", "base", "no", "\N{EN DASH}"
"""Replaces; with force; if it is the base, which it is here; never; there is no SRC."""

FILE, RESTORED, DIRECTORY, RESTORED_DIRECTORY, APPLIED, APPLIED_DIRECTORY, SAVED, DRAWN = COLUMNS = (
    "`compress`, `transcode` a file",
    "`decompress` a file",
    "`compress`, `transcode` a directory",
    "`decompress` a directory",
    "`--in-place` a file",
    "`--in-place` a directory",
    "`save_file`",
    "`--plot`",
)

NEVER = (NO,) * 8
NEVER_OF_SRC = (NO, NO, NO, NO, NO, NO, NONE, NONE)
WHEREVER = (NO, NO, NO, NO, NO, BASE, NO, NO)
"""Files in it are replaced, it is not."""
TABLE: dict[str, tuple[str, ...]] = {
    "nothing": (YES, YES, YES, YES, NO, NO, YES, YES),
    "a safetensors file that tensorwire wrote": (FORCE, FORCE, NO, NO, NO, NO, YES, FORCE),
    "any other safetensors file": (NO, FORCE, NO, NO, BASE, NO, YES, FORCE),
    "a model in another format": (NO, FORCE, NO, NO, NO, NO, YES, FORCE),
    "any other regular file": (FORCE, FORCE, NO, NO, NO, NO, YES, FORCE),
    "an empty directory": (NO, NO, FORCE, FORCE, NO, NO, NO, NO),
    "a compressed directory": (NO, NO, FORCE, NO, NO, NO, NO, NO),
    "a compressed directory that holds another file, at any depth": NEVER,
    "a compressed directory in which an original stands in a compressed file's place": NEVER,
    "a directory of files that are all written anew": (NO, NO, NO, FORCE, NO, BASE, NO, NO),
    "any other directory": NEVER,
    "a link to a file": NEVER,
    "a link to a directory": NEVER,
    "a link that leads nowhere": NEVER,
    "a device": NEVER,
    "a pipe": NEVER,
    "a socket": NEVER,
    "a mount point": WHEREVER,
    "a directory that holds a mount point": WHEREVER,
    "the working directory": WHEREVER,
    "a directory that holds the working directory": WHEREVER,
    "your home directory": WHEREVER,
    "SRC, by whatever name": NEVER_OF_SRC,
    "a directory that holds SRC": NEVER_OF_SRC,
    "a directory in SRC": NEVER_OF_SRC,
}
NEEDS_ROOT = {"a device", "a mount point", "a directory that holds a mount point"}
"""And a mount namespace."""


@dataclass
class Place:
    """Where one try takes place: `dst` is what it writes to, `src` what it is made from."""

    base: Path
    kit: Path
    writer: Writer
    dst: Path
    src: Path

    def put_replaceable(self, path: Path) -> None:
        """What the writer may replace if nothing else speaks against it."""
        if not self.writer.is_directory:
            name = "a.safetensors" if self.writer.column == APPLIED else "small.safetensors"
            shutil.copy(self.kit / name, path)
        else:
            self.put_directory(path)

    def put_directory(self, path: Path) -> None:
        is_plain = self.writer.column in (RESTORED_DIRECTORY, APPLIED_DIRECTORY)
        shutil.copytree(self.kit / ("model" if is_plain else "packed"), path)


@dataclass
class Writer:
    """Something that writes: the column of the table, and a function of source, destination and force."""

    column: str
    source: str
    write: Callable[[Path, Path, bool], object]

    @property
    def is_directory(self) -> bool:
        return self.column in (DIRECTORY, RESTORED_DIRECTORY, APPLIED_DIRECTORY)


WRITERS = {
    "compress file": Writer(FILE, "a.safetensors", lambda a, b, f: compress_checkpoint(a, b, force=f)),
    "transcode file": Writer(
        FILE, "small.safetensors", lambda a, b, f: transcode_checkpoint(a, b, profile="enec", force=f)
    ),
    "decompress file": Writer(RESTORED, "small.safetensors", lambda a, b, f: decompress_checkpoint(a, b, force=f)),
    "compress directory": Writer(DIRECTORY, "model", lambda a, b, f: compress_checkpoint(a, b, force=f)),
    "transcode directory": Writer(
        DIRECTORY, "packed", lambda a, b, f: transcode_checkpoint(a, b, profile="enec", force=f)
    ),
    "decompress directory": Writer(RESTORED_DIRECTORY, "packed", lambda a, b, f: decompress_checkpoint(a, b, force=f)),
    "apply file": Writer(APPLIED, "delta.safetensors", lambda a, b, f: apply_checkpoint(a, b, force=f)),
    "apply directory": Writer(APPLIED_DIRECTORY, "delta", lambda a, b, f: apply_checkpoint(a, b, force=f)),
    "save_file": Writer(SAVED, "", lambda a, b, f: save_file({"w": np.arange(9.0)}, b)),
    "plot": Writer(DRAWN, "", lambda a, b, f: NewFile(b, force=f, example="x.svg").write(b"<svg>")),
}


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


def build(row: str, place: Place) -> None:
    """Put there what the row names."""
    dst, kit, outside = place.dst, place.kit, place.base / "outside"
    if row == "nothing":
        pass
    elif row == "a safetensors file that tensorwire wrote":
        shutil.copy(kit / "small.safetensors", dst)
    elif row == "any other safetensors file":
        shutil.copy(kit / "a.safetensors", dst)
    elif row in ("a model in another format", "any other regular file"):
        dst.write_bytes(b"PK or whatever")
    elif row == "an empty directory":
        dst.mkdir()
    elif row.startswith("a compressed directory"):
        shutil.copytree(kit / "packed", dst)
        if row.endswith("depth"):
            (dst / "vae" / "notes.txt").write_text("mine")
        elif row.endswith("place"):
            shutil.copy(next((kit / "model").glob("model-*")), dst)
    elif row == "a directory of files that are all written anew":
        shutil.copytree(kit / "model", dst)
    elif row == "any other directory":
        dst.mkdir()
        (dst / "thesis.tex").write_text("mine")
    elif row == "a link to a file":
        shutil.copy(kit / "small.safetensors", outside)
        dst.symlink_to(outside)
    elif row == "a link to a directory":
        place.put_directory(outside)
        dst.symlink_to(outside)
    elif row == "a link that leads nowhere":
        dst.symlink_to(outside)
    elif row == "a device":
        os.mknod(dst, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    elif row == "a pipe":
        os.mkfifo(dst)
    elif row == "a socket":
        _bind(dst)
    elif row == "a mount point":
        place.put_replaceable(outside)
        dst.mkdir() if place.writer.is_directory else dst.touch()
        subprocess.run(["mount", "--bind", outside, dst], check=True)
    elif row == "a directory that holds a mount point":
        place.put_directory(dst)
        subprocess.run(["mount", "--bind", dst / "vae", dst / "vae"], check=True)
    elif row == "SRC, by whatever name":
        if place.writer.is_directory:
            place.src.rename(dst)
            (place.base / "alias").symlink_to(dst.parent)
            place.src = place.base / "alias" / dst.name
        else:
            os.link(place.src, dst)
    elif row == "a directory that holds SRC":
        place.put_directory(dst)
        place.src = place.src.rename(dst / "inside")
    elif row == "a directory in SRC":
        if not place.writer.is_directory:
            shutil.copytree(kit / "model", place.base / "srcs")
            place.src = place.src.rename(place.base / "srcs" / "src")
        place.dst = (place.src if place.writer.is_directory else place.src.parent) / "inside"
        place.dst.mkdir()
    else:  # the working directory, one above it, and home
        place.put_directory(dst)


def _bind(path: Path) -> None:
    """A socket, whose name may be long."""
    with socket.socket(socket.AF_UNIX) as server:
        old = Path.cwd()
        os.chdir(path.parent)
        server.bind(path.name)
        os.chdir(old)


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


def attempt(row: str, place: Place, *, force: bool) -> dict[str, object]:
    """Let the writer write, and say what became of it and of everything that stood there."""
    before = snapshot(place.base)
    home = os.environ.get("HOME", "")
    old = Path.cwd()
    try:
        if row == "the working directory":
            os.chdir(place.dst)
        elif row == "a directory that holds the working directory":
            os.chdir(place.dst / "vae" if place.dst.is_dir() else place.base)
        elif row == "your home directory":
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


def make_place(root: Path, kit: Path, row: str, writer: str, *, force: bool) -> Place:
    base = root / f"{list(TABLE).index(row)}-{writer.replace(' ', '-')}-{force}"
    (base / "place").mkdir(parents=True)
    chosen = WRITERS[writer]
    name = "x" if chosen.is_directory else "x.safetensors"
    if row == "a model in another format":
        name = "x.pt"
    elif row == "any other regular file":
        name = "x.txt"
    place = Place(base, kit, chosen, base / "place" / name, base / "src")
    if chosen.source:
        source = kit / chosen.source
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place.src)
    build(row, place)
    return place


def main(root: Path) -> None:
    is_root = os.geteuid() == 0
    make_kit(root / "kit")
    for user in (os.geteuid(), OTHER_USER) if is_root else (os.geteuid(),):
        area = root / str(user)
        places = {
            (row, writer, force): make_place(area, root / "kit", row, writer, force=force)
            for row, verdicts in TABLE.items()
            if is_root or row not in NEEDS_ROOT
            for writer, chosen in WRITERS.items()
            if verdicts[COLUMNS.index(chosen.column)] != NONE
            for force in (False, True)
        }
        if user != os.geteuid():
            for path in (area, *area.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        for (row, writer, force), place in places.items():
            tried = attempt(row, place, force=force)
            print(json.dumps({"user": user, "row": row, "writer": writer, "force": force, **tried}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
