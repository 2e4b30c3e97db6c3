#include <algorithm>
#include <cmath>

#include "kernels/cpu/batch_norm_parts.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Batch and layer normalisation: the per-channel arithmetic around the kernels of norm_isa.cpp.
namespace starling {

using cpu::Index;
using cpu::Workspace;

namespace {

/// Scale and shift for the kernels' long rows.
template <class T>
void repeated_affine_form(Index channels, const T* mean, const T* inv_std, const T* gamma, const T* beta, T* scale, T* shift) {
  cpu::affine_form(channels, mean, inv_std, gamma, beta, scale, shift);
  cpu::repeat(scale, channels);
  cpu::repeat(shift, channels);
}

}  // namespace

template <class T>
void CpuBackend::batch_norm_forward_of(const BatchNormForward& args) {
  constexpr const char* kName = "batch norm forward";
  using R = Compute<T>;
  const cpu::Matrix matrix = cpu::matrix_of(args.x, kName);
  const Index rows = matrix.rows, channels = matrix.channels;
  const Index elements = rows * channels, width = cpu::fold_width(channels), block = cpu::block_rows(channels);
  const T* x = args.x.data<T>();
  const T* residual = cpu::optional_numbers<T>(args.residual, elements, kName, "residual");
  const R* gamma = cpu::optional_numbers<R>(args.gamma, channels, kName, "gamma");
  const R* beta = cpu::optional_numbers<R>(args.beta, channels, kName, "beta");
  T* y = cpu::numbers<T>(args.y, elements, kName, "y");
  R* running_mean = cpu::optional_numbers<R>(args.running_mean, channels, kName, "running_mean");
  R* running_var = cpu::optional_numbers<R>(args.running_var, channels, kName, "running_var");
  const cpu::Kernels<T>& k = kernels<T>();

  const Workspace<R> vectors(*allocator_, 4 * width);
  R* scale = vectors.data();
  R* shift = scale + width;
  const R* mean = shift + width;
  const R* inv_std = mean + width;
  if (args.training) {
    const Index parts = threads_.count();
    R* saved_mean = cpu::numbers<R>(args.saved_mean, channels, kName, "saved_mean");
    R* saved_inv_std = cpu::numbers<R>(args.saved_inv_std, channels, kName, "saved_inv_std");
    const Workspace<R> scratch(*allocator_, parts * 3 * width);
    // Per part: mean and squared deviations so far, and those of one block.
    const Workspace<double> moments(*allocator_, parts * 4 * channels);
    const Workspace<double> counts(*allocator_, parts);
    std::fill_n(counts.data(), parts, 0.0);
    // Chan et al. 1983: the moments of a union of two sets of `n` and `m` elements.
    const auto merge = [&](double* to_mean, double* to_m2, double n, const double* mean_b, const double* m2_b, double m) {
      const double share = m / (n + m), cross = n * share;
      for (Index c = 0; c < channels; ++c) {
        const double delta = mean_b[c] - to_mean[c];
        to_mean[c] += delta * share;
        to_m2[c] += m2_b[c] + delta * delta * cross;
      }
    };
    threads_.parallel_parts(rows, block, [&](Index part, Index begin, Index end) {
      double* own = moments.data() + part * 4 * channels;
      double* piece = own + 2 * channels;
      std::fill_n(own, 2 * channels, 0.0);
      double n = 0.0;
      for (Index r = begin; r < end; r += block) {
        const Index count = std::min(block, end - r);
        k.moments(x + r * channels, count, channels, scratch.data() + part * 3 * width, piece, piece + channels);
        merge(own, own + channels, n, piece, piece + channels, static_cast<double>(count));
        n += static_cast<double>(count);
      }
      counts.data()[part] = n;
    });
    double* all = moments.data();
    double n = counts.data()[0];
    for (Index part = 1; part < parts; ++part) {
      if (counts.data()[part] <= 0.0) continue;
      const double* own = all + part * 4 * channels;
      merge(all, all + channels, n, own, own + channels, counts.data()[part]);
      n += counts.data()[part];
    }
    for (Index c = 0; c < channels; ++c) {
      const double variance = std::max(all[channels + c], 0.0) / n;
      // max() above would hide a NaN.
      saved_inv_std[c] = static_cast<R>(std::isnan(all[channels + c]) ? all[channels + c] : 1.0 / std::sqrt(variance + args.eps));
      saved_mean[c] = static_cast<R>(all[c]);
      if (running_mean)
        running_mean[c] = static_cast<R>((1.0 - args.momentum) * static_cast<double>(running_mean[c]) + args.momentum * all[c]);
      if (running_var) {
        const double unbiased = n > 1.0 ? all[channels + c] / (n - 1.0) : variance;
        running_var[c] = static_cast<R>((1.0 - args.momentum) * static_cast<double>(running_var[c]) + args.momentum * unbiased);
      }
    }
    if (args.batches_tracked) ++*args.batches_tracked.data<std::int64_t>();
    mean = saved_mean;
    inv_std = saved_inv_std;
  } else {
    require(running_mean && running_var, "cpu", "batch norm forward: inference needs the running statistics");
    R* inverse = shift + 2 * width;
    for (Index c = 0; c < channels; ++c) inverse[c] = static_cast<R>(1.0 / std::sqrt(static_cast<double>(running_var[c]) + args.eps));
    mean = running_mean;
    if (args.saved_mean) std::copy_n(mean, channels, cpu::numbers<R>(args.saved_mean, channels, kName, "saved_mean"));
    if (args.saved_inv_std) std::copy_n(inverse, channels, cpu::numbers<R>(args.saved_inv_std, channels, kName, "saved_inv_std"));
  }
  repeated_affine_form(channels, mean, inv_std, gamma, beta, scale, shift);
  threads_.parallel_for(rows, block, [&](Index begin, Index end) {
    const Index o = begin * channels;
    k.affine(x + o, residual ? residual + o : nullptr, y + o, end - begin, channels, scale, shift, args.relu);
  });
}

void CpuBackend::batch_norm_forward(const BatchNormForward& args) {
  floating(args.x, "batch norm forward", [&](auto type) { batch_norm_forward_of<decltype(type)>(args); });
}

template <class T>
void CpuBackend::batch_norm_backward_of(const BatchNormBackward& args) {
  constexpr const char* kName = "batch norm backward";
  using R = Compute<T>;
  const cpu::Matrix matrix = cpu::matrix_of(args.x, kName);
  const Index rows = matrix.rows, channels = matrix.channels;
  const Index elements = rows * channels, width = cpu::fold_width(channels), block = cpu::block_rows(channels);
  const cpu::NormInputs<T> in(args, matrix, kName);
  const T *x = in.x, *dy = in.dy;
  const R *mean = in.mean, *inv_std = in.inv_std, *gamma = in.gamma;
  const R* beta = args.relu ? cpu::optional_numbers<R>(args.beta, channels, kName, "beta") : nullptr;
  const T* y = args.relu && !beta ? cpu::numbers<T>(args.y, elements, kName, "y") : nullptr;
  const T* dy2 = cpu::optional_numbers<T>(args.dy2, elements, kName, "dy2");
  T* dx = cpu::optional_numbers<T>(args.dx, elements, kName, "dx");
  T* dresidual = cpu::optional_numbers<T>(args.dresidual, elements, kName, "dresidual");
  const cpu::Kernels<T>& k = kernels<T>();

  const Index parts = threads_.count();
  const Workspace<R> vectors(*allocator_, (6 + 2 * parts) * width);
  R* means = vectors.data();
  R* a = means + width;
  R* b = a + width;
  R* c0 = b + width;
  R* scale = beta ? c0 + width : nullptr;
  R* shift = beta ? scale + width : nullptr;
  R* scratch = c0 + 3 * width;
  std::copy_n(mean, channels, means);
  cpu::repeat(means, channels);
  if (beta) repeated_affine_form(channels, mean, inv_std, gamma, beta, scale, shift);

  const Workspace<double> sums(*allocator_, parts * 2 * channels);
  double* sum_g = sums.data();
  double* sum_gx = sum_g + channels;
  std::fill_n(sums.data(), parts * 2 * channels, 0.0);
  threads_.parallel_parts(rows, block, [&](Index part, Index begin, Index end) {
    double* own = sums.data() + part * 2 * channels;
    for (Index r = begin; r < end; r += block) {
      const Index o = r * channels;
      k.masked_sums(x + o, y ? y + o : nullptr, dy + o, dy2 ? dy2 + o : nullptr, dresidual ? dresidual + o : nullptr,
                    std::min(block, end - r), channels, means, scale, shift, scratch + part * 2 * width, own, own + channels);
    }
  });
  for (Index part = 1; part < parts; ++part) {
    const double* own = sums.data() + part * 2 * channels;
    for (Index c = 0; c < 2 * channels; ++c) sums.data()[c] += own[c];
  }
  const cpu::NormGradients<R> gradients{.inv_std = inv_std,
                                        .gamma = gamma,
                                        .dgamma = cpu::optional_numbers<R>(args.dgamma, channels, kName, "dgamma"),
                                        .dbeta = cpu::optional_numbers<R>(args.dbeta, channels, kName, "dbeta"),
                                        .a = a,
                                        .b = b,
                                        .shift = c0,
                                        .rows = rows,
                                        .accumulate = args.accumulate,
                                        .training = args.training};
  for (Index c = 0; c < channels; ++c) gradients.take(c, sum_g[c], sum_gx[c] * static_cast<double>(inv_std[c]));
  if (!dx) return;
  gradients.repeat_all(channels);
  // The masked sum is at hand where the first pass wrote it.
  const T* g_y = dresidual ? nullptr : y;
  const T* g_dy = dresidual ? dresidual : dy;
  const T* g_dy2 = dresidual ? nullptr : dy2;
  if (dresidual) scale = shift = nullptr;
  threads_.parallel_for(rows, block, [&](Index begin, Index end) {
    const Index o = begin * channels;
    k.masked_affine(x + o, g_y ? g_y + o : nullptr, g_dy + o, g_dy2 ? g_dy2 + o : nullptr, dx + o, end - begin, channels, means, scale,
                    shift, a, b, c0);
  });
}

void CpuBackend::batch_norm_backward(const BatchNormBackward& args) {
  floating(args.x, "batch norm backward", [&](auto type) { batch_norm_backward_of<decltype(type)>(args); });
}

void CpuBackend::layer_norm_forward(const LayerNormForward& args) {
  constexpr const char* kName = "layer norm forward";
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const cpu::Matrix matrix = cpu::matrix_of(args.x, kName);
    const Index rows = matrix.rows, channels = matrix.channels;
    const T* x = args.x.data<T>();
    const R* gamma = cpu::optional_numbers<R>(args.gamma, channels, kName, "gamma");
    const R* beta = cpu::optional_numbers<R>(args.beta, channels, kName, "beta");
    T* y = cpu::numbers<T>(args.y, rows * channels, kName, "y");
    R* mean = cpu::optional_numbers<R>(args.saved_mean, rows, kName, "saved_mean");
    R* inv_std = cpu::optional_numbers<R>(args.saved_inv_std, rows, kName, "saved_inv_std");
    threads_.parallel_for(rows, 8, [&, c = channels](Index begin, Index end) {
      kernels<T>().layer_norm_forward(x + begin * c, gamma, beta, y + begin * c, mean ? mean + begin : nullptr,
                                      inv_std ? inv_std + begin : nullptr, end - begin, c, args.eps);
    });
  });
}

