#include "apps/training/output/version.h"

#include <fmt/format.h>

#include "apps/inference/version.h"
#include "comm/mpi/session.h"
#include "comm/nccl/nccl.h"
#include "kernels/cpu/isa.h"

namespace starling {

std::string version_report() {
  return fmt::format("starling {} (commit {})\ncompiler: {}\n{}\n{}\n", version_text(),
                     commit_text(), STARLING_COMPILER, mpi_library_version(),
                     cpu::library_version());
}

std::string nccl_version_line() {
  std::string why;
  const auto nccl = open_nccl(why);
  return nccl ? fmt::format("NCCL {}\n", nccl->version()) : std::string();
}

}  // namespace starling
