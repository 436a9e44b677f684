"""tensorwire sync status"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from .. import options, output
from ..failures import BAD_DATA

if TYPE_CHECKING:
    from ...storage.locations import Location
    from ...sync.store import Store


@click.command()
@click.argument("store", type=options.LOCATION)
@click.option("--versions", "lists", is_flag=True, help="List all versions, the newest first.")
@options.json_option
def command(store: Location, lists: bool, as_json: bool) -> int:
    """Describe the newest version of a store, and what a new follower has to fetch.

    Exit code 0: it can be followed; 1: there is no version, or a part of the newest one is missing.

    \b
    Example:
      tensorwire sync status s3://bucket/run --versions
    """
    from ...storage.locations import locate
    from ...sync.store import Store

    found = Store(locate(store))
    newest = found.newest()
    links = [] if newest is None else found.links(newest, None)
    missing = [link.number for link in links if not found.is_whole(link)]
    nbytes = sum(link.nbytes for link in links)
    versions = _versions(found) if lists else []
    if as_json:
        output.print_json(
            {
                "version": None if newest is None else newest.number,
                "lineage": None if newest is None else newest.lineage,
                "anchor": links[0].number if links else None,
                "nbytes": nbytes,
                "missing": missing,
                **({"versions": versions} if lists else {}),
            }
        )
    elif newest is None:
        found_there = "no version" if locate(store).exists() else "nothing is there"
        output.print_line(f"{store}: {found_there}; publish a version, or correct the name")
    else:
        if versions:
            output.print_table(["version", "kind", ">tensors", ">size", "published"], list(map(_row, versions)))
        output.print_line(f"{store}: version {newest.number:06d} of lineage {newest.lineage}")
        output.print_line(f"a new follower fetches {output.size(nbytes)}, from the anchor {links[0].number:06d} on")
        for number in missing:
            output.print_line(f"version {number:06d} is not whole: publish an anchor")
    return BAD_DATA if missing or newest is None else 0


def _versions(store: Store) -> list[dict[str, Any]]:
    return [
        {
            "version": version.number,
            "is_anchor": version.base is None,
            "num_changed": len(version.tensors),
            "nbytes": version.nbytes,
            "time": None if time is None else datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="seconds"),
        }
        for version, time in store.versions()
    ]


def _row(version: dict[str, Any]) -> list[str]:
    return [
        f"{version['version']:06d}",
        "anchor" if version["is_anchor"] else "delta",
        f"{version['num_changed']:,}",
        output.size(version["nbytes"]),
        (version["time"] or "-").replace("T", " ").replace("+00:00", " UTC"),
    ]
