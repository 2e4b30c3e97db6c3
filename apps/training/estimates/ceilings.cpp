#include "apps/training/estimates/ceilings.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "core/operations/products.h"

namespace starling {

namespace {

/// The fastest of some runs, after one that warms up.
double least_seconds(Backend& backend, const std::function<void()>& work, int runs = 5) {
  double least = 0.0;
  for (int run = 0; run <= runs; ++run) {
    backend.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    work();
    backend.synchronize();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (run > 0) least = run == 1 ? seconds : std::min(least, seconds);
  }
  return std::max(least, 1e-9);
}

Tensor filled(Backend& backend, const Shape& shape, DType dtype) {
  Tensor tensor(backend, shape, dtype);
  backend.fill(tensor, 0.5);
  return tensor;
}

/// Whether `word` stands between blanks, commas or the ends.
bool has_word(std::string_view text, std::string_view word) {
  constexpr std::string_view kEnds = " ,";
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(kEnds), text.size());
    if (text.substr(0, end) == word) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

}  // namespace

double Ceilings::flops(DType compute, bool tf32) const {
  if (compute == DType::kFloat64) return fp64_flops;
  if (compute == DType::kFloat32) return tf32 ? tf32_flops : fp32_flops;
  return low_flops;
}

std::optional<Ceilings> known_ceilings(std::string_view device) {
  for (const char* slower : {"PCIe", "NVL", "MIG"}) {
    if (has_word(device, slower)) return std::nullopt;
  }
  for (const Ceilings& known : kCeilings) {
    if (has_word(device, known.device)) return known;
  }
  return std::nullopt;
}

double product_seconds(Backend& backend, DType compute, std::int64_t side, int calls, int runs) {
  const Tensor a = filled(backend, {side, side}, compute),
               b = filled(backend, {side, side}, compute),
               c = filled(backend, {side, side}, compute);
  return least_seconds(
      backend,
      [&] {
        for (int i = 0; i < calls; ++i) backend.matmul({.a = a, .b = b, .c = c});
      },
      runs);
}

Ceilings measured_ceilings(Backend& backend, DType compute, std::int64_t copy_bytes,
                           std::int64_t side) {
  constexpr int kCalls = 4;
  Ceilings result{.device = "measured"};
  {
    const Shape half{copy_bytes / 2 / static_cast<std::int64_t>(sizeof(float))};
    const Tensor from = filled(backend, half, DType::kFloat32),
                 to = filled(backend, half, DType::kFloat32);
    const double seconds = least_seconds(backend, [&] {
      for (int i = 0; i < kCalls; ++i) backend.copy(from, to);
    });
    result.bytes_per_second = kCalls * 2.0 * static_cast<double>(from.bytes()) / seconds;
  }
  const double seconds = product_seconds(backend, compute, side, kCalls);
  const auto n = static_cast<double>(side);
  result.low_flops = result.fp32_flops = result.tf32_flops = result.fp64_flops =
      kCalls * 2.0 * n * n * n / seconds;
  return result;
}

}  // namespace starling
