#include "layers/key_value_cache.h"

#include <algorithm>

#include "core/backend.h"
#include "core/operations/copying.h"

namespace starling {

namespace {

/// Stores x, N×Hkv×T×D, in `to` from token `first` on.
void store(const View& x, const Tensor& to, std::int64_t first) {
  StridedCopy copy{.x = x.tensor(), .y = to, .rank = 4, .first = x.first(), .others = {}};
  for (int d = 0; d < 4; ++d)
    copy.dimensions[static_cast<std::size_t>(d)] =
        StridedCopy::Dimension::whole(to.shape()[d], x.stride(d));
  copy.dimensions[2].begin = first;
  copy.dimensions[2].count = x.shape()[2];
  to.backend().strided_copy(copy);
}

}  // namespace

KeyValueCache::Heads KeyValueCache::append(const View& keys, const View& values) {
  if (calls_ == memory_.size()) memory_.emplace_back();
  std::array<Tensor, 2>& memory = memory_[calls_++];
  std::array<View, 2> all{keys, values};
  for (std::size_t i = 0; i < 2; ++i) {
    const View some = all[i];
    Tensor& to = memory[i];
    Shape whole = some.shape();
    const std::int64_t count = tokens_ + whole[2], places = to ? to.shape()[2] : 0;
    if (tokens_ == 0 || count > places) {
      // Double the capacity, so that each element is moved once on average.
      const Tensor old = to;
      whole[2] = std::max<std::int64_t>({count, std::min(2 * places, places + 4096), 64});
      to = Tensor(some.tensor().backend(), whole, some.dtype());
      if (tokens_ > 0) store(View(old).slice(2, 0, tokens_), to, 0);
    }
    store(some, to, tokens_);
    all[i] = View(to).slice(2, 0, count);
  }
  return {all[0], all[1]};
}

}  // namespace starling
