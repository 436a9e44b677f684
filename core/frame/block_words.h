// How many words the blocks of a frame have: the encoder's choice, by layout, shape and profile alone.
#pragma once
#include <cstddef>
#include <cstdint>

#include "include/tensorwire.h"

namespace tw {

// The words of a row, of the last dimension; 0 where it has no whole number of them, or there is one row alone.
uint64_t row_words(const tw_frame& frame);

// The words of a block in all profiles but compact: whole rows, where some multiple of them is near 32,768 words.
uint32_t fast_block_words(const tw_frame& frame);

// Compact has as many of them in a block as fit 2^18 words, if the frame cannot get larger by that: not where so few
// blocks share an index that this saves less than rows of parts take. frame.num_words counts.
uint32_t usual_block_words(const tw_frame& frame);

// Compact: the words of the blocks that profile fast would have, which may be parts of a block; 0 in other profiles.
size_t part_words(const tw_frame& frame);

}  // namespace tw
