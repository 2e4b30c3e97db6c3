#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/caught.h"
#include "tests/support/folder.h"
#include "tests/support/rows.h"

namespace starling::test {

/// Lines that `body` writes to stderr.
inline std::vector<std::string> stderr_lines(const std::function<void()>& body) {
  const Folder folder;
  {
    const Caught caught(stderr, folder / "stderr");
    body();
  }
  return lines_of(folder.read("stderr"));
}

}  // namespace starling::test
