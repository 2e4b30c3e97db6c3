#pragma once

#include <cstdio>
#include <string>

namespace starling {

/// Writes all of `text`; Error(kOutput) names `name` if that fails.
void write_all(std::FILE* file, const std::string& text, const std::string& name);
inline void write_standard_output(const std::string& text) { write_all(stdout, text, "standard output"); }

}  // namespace starling
