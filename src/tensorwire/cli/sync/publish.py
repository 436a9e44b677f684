"""tensorwire sync publish"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import options, output

if TYPE_CHECKING:
    from ...checkpoint import TensorReader


@click.command()
@click.argument("directory", metavar="DIR", type=options.EXISTING_PATH)
@click.argument("store", type=options.LOCATION)
@click.option(
    "--base",
    type=options.EXISTING_PATH,
    metavar="OLD",
    help="The checkpoint that was published last, if it is still there: it is then not read from the store.",
)
@click.option("--anchor", is_flag=True, help="Publish all tensors, so that a new follower needs no older version.")
@click.option("--anchor-every", type=click.IntRange(1, 10_000), metavar="N", default=25, show_default=True,
              help="Versions from one anchor to the next.")  # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), metavar="N", default=2, show_default=True,
              help="Anchors that are kept, with the versions that follow them.")  # fmt: skip
@click.option(
    "--small-files",
    is_flag=True,
    help="Have config.json, the tokenizer and other small files of DIR travel with this version and those after it, so "
    "that an engine loads a directory that follows.",
)
@click.option("--profile", type=options.Choice(["fast", "compact"]), default="fast", show_default=True,
              help="compact is smaller and slower.")  # fmt: skip
@options.threads_option
@options.json_option
def command(
    directory: Path,
    store: Path,
    base: Path | None,
    anchor: bool,
    small_files: bool,
    anchor_every: int,
    keep: int,
    profile: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Publish a checkpoint as the next version of a store: what changed since the newest one.

    DIR is a file or directory, plain or compressed. STORE is a directory, which is made if it is not there, or a URL.
    What the newest version holds is read from the store, or from OLD. An anchor, which holds all tensors, comes first,
    after every 24 others, and where a tensor is gone. Versions that no follower needs any more are removed after it.

    \b
    Example:
      tensorwire sync publish step-1000 s3://bucket/run
      tensorwire sync publish step-1001 s3://bucket/run
    """
    from ...checkpoint import open_file
    from ...sync import Publisher

    if small_files and not directory.is_dir():
        raise click.UsageError(f"expected a directory as DIR with --small-files, got {str(directory)!r}")
    with open_file(directory, threads=threads) as reader, output.progress("publish") as progress:
        publisher = Publisher(
            store,
            base=base,
            profile=profile,  # type: ignore[arg-type]
            anchor_every=anchor_every,
            keep=keep,
            threads=threads,
        )
        published = publisher.publish(
            _tensors(reader, progress), anchor=anchor, small_files=directory if small_files else None
        )
    if as_json:
        output.print_json(published._asdict())
        return
    kind = "an anchor, " if published.is_anchor else ""
    output.print_line(
        f"version {published.version:06d}: {kind}{output.count(published.num_changed, 'tensor')}, "
        f"{output.size(published.nbytes)}, {sum(published.seconds.values()):.2f} s"
    )


def _tensors(reader: TensorReader[Any], progress: output.Progress | None) -> Iterator[tuple[str, Any]]:
    """All tensors, one at a time; the bar counts those that are published."""
    sizes = {name: stored.layout(name)[2] for stored in reader.files for name in stored.tensors if name in reader}
    from ...storage.progress import Meter

    meter = Meter(progress, sum(sizes.values()))
    for name, nbytes in sizes.items():
        meter.begin(name, nbytes)
        yield name, reader.get_tensor(name)
        meter.end()
