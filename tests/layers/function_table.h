#pragma once

#include <string>
#include <vector>

namespace starling::testing {

/// A row of docs/functions.md, whose tables are made of these: a function, or several that are
/// alike. A function of layers/functions.h has a row, and a case in golden/functions.json or a test
/// of its own.
struct FunctionRow {
  const char* group;     ///< the heading of its table
  const char* call;      ///< names, or the call; "`add`, `subtract`"
  const char* what;      ///< what it gives, with the shapes
  const char* gradient;  ///< in what, and how
  const char* cost;      ///< passes over memory, forward; backward
};
const std::vector<FunctionRow>& function_rows();

/// The table under a heading, as docs/functions.md has it.
std::string table_of(const std::string& group);

}  // namespace starling::testing
