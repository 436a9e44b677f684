// From NCCL's events to the slots of a page, of any version of NCCL.
//
// An operation counts as entered when its kernel begins on the GPU, not when the host launches it: collectives of a GPU
// that is still computing have not been entered, however many the host has launched ahead. It is complete when every
// channel that has begun has ended. The number of channels that a launch announces is not waited for, since not all of
// them are always used (NVIDIA/nccl, inspector plugin, reported for 2.28.7).
//
// Contexts and handles are numbers, never addresses: those of events that have ended, of communicators that were
// destroyed and of other processes are recognized and ignored. Nothing is allocated. All functions may be called from
// any thread, except begin().
#pragma once
#include <cstddef>
#include <cstdint>

#include "nccl_launch.h"
#include "page.h"

namespace tw::nccl {

using Handle = void*;  // a context or an event; null: nothing was recorded

// Once per process, before anything else. `control` is the path of the control page beside the rank page.
void begin(probe::Probe* probe, uint64_t world_size, const char* control);

// A handle of something of which nothing is kept. NCCL leaves out the events that belong to one without a handle.
Handle unkept();

// `hash` 0: identify() follows. Unkept where there is no room left, which the page then says.
Handle open_communicator(uint64_t hash, const char* name, uint64_t size);
void identify(Handle context, uint64_t hash, const char* name);
void close_communicator(Handle context);

Handle start_task(Handle context, const Launch& launch);
Handle start_channel(Handle task, uint64_t gpu_ns);
Handle start_proxy_op(Handle context, bool is_send, uint64_t chunk_nbytes);
Handle start_step(Handle proxy_op);

void record_channel_end(Handle channel, uint64_t gpu_ns);
void record_step_size(Handle step, uint64_t nbytes);
void stop(Handle event);

}  // namespace tw::nccl
