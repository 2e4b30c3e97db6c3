#include "kernels/cuda/operations/running_statistics.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/runtime/launch.h"

namespace starling::cuda {

namespace {

/// One norm's; what is null is missing.
struct Move {
  const float *mean, *inv_std;  ///< of this batch
  float *running_mean, *running_var;
  std::int64_t* batches_tracked;
  std::int64_t rows;
  double eps, momentum;
  int channels;
};
/// Every device takes 4 KiB of parameters: enough for the 53 norms of a ResNet-50.
constexpr int kNorms = 4096 / sizeof(Move) - 1;
struct Moves {
  Move of[kNorms];
};

/// blockIdx.y is the norm.
__global__ void __launch_bounds__(kThreads) running_statistics_kernel(const Moves moves) {
  const Move& s = moves.of[blockIdx.y];
  const int threads = static_cast<int>(gridDim.x * blockDim.x), first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int c = first; c < s.channels; c += threads) {
    if (s.running_mean) {
      s.running_mean[c] =
          static_cast<float>((1.0 - s.momentum) * static_cast<double>(s.running_mean[c]) + s.momentum * static_cast<double>(s.mean[c]));
    }
    if (s.running_var) {
      const double inv_std = static_cast<double>(s.inv_std[c]);
      double variance = 1.0 / (inv_std * inv_std) - s.eps;
      if (variance < 0.0) variance = 0.0;  // NaN stays
      if (s.rows > 1) variance *= static_cast<double>(s.rows) / static_cast<double>(s.rows - 1);
      s.running_var[c] = static_cast<float>((1.0 - s.momentum) * static_cast<double>(s.running_var[c]) + s.momentum * variance);
    }
  }
  if (first == 0 && s.batches_tracked) ++*s.batches_tracked;
}

bool overlap(const Tensor& a, const Tensor& b) { return a && b && a.raw() < b.raw() + b.bytes() && b.raw() < a.raw() + a.bytes(); }

}  // namespace

PendingStatistics::PendingStatistics() {
  const char* batched = std::getenv("STARLING_BATCHED_STATISTICS");
  at_once_ = batched && std::string_view(batched) == "0";
}

void PendingStatistics::add(const BatchNormForward& args, StreamHandle stream) {
  if (!args.running_mean && !args.running_var && !args.batches_tracked) return;
  if (!norms_.empty() && stream != stream_) finish();
  stream_ = stream;
  const std::int64_t channels = args.x.shape().back();
  for (const Tensor& running : {args.running_mean, args.running_var}) {
    if (!running) continue;
    require(running.elements() == channels && running.dtype() == args.saved_mean.dtype(), "cuda",
            "batch norm forward: running statistics of {} {} numbers; needed: {} {}", running.elements(), name_of(running.dtype()),
            channels, name_of(args.saved_mean.dtype()));
  }
  require(!args.batches_tracked || (args.batches_tracked.elements() == 1 && args.batches_tracked.dtype() == DType::kInt64), "cuda",
          "batch norm forward: batches_tracked must be one int64");
  norms_.push_back({args.saved_mean, args.saved_inv_std, args.running_mean, args.running_var, args.batches_tracked, channels,
                    args.x.elements() / channels, args.eps, args.momentum});
  if (at_once_) finish();
}

bool PendingStatistics::involves(const Tensor& tensor) const {
  return std::any_of(norms_.begin(), norms_.end(), [&](const Norm& norm) {
    return overlap(tensor, norm.running_mean) || overlap(tensor, norm.running_var) || overlap(tensor, norm.batches_tracked) ||
           overlap(tensor, norm.mean) || overlap(tensor, norm.inv_std);
  });
}

void PendingStatistics::finish() {
  if (norms_.empty()) return;
  const std::vector<Norm> norms = std::move(norms_);
  norms_.clear();
  for (std::size_t begin = 0; begin < norms.size(); begin += kNorms) {
    const std::size_t count = std::min<std::size_t>(norms.size() - begin, kNorms);
    Moves moves{};
    std::int64_t channels = 1;
    for (std::size_t i = 0; i < count; ++i) {
      const Norm& norm = norms[begin + i];
      channels = std::max(channels, norm.channels);
      Move& move = moves.of[i];
      move = {.mean = norm.mean.data<float>(),
              .inv_std = norm.inv_std.data<float>(),
              .rows = norm.rows,
              .eps = norm.eps,
              .momentum = norm.momentum,
              .channels = static_cast<int>(norm.channels)};
      if (norm.running_mean) move.running_mean = norm.running_mean.data<float>();
      if (norm.running_var) move.running_var = norm.running_var.data<float>();
      if (norm.batches_tracked) move.batches_tracked = norm.batches_tracked.data<std::int64_t>();
    }
    launch(running_statistics_kernel, {{blocks_for(channels, kThreads), static_cast<unsigned>(count)}, {kThreads}, stream_}, moves);
  }
}

}  // namespace starling::cuda
