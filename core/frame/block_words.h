// How many words the blocks of a frame have: the encoder's choice.
#pragma once
#include <cstdint>

#include "include/tensorwire.h"

namespace tw {

// By dtype, shape and profile: whole rows, where some multiple of them is near the profile's usual size.
uint32_t usual_block_words(const tw_frame& frame);

// By the content as well, of which the first TW_SAMPLE_NBYTES or all are there; `base` has the same bytes of the base,
// or is nullptr. Profile compact takes smaller blocks where the statistics of the content change on the way: each block
// has tables of its own. They stay whole rows. Integers only: the same on every machine.
uint32_t fitting_block_words(const tw_frame& frame, const uint8_t* content, const uint8_t* base);

// The fewest that fitting_block_words() may choose, whatever the content.
uint32_t least_block_words(const tw_frame& frame);

}  // namespace tw
