#pragma once

#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/caught.h"
#include "tests/support/folder.h"

namespace starling::test {

/// Lines that `body` writes to stderr.
inline std::vector<std::string> stderr_lines(const std::function<void()>& body) {
  const Folder folder;
  {
    const Caught caught(stderr, folder / "stderr");
    body();
  }
  std::istringstream stream(folder.read("stderr"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace starling::test
