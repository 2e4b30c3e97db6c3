#include "core/quantity.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace starling {

std::string plain_number(double value) {
  const double size = std::abs(value);
  if (size >= 1000.0 && size < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value);
}

std::string quantity(double value, std::string_view unit) {
  if (unit == "s" && value >= 120.0 && std::isfinite(value)) {
    for (const auto& [longer, seconds] : {std::pair("d", 172800.0), {"h", 7200.0}, {"min", 120.0}})
      if (value >= seconds)
        return fmt::format("{} {}", plain_number(2.0 * value / seconds), longer);
  }
  constexpr const char* kPrefixes[] = {"n", "µ", "m", "", "k", "M", "G", "T", "P", "E"};
  constexpr int kNone = 3, kLast = 9;
  int prefix = kNone;
  const int least = unit == "s" ? 0 : kNone;  // no part of a byte
  // as it is rounded
  while (prefix < kLast && unit != "s" && std::abs(value) >= 999.95) value /= 1e3, ++prefix;
  while (prefix > least && value != 0.0 && std::abs(value) < 0.99995) value *= 1e3, --prefix;
  return fmt::format("{} {}{}", plain_number(value), kPrefixes[prefix], unit);
}

}  // namespace starling
