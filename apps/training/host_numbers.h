#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace starling {

/// A tensor's bytes in host memory: a copy, unless the tensor is on the CPU.
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

std::string tensor_checksum(const Tensor& tensor);
/// A tensor's elements, in memory order.
std::vector<double> host_numbers(const Tensor& tensor);

/// `check_numbers`: Error(kDiverged) if an element is not finite, with `key` (a layer or tensor)
/// and `what` of it. Waits for the device. Ignores integers and the meta backend.
void check_finite(const Tensor& tensor, const std::string& key, const std::string& what, int rank,
                  std::int64_t step);

}  // namespace starling
