#include "transforms/expand_portable.h"

namespace tw {
namespace {

template <unsigned W>
struct WordLanes : Portable<W> {};

}  // namespace

extern const ExpandKernels kExpandScalar;
const ExpandKernels kExpandScalar = {find, compact, expand};

}  // namespace tw
