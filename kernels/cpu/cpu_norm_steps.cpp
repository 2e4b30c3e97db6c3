#include <algorithm>
#include <cmath>

#include "kernels/cpu/batch_norm_parts.h"
#include "kernels/cpu/cpu_backend_detail.h"

// A batch norm in steps: what convolutions that carry out parts of it are composed with.
namespace starling {

using cpu::Index;
using cpu::Workspace;

namespace {

/// A copy of a per-channel vector that covers the kernels' long rows.
template <class R>
R* repeated(const R* from, Index channels, R* to) {
  std::copy_n(from, channels, to);
  cpu::repeat(to, channels);
  return to;
}

}  // namespace

void CpuBackend::channel_sums(const ChannelSums& args) {
  constexpr const char* kName = "channel sums";
  const cpu::Matrix matrix = cpu::matrix_of(args.x, kName);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const Index rows = matrix.rows, channels = matrix.channels, parts = threads_.count();
    const Index width = cpu::fold_width(channels), block = cpu::block_rows(channels);
    R* sum = cpu::numbers<R>(args.sum, channels, kName, "sum");
    R* square_sum = cpu::numbers<R>(args.square_sum, channels, kName, "square_sum");
    const T* x = args.x.data<T>();
    const Workspace<R> scratch(*allocator_, parts * 3 * width);
    // Per part: both sums so far, and mean and squared deviations of one block.
    const Workspace<double> sums(*allocator_, parts * 4 * channels);
    std::fill_n(sums.data(), parts * 4 * channels, 0.0);
    threads_.parallel_parts(rows, block, [&, c = channels](Index part, Index begin, Index end) {
      double* own = sums.data() + part * 4 * c;
      double* piece = own + 2 * c;
      for (Index r = begin; r < end; r += block) {
        const Index count = std::min(block, end - r);
        kernels<T>().moments(x + r * c, count, c, scratch.data() + part * 3 * width, piece, piece + c);
        const auto n = static_cast<double>(count);
        for (Index i = 0; i < c; ++i) {
          own[i] += n * piece[i];
          own[c + i] += piece[c + i] + n * piece[i] * piece[i];
        }
      }
    });
    for (Index c = 0; c < channels; ++c) {
      double total = 0.0, square_total = 0.0;
      for (Index part = 0; part < parts; ++part) {
        const double* own = sums.data() + part * 4 * channels;
        total += own[c];
        square_total += own[channels + c];
      }
      sum[c] = static_cast<R>(total);
      square_sum[c] = static_cast<R>(square_total);
    }
  });
}

void CpuBackend::batch_norm_finish(const BatchNormFinish& args) {
  constexpr const char* kName = "batch norm finish";
  require(args.count > 0, "cpu", "{}: sums of {} values", kName, args.count);
  floating(args.sum, kName, [&](auto type) {
    using R = decltype(type);
    const Index channels = args.sum.elements();
    const R* sum = args.sum.data<R>();
    const R* square_sum = cpu::numbers<R>(args.square_sum, channels, kName, "square_sum");
    const R* gamma = cpu::optional_numbers<R>(args.gamma, channels, kName, "gamma");
    const R* beta = cpu::optional_numbers<R>(args.beta, channels, kName, "beta");
    R* running_mean = cpu::optional_numbers<R>(args.running_mean, channels, kName, "running_mean");
    R* running_var = cpu::optional_numbers<R>(args.running_var, channels, kName, "running_var");
    R* saved_mean = cpu::numbers<R>(args.saved_mean, channels, kName, "saved_mean");
    R* saved_inv_std = cpu::numbers<R>(args.saved_inv_std, channels, kName, "saved_inv_std");
    R* scale = cpu::numbers<R>(args.scale, channels, kName, "scale");
    R* shift = cpu::numbers<R>(args.shift, channels, kName, "shift");
    const auto n = static_cast<double>(args.count);
    if constexpr (cpu::kIsLow<R>) {
      fail(ExitCode::kUsage, "cpu", "{}: sums are fp32 or fp64, not {}", kName, name_of(args.sum.dtype()));
    } else {
      for (Index c = 0; c < channels; ++c) {
        const double mean = static_cast<double>(sum[c]) / n;
        const double difference = static_cast<double>(square_sum[c]) / n - mean * mean;
        const double variance = difference < 0.0 ? 0.0 : difference;  // NaN stays NaN
        saved_mean[c] = static_cast<R>(mean);
        saved_inv_std[c] = static_cast<R>(1.0 / std::sqrt(variance + args.eps));
        const auto move = [&](R* running, double value) {
          if (running) running[c] = static_cast<R>((1.0 - args.momentum) * static_cast<double>(running[c]) + args.momentum * value);
        };
        move(running_mean, mean);
        move(running_var, n > 1.0 ? variance * n / (n - 1.0) : variance);
      }
      // From the rounded statistics, as the backward pass finds the mask from them.
      cpu::affine_form(channels, saved_mean, saved_inv_std, gamma, beta, scale, shift);
    }
    if (args.batches_tracked) ++*args.batches_tracked.data<std::int64_t>();
  });
}

