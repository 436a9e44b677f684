"""tensorwire sync publish"""

from __future__ import annotations

from pathlib import Path

import click

from .. import options, output


@click.command()
@click.argument("directory", metavar="DIR", type=options.EXISTING_PATH)
@click.argument("store", type=options.LOCATION)
@click.option(
    "--base",
    type=options.EXISTING_PATH,
    metavar="OLD",
    help="The checkpoint that was published last. Without it, or if the newest version is another one, the version is "
    "an anchor, which holds all tensors.",
)
@click.option("--profile", type=options.Choice(["fast", "compact"]), default="fast", show_default=True,
              help="compact is smaller and slower.")  # fmt: skip
@options.threads_option
@options.json_option
def command(directory: Path, store: Path, base: Path | None, profile: str, threads: int | None, as_json: bool) -> None:
    """Publish a checkpoint as the next version of a store.

    DIR is a file or directory, plain or compressed. STORE is a directory, which is made if it is not there, or a URL.
    Versions that no follower needs any more are removed after an anchor.

    \b
    Example:
      tensorwire sync publish step-1000 s3://bucket/run
      tensorwire sync publish step-1001 s3://bucket/run --base step-1000
    """
    from ...checkpoint import open_file
    from ...sync import Publisher

    publisher = Publisher(store, base=base, profile=profile, threads=threads)  # type: ignore[arg-type]
    with open_file(directory, threads=threads) as reader:
        published = publisher.publish((name, reader.get_tensor(name)) for name in reader)
    if as_json:
        output.print_json(published._asdict())
        return
    kind = "an anchor, " if published.is_anchor else ""
    output.print_line(
        f"version {published.version:06d}: {kind}{output.count(published.num_changed, 'tensor')}, "
        f"{output.size(published.nbytes)}, {sum(published.seconds.values()):.2f} s"
    )
