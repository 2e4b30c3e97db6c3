// What other ranks send as bytes: a word of outer steps with a quorum, and every code's messages.
// These have the agreed length, but any content.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "comm/algorithms/quorum.h"
#include "core/operations/codecs.h"
#include "core/operations/sparse.h"
#include "kernels/open_backend.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace starling;

void read_word(const std::uint8_t* data, std::size_t size) {
  constexpr int kRanks = 3;
  std::vector<double> numbers(QuorumWord::kWeights + kRanks);
  std::memcpy(numbers.data(), data, std::min(size, numbers.size() * sizeof(double)));
  const QuorumWord word = QuorumWord::read(numbers.data(), kRanks, 0);
  const QuorumFormat format{.code = 4, .bytes = 100, .most_bytes = 900};
  fuzz::expect(word.outer >= 0 && word.bytes >= 0 && std::isfinite(word.grace), "a word's numbers");
  if (word.kind == QuorumWord::kDifference && word.why_refused(format, {}).empty())
    fuzz::expect(word.bytes == 0 ? word.weight == 0.0
                                 : word.bytes == 100 && word.code == 4 && word.weight > 0.0 &&
                                       std::isfinite(word.weight),
                 "a difference as agreed");
}

void decode(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  constexpr std::int64_t kElements = 320, kAround = 32;
  constexpr float kUntouched = 7.25f;
  const std::int64_t block = data[1] % 2 ? 64 : 96;
  const Tensor memory(*backend, Shape{kElements + 2 * kAround}, DType::kFloat32);
  backend->fill(memory, static_cast<double>(kUntouched));
  const Tensor out = memory.slice(kAround, Shape{kElements});
  const auto message = [&](std::int64_t bytes, std::size_t skip) {
    Tensor made(*backend, Shape{bytes}, DType::kUInt8);
    for (std::int64_t i = 0; i < bytes; ++i)
      made.data<std::uint8_t>()[i] = data[2 + (static_cast<std::size_t>(i) + skip) % (size - 2)];
    return made;
  };
  constexpr Code kCodes[] = {Code::kBf16, Code::kInt8, Code::kMinMax8, Code::kInt4};
  const int which = data[0] % 7;
  if (which < 4) {
    const std::int64_t bytes = message_bytes(kCodes[which], DType::kFloat32, kElements, block);
    backend->decode({.messages = {message(bytes, 0), message(bytes, 1)},
                     .weight = {0.5, 0.5},
                     .terms = 2,
                     .out = out,
                     .code = kCodes[which],
                     .block = block});
  } else {
    const int bits[] = {2, 4, 8};
    const SparseLayout layout(*backend, kElements, {{0, 150}, {160, 130}}, block, 0.25,
                              bits[which - 4]);
    backend->sparse_decode({.messages = {message(layout.bytes, 0), message(layout.bytes, 1)},
                            .weights = {2.0f, 3.0f},
                            .out = out,
                            .layout = layout});
    for (std::int64_t i = 0; i < kElements; ++i)
      fuzz::expect((i >= 150 && i < 160) || i >= 290 ? out.data<float>()[i] == 0.0f : true,
                   "padding stays 0");
  }
  const float* all = memory.data<float>();
  for (std::int64_t i = 0; i < kAround; ++i)
    fuzz::expect(all[i] == kUntouched && all[kAround + kElements + i] == kUntouched,
                 "nothing is written beside the numbers");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 2) decode(data, size);
  return fuzz::reads_or_refuses([&] { read_word(data, size); });
}
