"""Jobs in which nothing is wrong, watched with low gates. What a rank does alone, R does."""

from __future__ import annotations

from .variants import Variant

_SECONDS = 65.0


def _healthy(name: str, program: str, about: str, seconds: float = _SECONDS) -> Variant:
    return Variant(f"healthy-{name}", program, about, ranks=(0, 2), seconds=seconds)


HEALTHY = [
    _healthy("compile", "healthy_ddp", "DDP of a model that torch.compile compiles"),
    _healthy("checkpoint-of-one", "healthy_ddp", "DDP; R saves for 2.5 s now and then, and the others wait"),
    _healthy("checkpoint-of-all", "healthy_ddp", "DDP; all save for 6 s now and then, longer than the hang gate"),
    _healthy("evaluation-of-one", "healthy_ddp", "DDP; R evaluates for 2.5 s, and the others wait"),
    _healthy("uneven", "healthy_ddp", "DDP; compute differs from step to step, and R has 8 ms more"),
    _healthy("collects-garbage", "healthy_ddp", "DDP that collects garbage every 50 steps"),
    _healthy("long-steps", "healthy_ddp", "DDP with steps of 6 s of compute in all ranks, longer than the hang gate"),
    _healthy("loader", "healthy_ddp", "DDP with workers of the data loader, which start anew each epoch"),
    _healthy("accumulation", "healthy_ddp", "DDP that accumulates gradients over 8 batches"),
    _healthy("mesh", "healthy_groups", "2 x 2 mesh, tp and dp, and a group that is used late"),
    _healthy("experts", "healthy_groups", "all_to_all of uneven sizes"),
    _healthy("rollouts", "healthy_groups", "R makes samples for up to 2 s, the others wait for its broadcast"),
    _healthy("end", "healthy_groups", "a job that ends, R 8 s after the others", 20.0),
    _healthy("pipeline", "pipeline", "Schedule1F1B of 4 stages"),
    _healthy("pipeline-dp", "pipeline", "Schedule1F1B of 2 stages x 2 dp"),
    _healthy("fsdp", "fsdp", "FSDP2"),
    _healthy("background-save", "background_save", "DDP; all save asynchronously, in a process group of its own"),
    _healthy("compressed-ddp", "healthy_more", "DDP, messages compressed"),
    _healthy("compressed-fsdp", "healthy_more", "FSDP2, messages and gradients compressed"),
    _healthy("compressed-experts", "healthy_more", "all_to_all, messages compressed"),
    _healthy("signals", "healthy_more", "DDP; all get SIGUSR1, SIGHUP and SIGTERM by turns, save and train on"),
    _healthy("ring", "healthy_more", "blocks go round a ring in batches of messages"),
    _healthy("local-steps", "healthy_more", "ranks train alone for 4 s, R for 5 s, and take the mean of their models"),
    _healthy("two-models", "healthy_more", "two models in DDP by turns"),
]
