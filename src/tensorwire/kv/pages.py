"""The shapes that pages of engines have."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..codec import shape_sizes


def page_shape(axes: str, sizes: Sequence[int]) -> tuple[int, int, int]:
    """The shape of a contiguous page as groups of tokens with channels, which is what `KVCodec` transposes.

    The bytes of the page stay where they are: neighbouring dimensions become one. What engines call their layouts, the
    `axes` of one page in it, and what becomes a channel:

    ==================================  ========  ==============================
    layout                              axes      a channel is an element of
    ==================================  ========  ==============================
    vLLM ``LBNHC``                      ``NHC``   any head
    vLLM ``LBHNC``                      ``HNC``   one head
    vLLM ``LHBNC``, one head            ``NC``    this head
    vLLM ``BLNHC``                      ``LNHC``  any head of one layer
    vLLM ``BLHNC``                      ``LHNC``  one head of one layer
    vLLM ``BHLNC``                      ``HLNC``  one head of one layer
    LMCache ``KV_2LTD``                 ``2LTD``  any head of one layer
    LMCache ``KV_2TD``                  ``2TD``   any head
    LMCache ``KV_T2D``                  ``T2D``   key or value, any head
    SGLang ``layer_first``, one layer   ``THD``   any head
    SGLang ``page_first``               ``TLHD``  any layer and head
    SGLang ``page_first_direct``        ``LTHD``  any head of one layer
    SGLang ``page_head``                ``HTLD``  any layer, one head
    ==================================  ========  ==============================

    Here `N` and `T` are tokens, `H` heads, `L` layers, `2` keys and values, `C` and `D` what a head or a token has.
    SGLang keeps keys and values apart, so each of them has pages. Where a row says "one layer" or "one head", that is
    what lies together; with other layers or heads a page is not contiguous.

    Args:
        axes: a letter for each dimension of the page, of which exactly one is `N` or `T`.
        sizes: of these dimensions.

    Raises:
        ValueError: there are not as many letters as sizes, or there is none or more than one for tokens.
        TypeError: `sizes` is no sequence of whole numbers.
    """
    sizes = shape_sizes(sizes)
    tokens = [axis for axis, letter in enumerate(axes) if letter in "NT"]
    if len(tokens) != 1 or len(axes) != len(sizes):
        raise ValueError(f"expected a letter for each of {len(sizes)} sizes, one of them N or T, got {axes!r}")
    (axis,) = tokens
    return prod(sizes[:axis]), sizes[axis], prod(sizes[axis + 1 :])
