// Whether the ranks' states in two runs' checkpoints have the same bits: same_tensors FOLDER_A
// FOLDER_B STEP RANKS. (Their metadata holds the configs, which may differ.)
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "apps/inference/checkpoint_file.h"

int main(int argc, char** argv) {
  if (argc != 5)
    return std::fprintf(stderr, "usage: same_tensors FOLDER_A FOLDER_B STEP RANKS\n"), 2;
  int different = 0;
  std::size_t tensors = 0;
  const std::string step = fmt::format("/checkpoints/step-{}", argv[3]);
  const starling::CheckpointFile of_a(argv[1] + step), of_b(argv[2] + step);
  for (int rank = 0; rank < std::stoi(argv[4]); ++rank) {
    const auto a = of_a.read(rank), b = of_b.read(rank);
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