void CpuBackend::scale_shift(const ScaleShift& args) {
  constexpr const char* kName = "scale and shift";
  const cpu::Matrix matrix = cpu::matrix_of(args.x, kName);
  require(static_cast<bool>(args.residual_scale) == static_cast<bool>(args.residual_shift) && (args.residual || !args.residual_scale),
          "cpu", "{}: residual, residual_scale and residual_shift do not belong together", kName);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const Index rows = matrix.rows, channels = matrix.channels, elements = rows * channels;
    const Index width = cpu::fold_width(channels), block = cpu::block_rows(channels);
    const T* x = args.x.data<T>();
    const T* residual = cpu::optional_numbers<T>(args.residual, elements, kName, "residual");
    const R* residual_scale = cpu::optional_numbers<R>(args.residual_scale, channels, kName, "residual_scale");
    const R* residual_shift = cpu::optional_numbers<R>(args.residual_shift, channels, kName, "residual_shift");
    T* y = cpu::numbers<T>(args.y, elements, kName, "y");
    const Workspace<R> vectors(*allocator_, 3 * width);
    const R* scale = repeated(cpu::numbers<R>(args.scale, channels, kName, "scale"), channels, vectors.data());
    R* shift = repeated(cpu::numbers<R>(args.shift, channels, kName, "shift"), channels, vectors.data() + width);
    if (residual_scale) {
      for (Index c = 0; c < channels; ++c) shift[c] += residual_shift[c];
      cpu::repeat(shift, channels);
      residual_scale = repeated(residual_scale, channels, vectors.data() + 2 * width);
    }
    threads_.parallel_for(rows, block, [&](Index begin, Index end) {
      const Index o = begin * channels;
      if (residual_scale) {
        kernels<T>().affine_two(x + o, residual + o, y + o, end - begin, channels, scale, residual_scale, shift, args.relu);
      } else {
        kernels<T>().affine(x + o, residual ? residual + o : nullptr, y + o, end - begin, channels, scale, shift, args.relu);
      }
    });
  });
}

