"""How instructions are counted in what nvdisasm lists; the kernels themselves are `make device-test`'s."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

from benchmarks.device.counts import KERNELS, PAGE
from benchmarks.device.machine_code import Code, Some, read
from tensorwire.torch.device.binaries import sources

# One instruction before the outer loop, four in it besides the inner one's three, then an exit that some warps take, a
# branch over a loop that is rare, and code behind the last exit.
LISTING = """
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0020*/               @P1 BRA `(.L_x_2) ;
.L_x_1:
        /*0030*/                   LDG.E R2, [R4.64] ;
        /*0040*/                   NOP ;
        /*0050*/                   IADD3 R2, R2, R3, RZ ;
        /*0060*/               @P2 BRA `(.L_x_1) ;
.L_x_2:
        /*0070*/                   BRA.DIV UR8, `(.L_x_7) ;
        /*0080*/              @!P0 BRA `(.L_x_0) ;
        /*0090*/               @P3 EXIT ;
        /*00a0*/               @P4 BRA `(.L_x_4) ;
        /*00b0*/                   MOV R5, R6 ;
.L_x_3:
        /*00c0*/                   MOV R5, R5 ;
        /*00d0*/               @P5 BRA `(.L_x_3) ;
        /*00e0*/                   BRA `(.L_x_5) ;
.L_x_4:
        /*00f0*/                   MOV R7, R8 ;
.L_x_5:
        /*0100*/                   EXIT ;
.L_x_6:
        /*0110*/                   BRA `(.L_x_6);
.L_x_7:
        /*0120*/                   WARPSYNC.COLLECTIVE R15, `(.L_x_8) ;
"""


def test_instructions_count_as_often_as_their_loops_are_taken() -> None:
    listing = read(LISTING)
    assert [end - begin for begin, end in listing.loops] == [7, 3, 2]
    inside, outside = listing.executed((10, 2.5, 0))
    assert inside == 10 * (4 + 2.5 * 3)
    assert outside == 1 + 1 + 1 + 2, "the branch over the rare loop is taken, to the other side"
    assert listing.executed((10, 2.5, 0), (0.25,)) == (inside, 1 + 1 + 0.25 * 3)
    inside, outside = listing.executed((10, 2.5, Some(0.25, 8)))
    assert (inside, outside) == (10 * (4 + 2.5 * 3) + 0.25 * 8 * 2, 1 + 1 + 1 + 0.25 * 2 + 1)
    inside, outside = listing.executed((10, 2.5, 8))
    assert (inside, outside) == (10 * (4 + 2.5 * 3) + 8 * 2, 1 + 1 + 1 + 2 + 1), (
        "the branch that always leads on is taken"
    )


def test_a_loop_that_is_new_is_told() -> None:
    with pytest.raises(ValueError, match="expected 2 loops, got 3, of 7, 3, 2 instructions"):
        read(LISTING).executed((10, 2.5))
    with pytest.raises(ValueError, match="the loop at instruction 3 is never reached: let it be taken 0 times"):
        read(LISTING.replace("@P1 BRA", "BRA")).executed((10, 2.5, 0))


def test_blocks_that_a_processor_has_room_for() -> None:
    code = Code(b"", registers=47, stack_nbytes=0, shared_nbytes=0)
    assert code.at_once(256, 0, 90) == 5, "48 registers of 256 threads"
    assert code.at_once(256, 100 << 10, 90) == 2
    assert code.at_once(256, 100 << 10, 80) == 1
    assert Code(b"", 16, 0, 0).at_once(32, 0, 90) == 32


def test_the_page_has_a_row_for_each_kernel_and_each_is_in_a_header() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [each.what for each in KERNELS]
    for each in KERNELS:
        name, header = each.kernel.expression.partition("<")[0], sources()[each.kernel.header].decode()
        included = re.findall(r'^#include "(.+)"', header, re.MULTILINE)
        assert name in header + "".join(sources()[other].decode() for other in included)
