"""Faults that an earlier analyzer was given once, when the matrix of cases.py did not have them."""

from __future__ import annotations

from .variants import Variant

HANG = ("TW-H1", "TW-H2")


def _partner(rank: int) -> list[int]:
    """Both ranks of a tp group of the mesh."""
    return sorted((rank, rank ^ 1))


KNOWN = [
    Variant("loader-worker", "loader_fifo", "a worker of the data loader blocks in a FIFO", ("TW-H1",),
            before="H1 R: all"),
    Variant("two-groups-left-early", "two_groups", "two groups of all ranks; R leaves the loop over one early",
            ("TW-H2",), before="H2 R: all"),
    Variant("mesh-leave-early", "mesh", "2 x 2 mesh: R leaves the tp loop early; dp was not used before", HANG,
            tie=_partner, before="H3, no rank: 0 of 3"),
    Variant("mesh-leave-early-dp-used", "mesh", "the same, dp was used once before", HANG, tie=_partner,
            before="H2, two sides: a tie"),
    Variant("mesh-steps-of-fewer-layers", "mesh", "2 x 2 mesh: R has fewer layers in each step, until all wait in a "
            "circle", HANG, tie=_partner, before="not run"),
    Variant("mesh-first-operation", "mesh", "2 x 2 mesh: R is stuck before the first operation of its tp group",
            ("TW-H1",), before="H3, no rank: 0 of 2"),
    Variant("mesh-new-dp", "mesh", "2 x 2 mesh: R is stuck, and its peer waits in a dp group that is new", ("TW-H1",),
            before="H1 R, and a false H3 beside it: 3 of 3"),
    Variant("sizes-of-layers", "unlike_tensors", "R skips the gradient of a layer; gloo aborts on the sizes",
            ("TW-H2",), before="LOST R"),
    Variant("dtype-of-fewer-bytes", "unlike_tensors", "R reduces bfloat16 in place of float32; gloo aborts R itself",
            ("TW-H2",), before="LOST R"),
    Variant("gather-of-float64", "unlike_tensors", "R gathers float64 in place of float32 in its tp group of two",
            ("TW-H2",), tie=_partner, before="H2, two sides: a tie"),
    Variant("gather-of-int32", "unlike_tensors", "R gathers int32 in place of float32: the job runs on, with rubbish",
            notice="int32", before="nothing"),
    Variant("recv-chain", "recv_chain", "a chain of send and recv: R waits for a lock", ("TW-H1",),
            before="H1 R: 4 of 4"),
    Variant("pipeline", "pipeline", "Schedule1F1B of 4 stages: R waits for a lock", ("TW-H1",),
            before="nothing: 0 of 3"),
    Variant("pipeline-dp", "pipeline", "Schedule1F1B of 2 stages x 2 dp: R waits for a lock", ("TW-H1",),
            before="H1 R and H1 of its peer: 2 of 4"),
    Variant("stopped-most-of-the-time", "fsdp", "FSDP2: R is stopped for 0.3 s of every 0.4 s", ("TW-S1",),
            seconds=35, before="S1 R 14, S3 1, S2 1 of 16"),
    Variant("stopped-now-and-then", "fsdp", "FSDP2: R is stopped for 0.3 s of every 2 s; that is below the slow gate",
            seconds=35, before="nothing"),
    Variant("starved", "starved", "DDP: R has nice 19, and a competitor on its CPU", ("TW-S1",), seconds=35,
            before="S3 R: 13 of 13"),
    Variant("save-of-one-rank", "saving", "R saves with torch.save to slow storage, 40 s", ("TW-H1",),
            before="H1 R, as if in a lock"),
    Variant("save-of-all-ranks", "saving", "all save with torch.distributed.checkpoint; R's storage is slow",
            ("TW-H1",), before="H1 R, as if in a lock"),
    Variant("sys-exit-0", "leaving", "DDP: R calls sys.exit(0) in the middle", ("TW-LOST",), before="LOST R: all"),
    Variant("os-exit-0", "leaving", "DDP: R calls os._exit(0) in the middle", ("TW-LOST",), before="LOST R: all"),
    Variant("exception-in-a-hook", "leaving", "DDP: a hook of R raises", ("TW-LOST",), before="LOST R: all"),
    Variant("exception-and-a-thread", "leaving", "the same, and another thread keeps the process alive",
            ("TW-LOST", "TW-H1"), before="H1 R after 20 s, without the error"),
    Variant("uneven-then-barrier", "uneven_inputs", "R has fewer batches, and goes on to a barrier", ("TW-H2",),
            before="right"),
    Variant("uneven-then-end", "uneven_inputs", "R has fewer batches, and its script ends", ("TW-LOST",),
            before="right"),
    Variant("uneven-then-evaluation", "uneven_inputs", "R has fewer batches, and goes on to an evaluation that hangs",
            ("TW-H1",), before="right"),
    Variant("uneven-then-metric", "uneven_inputs", "R has fewer batches, and goes on to the all_reduce of a metric; "
            "gloo aborts", ("TW-H2", "TW-LOST"), before="LOST, once of three ranks"),
    Variant("torchrun-two-agents", "launched", "two agents of torchrun: R waits for a lock", ("TW-H1",),
            launcher="torchrun", before="H1 R: all"),
    Variant("accelerate-launch", "launched", "accelerate launch: R waits for a lock", ("TW-H1",),
            launcher="accelerate", before="H1 R: all"),
    Variant("hf-trainer", "launched", "transformers' Trainer: a callback of R waits for a lock", ("TW-H1",),
            before="H1 R: all"),
    Variant("stuck-before-init", "before_init", "R waits for a lock before init_process_group", ("TW-H1",),
            before="nothing: 0 of 1"),
    Variant("ctrl-c-hang", "leaving", "DDP: a hook of R waits for a lock; Ctrl-C after 15 s, then diagnose", HANG,
            ending="SIGINT", ending_seconds=15, before="LOST: 3 of 24 right, with those of meshes"),
    Variant("ctrl-c-mesh-first-operation", "mesh", "as mesh-first-operation; Ctrl-C after 15 s, then diagnose", HANG,
            ending="SIGINT", ending_seconds=15, before="LOST of an innocent rank"),
    Variant("ctrl-c-mesh-leave-early", "mesh", "as mesh-leave-early; Ctrl-C after 15 s, then diagnose", HANG,
            tie=_partner, ending="SIGINT", ending_seconds=15, before="LOST of an innocent rank"),
    Variant("sigterm-pipeline", "pipeline", "as pipeline; SIGTERM after 15 s, as of a scheduler, then diagnose", HANG,
            ending="SIGTERM", ending_seconds=15, before="not run"),
    Variant("ctrl-c-healthy", "leaving", "DDP, nothing wrong; Ctrl-C, then diagnose", ending="SIGINT",
            ending_seconds=4, before="LOST with all ranks"),
]  # fmt: skip