void CpuBackend::batch_norm_backward_sums(const BatchNormBackwardSums& args) {
  constexpr const char* kName = "batch norm backward sums";
  const cpu::Matrix matrix = cpu::matrix_of(args.x, kName);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const Index rows = matrix.rows, channels = matrix.channels, elements = rows * channels, parts = threads_.count();
    const Index width = cpu::fold_width(channels), block = cpu::block_rows(channels);
    const cpu::NormInputs<T> in(args, matrix, kName);
    T* masked = cpu::numbers<T>(args.masked, elements, kName, "masked");
    R* sum_dy = cpu::numbers<R>(args.sum_dy, channels, kName, "sum_dy");
    R* sum_dy_xhat = cpu::numbers<R>(args.sum_dy_xhat, channels, kName, "sum_dy_xhat");
    const Workspace<R> vectors(*allocator_, (3 + 2 * parts) * width);
    R* scale = vectors.data();
    R* shift = scale + width;
    R* scratch = shift + 2 * width;
    cpu::affine_form(channels, in.mean, in.inv_std, in.gamma, cpu::optional_numbers<R>(args.beta, channels, kName, "beta"), scale, shift);
    cpu::repeat(scale, channels);
    cpu::repeat(shift, channels);
    const R* means = repeated(in.mean, channels, shift + width);
    const Workspace<double> sums(*allocator_, parts * 2 * channels);
    std::fill_n(sums.data(), parts * 2 * channels, 0.0);
    threads_.parallel_parts(rows, block, [&, c = channels](Index part, Index begin, Index end) {
      double* own = sums.data() + part * 2 * c;
      for (Index r = begin; r < end; r += block) {
        kernels<T>().masked_sums(in.x + r * c, nullptr, in.dy + r * c, nullptr, masked + r * c, std::min(block, end - r), c, means, scale,
                                 shift, scratch + part * 2 * width, own, own + c);
      }
    });
    for (Index c = 0; c < channels; ++c) {
      double sum = 0.0, sum_x = 0.0;
      for (Index part = 0; part < parts; ++part) {
        sum += sums.data()[part * 2 * channels + c];
        sum_x += sums.data()[part * 2 * channels + channels + c];
      }
      sum_dy[c] = static_cast<R>(sum);
      sum_dy_xhat[c] = static_cast<R>(sum_x * static_cast<double>(in.inv_std[c]));
    }
  });
}

void CpuBackend::batch_norm_backward_apply(const BatchNormBackwardApply& args) {
  constexpr const char* kName = "batch norm backward apply";
  const cpu::Matrix matrix = cpu::matrix_of(args.x, kName);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const Index rows = matrix.rows, channels = matrix.channels, elements = rows * channels;
    const Index width = cpu::fold_width(channels), block = cpu::block_rows(channels);
    const cpu::NormInputs<T> in(args, matrix, kName);
    const R* sum_dy = cpu::numbers<R>(args.sum_dy, channels, kName, "sum_dy");
    const R* sum_dy_xhat = cpu::numbers<R>(args.sum_dy_xhat, channels, kName, "sum_dy_xhat");
    T* dx = cpu::optional_numbers<T>(args.dx, elements, kName, "dx");
    const Workspace<R> vectors(*allocator_, 4 * width);
    const R* means = repeated(in.mean, channels, vectors.data());
    R* a = vectors.data() + width;
    const cpu::NormGradients<R> gradients{.inv_std = in.inv_std,
                                          .gamma = in.gamma,
                                          .dgamma = cpu::optional_numbers<R>(args.dgamma, channels, kName, "dgamma"),
                                          .dbeta = cpu::optional_numbers<R>(args.dbeta, channels, kName, "dbeta"),
                                          .a = a,
                                          .b = a + width,
                                          .shift = a + 2 * width,
                                          .rows = rows,
                                          .accumulate = args.accumulate,
                                          .training = true};
    for (Index c = 0; c < channels; ++c) gradients.take(c, static_cast<double>(sum_dy[c]), static_cast<double>(sum_dy_xhat[c]));
    if (!dx) return;
    gradients.repeat_all(channels);
    threads_.parallel_for(rows, block, [&](Index begin, Index end) {
      const Index o = begin * channels;
      kernels<T>().masked_affine(in.x + o, nullptr, in.dy + o, nullptr, dx + o, end - begin, channels, means, nullptr, nullptr, gradients.a,
                                 gradients.b, gradients.shift);
    });
  });
}

}  // namespace starling
