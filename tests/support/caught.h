#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace starling::test {

/// Catches a standard file: what goes to it goes to this one meanwhile.
class Caught {
 public:
  Caught(std::FILE* stream, const std::string& path)
      : stream_(stream), before_(::dup(::fileno(stream))) {
    std::fflush(stream_);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, ::fileno(stream_));
    ::close(file);
  }
  ~Caught() {
    std::fflush(stream_);
    ::dup2(before_, ::fileno(stream_));
    ::close(before_);
  }
  Caught(const Caught&) = delete;
  Caught& operator=(const Caught&) = delete;

 private:
  std::FILE* stream_;
  int before_;
};

}  // namespace starling::test
