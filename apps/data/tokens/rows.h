#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace starling {

/// Samples that lie in rows one behind the other.
struct Rows {
  std::vector<std::int64_t> members;    ///< of all rows
  std::vector<std::int64_t> begins{0};  ///< of a row's members, and after the last their number
  std::int64_t size() const { return std::ssize(begins) - 1; }
  std::span<const std::int64_t> of(std::int64_t row) const {
    const auto at = static_cast<std::size_t>(row);
    return std::span(members).subspan(static_cast<std::size_t>(begins[at]),
                                      static_cast<std::size_t>(begins[at + 1] - begins[at]));
  }
};

/// Puts samples into rows of `room` tokens, in their order each into the first that has room (first
/// fit), of the kOpenRows that were opened last. `length`: tokens of a sample, at most `room`.
Rows pack(std::span<const std::int64_t> order,
          const std::function<std::int64_t(std::int64_t sample)>& length, std::int64_t room);
inline constexpr std::size_t kOpenRows = 128;

}  // namespace starling
