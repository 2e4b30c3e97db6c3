// Whether the ranks' files of two runs' checkpoints hold the same bits: same_tensors FOLDER_A
// FOLDER_B STEP RANKS. (Their metadata holds the configs, which may differ.)
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "core/safetensors.h"

int main(int argc, char** argv) {
  if (argc != 5)
    return std::fprintf(stderr, "usage: same_tensors FOLDER_A FOLDER_B STEP RANKS\n"), 2;
  int different = 0;
  std::size_t tensors = 0;
  for (int rank = 0; rank < std::stoi(argv[4]); ++rank) {
    const std::string file = fmt::format("/checkpoints/step-{}/rank-{}.safetensors", argv[3], rank);
    const auto a = starling::read_safetensors(argv[1] + file),
               b = starling::read_safetensors(argv[2] + file);
    if (a.tensors.size() != b.tensors.size())
      return fmt::print("rank {}: {} tensors and {}\n", rank, a.tensors.size(), b.tensors.size()),
             1;
    for (const auto& [name, tensor] : a.tensors) {
      ++tensors;
      const auto other = b.tensors.find(name);
      if (other != b.tensors.end() && other->second.bytes == tensor.bytes &&
          other->second.shape == tensor.shape)
        continue;
      if (different++ < 3) fmt::print("rank {}: {} differs\n", rank, name);
    }
  }
  fmt::print("{} of {} tensors differ\n", different, tensors);
  return different == 0 && tensors > 0 ? 0 : 1;
}
