#include "apps/topo/output.h"

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace starling {

void write_all(std::FILE* file, const std::string& text, const std::string& name) {
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (!written) fail(ExitCode::kOutput, "output", "{} could not be written: {}", name, std::strerror(errno));
}

}  // namespace starling
