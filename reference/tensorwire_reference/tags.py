"""The end of a coded block: kinds, and with which rests, variants, profiles and layouts each may stand."""

from collections.abc import Callable
from dataclasses import dataclass

from .cascade import widths_of
from .errors import UnsupportedVersionError, require
from .layouts import TABLE, Layout
from .masks import GAPS, LEVELS

EXTENDED = 7
_ALL = ("enec", "fast", "compact", "resident")
_THREE = ("enec", "fast", "compact")
_TWO = ("fast", "compact")
_NONE, _VERBATIM, _TRIMMED, _BYTES = 0, 0, 1, 2
_UNSUPPORTED_REST = 3


def _only_zero(_variant: int, _profile: str, _layout: Layout) -> bool:
    return _variant == 0


def _of_enec(variant: int, _profile: str, _layout: Layout) -> bool:
    return 2 <= variant <= 5


def _of_entropy(variant: int, _profile: str, layout: Layout) -> bool:
    return variant <= min(3, max(layout.rest_bits - 1, 0))


def _of_mask(variant: int, profile: str, _layout: Layout) -> bool:
    return variant in LEVELS or (variant == GAPS and profile == "compact")


def _of_classes(variant: int, _profile: str, layout: Layout) -> bool:
    return variant == 0 or layout.split == "float"


def _of_codes(variant: int, _profile: str, layout: Layout) -> bool:
    return variant <= 1 and layout == TABLE["BF16"][1]


def _of_table(table: int) -> Callable[[int, str, Layout], bool]:
    return lambda variant, _profile, _layout: variant < len(widths_of(table))


@dataclass(frozen=True)
class Rule:
    """A row of the page's table of kinds.

    `params_nbytes` does not count W, nor a byte for each threshold, nor what kind parts has.
    """

    name: str
    profiles: tuple[str, ...]
    rests: tuple[int, ...]
    variant: Callable[[int, str, Layout], bool]
    params_nbytes: int
    has_exponent: bool = False
    relative: bool = False

    def rests_in(self, profile: str) -> tuple[int, ...]:
        """In profiles other than compact there is no rest `bytes`, in resident none but verbatim."""
        if profile == "compact":
            return self.rests
        return tuple(rest for rest in self.rests if rest < (_TRIMMED if profile == "resident" else _BYTES))


_CODED = (_VERBATIM, _TRIMMED, _BYTES)
# By kind and extended kind, the latter 0 for kinds that are not extended.
RULES = {
    (1, 0): Rule("constant", _ALL, (_NONE,), _only_zero, 0),
    (2, 0): Rule("enec", _THREE, _CODED, _of_enec, 4, has_exponent=True),
    (3, 0): Rule("cascade", _TWO, _CODED, _of_table(1), 13, has_exponent=True),
    (4, 0): Rule("entropy", ("compact",), _CODED, _of_entropy, 4, has_exponent=True),
    (5, 0): Rule("plain", _THREE, (_TRIMMED, _BYTES), _only_zero, 0),
    (6, 0): Rule("zeros", _TWO, (_NONE,), _of_mask, 7),
    (EXTENDED, 1): Rule("cascade", (*_TWO, "resident"), _CODED, _of_table(2), 13, has_exponent=True),
    (EXTENDED, 2): Rule("modal", _TWO, _CODED, _of_mask, 5, has_exponent=True),
    (EXTENDED, 3): Rule("sparse", _THREE, (_NONE,), _of_classes, 0, relative=True),
    (EXTENDED, 4): Rule("dense", _THREE, (_NONE,), _of_classes, 4, relative=True),
    (EXTENDED, 5): Rule("parts", ("compact",), (_NONE,), _only_zero, 0),
    (EXTENDED, 6): Rule("scaled", ("compact",), (_NONE,), _of_codes, 10),
}


@dataclass(frozen=True)
class Tag:
    """The last byte of a coded block, and the one before where the kind is extended."""

    kind: int
    rest: int
    variant: int
    extended: int = 0

    @property
    def rule(self) -> Rule:
        return RULES[self.kind, self.extended]

    def pack(self) -> bytes:
        tag = self.kind | self.rest << 3 | self.variant << 5
        return bytes([self.extended, tag] if self.kind == EXTENDED else [tag])


def parse_tag(block: bytes) -> Tag:
    """Raises `UnsupportedVersionError` for a kind, rest or extended kind that the page does not have."""
    kind, rest, variant = block[-1] & 7, block[-1] >> 3 & 3, block[-1] >> 5
    extended = block[-2] if kind == EXTENDED else 0
    if (kind, extended) not in RULES or rest == _UNSUPPORTED_REST:
        raise UnsupportedVersionError(f"kind {kind}, extended kind {extended}, rest {rest}")
    return Tag(kind, rest, variant, extended)


def check_tag(tag: Tag, layout: Layout, profile: str, relative: bool) -> None:
    """Whether this kind may stand here with this rest and variant."""
    rule = tag.rule
    require(profile in rule.profiles, f"kind {rule.name} in profile {profile}")
    require(tag.rest in rule.rests_in(profile), f"kind {rule.name} with rest {tag.rest} in profile {profile}")
    require(layout.exponent_bits > 0 or not rule.has_exponent, f"kind {rule.name} needs exponents")
    require(relative or not rule.relative, f"kind {rule.name} without a base")
    require(rule.variant(tag.variant, profile, layout), f"kind {rule.name}: variant {tag.variant}")
