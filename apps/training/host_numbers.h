#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace starling {

/// A tensor's bytes where the host can read them: the CPU's own lie there.
class HostBytes {
 public:
  explicit HostBytes(const Tensor& tensor);
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::vector<std::byte> copy_;
  const std::byte* data_ = nullptr;
};

/// A tensor's numbers, in memory order.
std::vector<double> host_numbers(const Tensor& tensor);

/// `check_numbers`: Error(kDiverged) where a number is not finite, which names `key` (a layer or
/// tensor), what of it this is, and where it came up. Looks at the host's copy, so it waits for the
/// device; tensors of integers and of the meta backend are passed over.
void check_finite(const Tensor& tensor, const std::string& key, const std::string& what, int rank,
                  std::int64_t step);

}  // namespace starling
