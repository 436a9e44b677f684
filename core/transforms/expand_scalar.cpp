#include "transforms/expand_portable.h"

namespace tw {
namespace {

template <unsigned W>
struct Lanes : Portable<W> {};

}  // namespace

extern const ExpandKernels kExpandScalar;
const ExpandKernels kExpandScalar = {find, compact, expand};

}  // namespace tw
