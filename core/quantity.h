#pragma once

#include <string>
#include <string_view>

namespace starling {

/// A quantity as people write it, to four digits, with the prefix that fits: "1.2 s", "350 MB/s",
/// "12 µs", "7 GB". Of `unit` "s" what is longer than two minutes is in min, h or d.
std::string quantity(double value, std::string_view unit);
/// A number to four digits or more, without an exponent from 0.0001 on: "224600", "0.0041".
std::string plain_number(double value);

}  // namespace starling