void CpuBackend::layer_norm_backward(const LayerNormBackward& args) {
  constexpr const char* kName = "layer norm backward";
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const cpu::Matrix matrix = cpu::matrix_of(args.x, kName);
    const Index rows = matrix.rows, channels = matrix.channels;
    const T* x = args.x.data<T>();
    const T* dy = cpu::numbers<T>(args.dy, rows * channels, kName, "dy");
    const R* gamma = cpu::optional_numbers<R>(args.gamma, channels, kName, "gamma");
    const R* mean = cpu::numbers<R>(args.saved_mean, rows, kName, "saved_mean");
    const R* inv_std = cpu::numbers<R>(args.saved_inv_std, rows, kName, "saved_inv_std");
    T* dx = cpu::optional_numbers<T>(args.dx, rows * channels, kName, "dx");
    R* dgamma = cpu::optional_numbers<R>(args.dgamma, channels, kName, "dgamma");
    R* dbeta = cpu::optional_numbers<R>(args.dbeta, channels, kName, "dbeta");
    const Index parts = threads_.count();
    const Workspace<double> sums(*allocator_, parts * 2 * channels);
    std::fill_n(sums.data(), parts * 2 * channels, 0.0);
    threads_.parallel_parts(rows, 8, [&, c = channels](Index part, Index begin, Index end) {
      double* own = sums.data() + part * 2 * c;
      kernels<T>().layer_norm_backward(x + begin * c, dy + begin * c, gamma, mean + begin, inv_std + begin, dx ? dx + begin * c : nullptr,
                                       end - begin, c, dbeta ? own : nullptr, dgamma ? own + c : nullptr);
    });
    const auto store = [&](R* to, Index first, Index count) {
      for (Index c = 0; to && c < count; ++c) {
        double sum = args.accumulate ? static_cast<double>(to[c]) : 0.0;
        for (Index part = 0; part < parts; ++part) sum += sums.data()[part * 2 * count + first + c];
        to[c] = static_cast<R>(sum);
      }
    };
    store(dbeta, 0, channels);
    store(dgamma, channels, channels);
  });
}

}  // namespace starling
