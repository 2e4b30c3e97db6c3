#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/folder.h"

namespace starling::test {

/// What `body` writes to stderr, line by line.
inline std::vector<std::string> stderr_lines(const std::function<void()>& body) {
  const test::Folder folder;
  struct Redirection {
    explicit Redirection(const std::string& path) : before(::dup(2)), file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600)) {
      std::fflush(stderr);
      ::dup2(file, 2);
    }
    ~Redirection() {
      std::fflush(stderr);
      ::dup2(before, 2);
      ::close(before);
      ::close(file);
    }
    int before, file;
  };
  {
    const Redirection redirection(folder / "stderr");
    body();
  }
  std::istringstream stream(folder.read("stderr"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace starling::test
