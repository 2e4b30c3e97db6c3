#pragma once

#include <cstddef>
#include <vector>

namespace starling::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// All of them; under a sanitizer, which sees the same code in a third of them, every third.
template <class T>
std::vector<T> fewer_if_sanitized(std::vector<T> all) {
  if (!kSanitized) return all;
  std::vector<T> some;
  for (std::size_t k = 0; k < all.size(); k += 3) some.push_back(all[k]);
  return some;
}

}  // namespace starling::test
