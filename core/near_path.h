#pragma once

#include <string>

namespace starling {

/// "there is no runs/frist; did you mean 'first'?": the first folder or file of a path that is not
/// there, with the nearest name of those beside it. Empty where all are there.
std::string what_is_missing(const std::string& path);
/// Its end alone, "; did you mean 'first'?"; empty where none is near.
std::string near_name(const std::string& path);

}  // namespace starling
