"""tensorwire sync status"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .. import options, output
from ..failures import BAD_DATA

if TYPE_CHECKING:
    from ...storage.locations import Location


@click.command()
@click.argument("store", type=options.LOCATION)
@options.json_option
def command(store: Location, as_json: bool) -> int:
    """Describe the newest version of a store, and what a new follower has to fetch.

    Exit code 0: it can be followed; 1: there is no version, or a part of the newest one is missing.

    \b
    Example:
      tensorwire sync status s3://bucket/run
    """
    from ...storage.locations import locate
    from ...sync.store import Store

    found = Store(locate(store))
    newest = found.newest()
    links = [] if newest is None else found.links(newest, None)
    missing = [link.number for link in links if not found.is_whole(link)]
    nbytes = sum(sum(link.files.values()) for link in links)
    if as_json:
        output.print_json(
            {
                "version": None if newest is None else newest.number,
                "lineage": None if newest is None else newest.lineage,
                "anchor": links[0].number if links else None,
                "nbytes": nbytes,
                "missing": missing,
            }
        )
    elif newest is None:
        output.print_line(f"{store}: no version")
    else:
        output.print_line(f"{store}: version {newest.number:06d} of lineage {newest.lineage}")
        output.print_line(f"a new follower fetches {output.size(nbytes)}, from the anchor {links[0].number:06d} on")
        for number in missing:
            output.print_line(f"version {number:06d} is not whole: publish an anchor")
    return BAD_DATA if missing or newest is None else 0
