#include "frame/once_reader.h"

#include <algorithm>
#include <cstring>

#include "frame/header.h"

namespace tw {
namespace {

constexpr uint64_t kPieceNbytes = 8192;

}  // namespace

void OnceReader::start(const LeafHasher& fresh, uint64_t position, LeafHasher* joined) {
  num_kept_ = num_hashed_ = 0;
  to_keep_ = joined != nullptr ? 0 : ceil_to(position, TW_LEAF_NBYTES) - position;
  hasher_ = joined;
  if (joined != nullptr) return;
  own_ = fresh;
  own_.start(position + to_keep_);
  hasher_ = &own_;
}

void OnceReader::read(const uint8_t* src, uint64_t nbytes, uint8_t* dst) {
  const uint64_t kept = std::min(nbytes, to_keep_ - num_kept_);
  std::memcpy(dst, src, kept);
  std::memcpy(kept_ + num_kept_, dst, kept);
  num_kept_ += kept;
  num_hashed_ += nbytes - kept;
  hasher_->copy(src + kept, nbytes - kept, dst + kept);
}

void OnceReader::finish(LeafHasher* all) {
  if (hasher_ != &own_) return;
  all->update(kept_, num_kept_);
  if (num_hashed_ != 0) *all = own_;
}

void Arrival::reach(uint64_t end) {
  if (end <= arrived) return;
  const uint64_t to = std::min(ceil_to(end, kPieceNbytes), nbytes);
  if (to != arrived) reader->read(src + arrived, to - arrived, dst + arrived);
  arrived = to;
}

}  // namespace tw
