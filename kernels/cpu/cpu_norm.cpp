#include <algorithm>
#include <cmath>

#include "core/operations/norms.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/math/rectifier.h"

// Batch and layer normalisation: the per-channel arithmetic around the kernels of norm_isa.cpp. A
// batch norm comes as one operation and in steps, between which ranks add up sums. And softmax.
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

/// The affine form of a normalisation, one for forward and backward so that the backward pass can
/// find the sign of y again.
template <class R>
void affine_form(Index channels, const R* mean, const R* inv_std, const R* gamma, const R* beta,
                 R* scale, R* shift) {
  for (Index c = 0; c < channels; ++c) {
    scale[c] = (gamma ? gamma[c] : R(1)) * inv_std[c];
    shift[c] = static_cast<R>((beta ? static_cast<double>(beta[c]) : 0.0) -
                              static_cast<double>(mean[c]) * static_cast<double>(scale[c]));
  }
}
/// The vectors for the kernels' long rows.
template <class R>
void repeated_affine_form(Index channels, const R* mean, const R* inv_std, const R* gamma,
                          const R* beta, R* scale, R* shift) {
  affine_form(channels, mean, inv_std, gamma, beta, scale, shift);
  cpu::repeat(scale, channels);
  cpu::repeat(shift, channels);
}

/// Where a batch's statistics go; the running ones are optional.
template <class R>
struct NormStatistics {
  R *saved_mean, *saved_inv_std, *running_mean, *running_var;
  double eps, momentum;

  /// Takes the arguments of BatchNormForward or BatchNormFinish.
  template <class Args>
  explicit NormStatistics(const Args& args)
      : saved_mean(args.saved_mean.template data<R>()),
        saved_inv_std(args.saved_inv_std.template data<R>()),
        running_mean(cpu::optional<R>(args.running_mean)),
        running_var(cpu::optional<R>(args.running_var)),
        eps(args.eps),
        momentum(args.momentum) {}

  void take(Index c, double mean, double variance, double unbiased) const {
    saved_mean[c] = static_cast<R>(mean);
    saved_inv_std[c] = static_cast<R>(1.0 / std::sqrt(variance + eps));
    const auto move = [&](R* running, double value) {
      if (running)
        running[c] =
            static_cast<R>((1.0 - momentum) * static_cast<double>(running[c]) + momentum * value);
    };
    move(running_mean, mean);
    move(running_var, unbiased);
  }
};

/// The arguments that BatchNormBackward and its steps all have.
template <class T>
struct NormInputs {
  using R = Compute<T>;
  const T *x, *dy;
  const R *mean, *inv_std, *gamma;  ///< gamma is optional

  template <class Args>
  explicit NormInputs(const Args& args)
      : x(args.x.template data<T>()),
        dy(args.dy.template data<T>()),
        mean(args.saved_mean.template data<R>()),
        inv_std(args.saved_inv_std.template data<R>()),
        gamma(cpu::optional<R>(args.gamma)) {}
};

/// dγ, dβ and the coefficients of dx = a·g + b·(x - mean) + shift, where g is the gradient before
/// the normalisation.
template <class R>
struct NormGradients {
  const R *inv_std, *gamma;
  R *dgamma, *dbeta;  ///< optional
  R *a, *b, *shift;
  Index rows;
  bool accumulate, training;

  /// Makes the channel's results from Σ g and Σ g·x̂ of channel c.
  void take(Index c, double g, double gx) const {
    const double inv = static_cast<double>(inv_std[c]),
                 factor = (gamma ? static_cast<double>(gamma[c]) : 1.0) * inv;
    const double share = 1.0 / static_cast<double>(rows);
    if (dgamma)
      dgamma[c] = static_cast<R>((accumulate ? static_cast<double>(dgamma[c]) : 0.0) + gx);
    if (dbeta) dbeta[c] = static_cast<R>((accumulate ? static_cast<double>(dbeta[c]) : 0.0) + g);
    // dx = γ/σ (g - mean(g) - x̂·mean(g·x̂)); with constant statistics only the first term is left.
    a[c] = static_cast<R>(factor);
    b[c] = static_cast<R>(training ? -factor * inv * gx * share : 0.0);
    shift[c] = static_cast<R>(training ? -factor * g * share : 0.0);
  }
  /// The coefficients cover the kernels' long rows.
  void repeat_all(Index channels) const {
    for (R* vector : {a, b, shift}) cpu::repeat(vector, channels);
  }
};

}  // namespace

template <class T>
void CpuBackend::batch_norm_forward_of(const BatchNormForward& args) {
  using R = Compute<T>;
  const cpu::Matrix matrix = cpu::matrix_of(args.x);
  const Index rows = matrix.rows, channels = matrix.channels;
  const Index width = matrix.width(), block = matrix.block();
  const T* x = args.x.data<T>();
  const T* residual = cpu::optional<T>(args.residual);
  const R* gamma = cpu::optional<R>(args.gamma);
  const R* beta = cpu::optional<R>(args.beta);
  T* y = cpu::optional<T>(args.y);
  const cpu::Kernels<T>& k = kernels<T>();

  const Workspace<R> vectors(*allocator_, 4 * width);
  R* scale = vectors.data();
  R* shift = scale + width;
  const R* mean = shift + width;
  const R* inv_std = mean + width;
  if (args.training) {
    const Index parts = threads_.count();
    const NormStatistics<R> statistics(args);
    const Workspace<R> scratch(*allocator_, parts * 3 * width);
    // Numbers of each part: mean and squared deviations so far, and those of one block.
    const Workspace<double> moments(*allocator_, parts * 4 * channels);
    const Workspace<double> counts(*allocator_, parts);
    std::fill_n(counts.data(), parts, 0.0);
    // Chan et al. 1983: the moments of a union of two sets of `n` and `m` elements.
    const auto merge = [&](double* to_mean, double* to_m2, double n, const double* mean_b,
                           const double* m2_b, double m) {
      const double share = m / (n + m), cross = n * share;
      for (Index c = 0; c < channels; ++c) {
        const double delta = mean_b[c] - to_mean[c];
        to_mean[c] += delta * share;
        to_m2[c] += m2_b[c] + delta * delta * cross;
      }
    };
    std::fill_n(moments.data(), parts * 4 * channels, 0.0);
    threads_.parallel_blocks(rows, block, [&](Index part, Index r, Index count) {
      double* own = moments.data() + part * 4 * channels;
      double* piece = own + 2 * channels;
      double& n = counts.data()[part];
      k.moments(x + r * channels, count, channels, scratch.data() + part * 3 * width, piece,
                piece + channels);
      merge(own, own + channels, n, piece, piece + channels, static_cast<double>(count));
      n += static_cast<double>(count);
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
      const double m2 = all[channels + c], variance = (m2 < 0.0 ? 0.0 : m2) / n;  // NaN stays
      statistics.take(c, all[c], variance, n > 1.0 ? m2 / (n - 1.0) : variance);
    }
    if (args.batches_tracked) ++*args.batches_tracked.data<std::int64_t>();
    mean = statistics.saved_mean;
    inv_std = statistics.saved_inv_std;
  } else if (!args.running_mean) {
    mean = args.saved_mean.data<R>();
    inv_std = args.saved_inv_std.data<R>();
  } else {
    mean = args.running_mean.data<R>();
    const R* running_var = args.running_var.data<R>();
    R* inverse = shift + 2 * width;
    for (Index c = 0; c < channels; ++c)
      inverse[c] = static_cast<R>(1.0 / std::sqrt(static_cast<double>(running_var[c]) + args.eps));
    if (args.saved_mean) std::copy_n(mean, channels, args.saved_mean.data<R>());
    if (args.saved_inv_std) std::copy_n(inverse, channels, args.saved_inv_std.data<R>());
  }
  if (!y) return;
  repeated_affine_form(channels, mean, inv_std, gamma, beta, scale, shift);
  threads_.parallel_for(rows, block, [&](Index begin, Index end) {
    const Index o = begin * channels;
    k.affine(x + o, residual ? residual + o : nullptr, y + o, end - begin, channels, scale, shift,
             args.rectifier.relu, math::rectifier_of<R>(args.rectifier));
  });
}

void CpuBackend::issue(const BatchNormForward& args) {
  floating(args.x, [&](auto type) { batch_norm_forward_of<decltype(type)>(args); });
}

/// Σ g and Σ g·(x - mean) of each channel, [2][channels], where g is dy + dy2 masked by y or by the
/// affine form; `masked` (optional) gets g. scratch: 2 · width for each thread.
template <class T>
static Workspace<double> gradient_sums(cpu::CachingAllocator& allocator,
                                       const cpu::Threads& threads, const cpu::Kernels<T>& k,
                                       const NormInputs<T>& in, cpu::Matrix matrix, const T* y,
                                       const T* dy2, T* masked, const Compute<T>* means,
                                       const Compute<T>* scale, const Compute<T>* shift,
                                       const Rectifier& how, Compute<T>* scratch) {
  const Index channels = matrix.channels, width = matrix.width(), parts = threads.count();
  const auto rectifier = math::rectifier_of<Compute<T>>(how);
  Workspace<double> sums(allocator, parts * 2 * channels);
  std::fill_n(sums.data(), parts * 2 * channels, 0.0);
  threads.parallel_blocks(matrix.rows, matrix.block(), [&](Index part, Index r, Index count) {
    const Index o = r * channels;
    double* own = sums.data() + part * 2 * channels;
    k.masked_sums(in.x + o, y ? y + o : nullptr, in.dy + o, dy2 ? dy2 + o : nullptr,
                  masked ? masked + o : nullptr, count, channels, means, scale, shift, rectifier,
                  scratch + part * 2 * width, own, own + channels);
  });
  for (Index part = 1; part < parts; ++part) {
    const double* own = sums.data() + part * 2 * channels;
    for (Index c = 0; c < 2 * channels; ++c) sums.data()[c] += own[c];
  }
  return sums;
}

template <class T>
void CpuBackend::batch_norm_backward_of(const BatchNormBackward& args) {
  using R = Compute<T>;
  const cpu::Matrix matrix = cpu::matrix_of(args.x);
  const Index rows = matrix.rows, channels = matrix.channels;
  const Index width = matrix.width(), block = matrix.block();
  const NormInputs<T> in(args);
  const T *x = in.x, *dy = in.dy;
  const R *mean = in.mean, *inv_std = in.inv_std, *gamma = in.gamma;
  const R* beta = args.rectifier.relu ? cpu::optional<R>(args.beta) : nullptr;
  const T* y = args.rectifier.relu && !beta ? args.y.data<T>() : nullptr;
  const T* dy2 = cpu::optional<T>(args.dy2);
  T* dx = cpu::optional<T>(args.dx);
  T* dresidual = cpu::optional<T>(args.dresidual);
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
  repeated(mean, channels, means);
  if (beta) repeated_affine_form(channels, mean, inv_std, gamma, beta, scale, shift);

  // Of g and of g·x̂
  const bool given = args.sums == BatchNormBackward::Sums::kGiven;
  const Workspace<double> sums =
      given ? Workspace<double>(*allocator_, 2 * channels)
            : gradient_sums<T>(*allocator_, threads_, k, in, matrix, y, dy2, dresidual, means,
                               scale, shift, args.rectifier, scratch);
  double* sum_g = sums.data();
  double* sum_gx = sum_g + channels;
  for (Index c = 0; c < channels && !given; ++c) sum_gx[c] *= static_cast<double>(inv_std[c]);
  if (args.sums != BatchNormBackward::Sums::kOwn) {
    const auto move = [&](double* outside, double* own) {
      std::copy_n(given ? outside : own, channels, given ? own : outside);
    };
    move(args.sum_dy.data<double>(), sum_g);
    move(args.sum_dy_xhat.data<double>(), sum_gx);
    if (!given) return;
  }
  const NormGradients<R> gradients{.inv_std = inv_std,
                                   .gamma = gamma,
                                   .dgamma = cpu::optional<R>(args.dgamma),
                                   .dbeta = cpu::optional<R>(args.dbeta),
                                   .a = a,
                                   .b = b,
                                   .shift = c0,
                                   .rows = rows,
                                   .accumulate = args.accumulate,
                                   .training = args.training};
  for (Index c = 0; c < channels; ++c) gradients.take(c, sum_g[c], sum_gx[c]);
  if (!dx) return;
  gradients.repeat_all(channels);
  // The masked sum is at hand where the first pass wrote it.
  const T* g_y = dresidual ? nullptr : y;
  const T* g_dy = dresidual ? dresidual : dy;
  const T* g_dy2 = dresidual ? nullptr : dy2;
  if (dresidual) scale = shift = nullptr;
  const auto rectifier = math::rectifier_of<R>(args.rectifier);
  threads_.parallel_for(rows, block, [&](Index begin, Index end) {
    const Index o = begin * channels;
    k.masked_affine(x + o, g_y ? g_y + o : nullptr, g_dy + o, g_dy2 ? g_dy2 + o : nullptr, dx + o,
                    end - begin, channels, means, scale, shift, rectifier, a, b, c0);
  });
}

void CpuBackend::issue(const BatchNormBackward& args) {
  floating(args.x, [&](auto type) { batch_norm_backward_of<decltype(type)>(args); });
}

void CpuBackend::issue(const BatchNormFinish& args) {
  floating(args.saved_mean, [&](auto type) {
    const NormStatistics<Compute<decltype(type)>> statistics(args);
    const auto n = static_cast<double>(args.count);
    const double *sum = args.sum.data<double>(), *square_sum = args.square_sum.data<double>();
    for (Index c = 0; c < args.sum.elements(); ++c) {
      const double mean = sum[c] / n, difference = square_sum[c] / n - mean * mean;
      const double variance = difference < 0.0 ? 0.0 : difference;  // NaN stays NaN
      statistics.take(c, mean, variance, n > 1.0 ? variance * n / (n - 1.0) : variance);
    }
    if (args.batches_tracked) ++*args.batches_tracked.data<std::int64_t>();
  });
}

void CpuBackend::issue(const LayerNormForward& args) {
  if (args.residual) {
    map({MapFunction::kAdd, args.x, args.residual.reshaped(args.x.shape()),
         args.sum.reshaped(args.x.shape())});
    LayerNormForward norm = args;
    norm.x = args.sum.reshaped(args.x.shape());
    norm.residual = norm.sum = {};
    return issue(norm);
  }
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const cpu::Matrix matrix = cpu::matrix_of(args.x);
    const Index rows = matrix.rows, channels = matrix.channels;
    const T* x = args.x.data<T>();
    const R* gamma = cpu::optional<R>(args.gamma);
    const R* beta = cpu::optional<R>(args.beta);
    T* y = args.y.data<T>();
    R* mean = cpu::optional<R>(args.saved_mean);
    R* inv_std = cpu::optional<R>(args.saved_inv_std);
    threads_.parallel_for(rows, 8, [&, c = channels](Index begin, Index end) {
      kernels<T>().layer_norm_forward(
          x + begin * c, gamma, beta, y + begin * c, mean ? mean + begin : nullptr,
          inv_std ? inv_std + begin : nullptr, end - begin, c, args.centered, args.eps);
    });
  });
}

void CpuBackend::issue(const LayerNormBackward& args) {
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const cpu::Matrix matrix = cpu::matrix_of(args.x);
    const Index rows = matrix.rows, channels = matrix.channels;
    const T* x = args.x.data<T>();
    const T* dy = args.dy.data<T>();
    const R* gamma = cpu::optional<R>(args.gamma);
    const R* mean = cpu::optional<R>(args.saved_mean);
    const R* inv_std = args.saved_inv_std.data<R>();
    const T* term = cpu::optional<T>(args.term);
    T* dx = cpu::optional<T>(args.dx);
    R* dgamma = cpu::optional<R>(args.dgamma);
    R* dbeta = cpu::optional<R>(args.dbeta);
    // Blocks of rows have separate sums, which are added in order: the bits do not depend on the
    // number of threads.
    constexpr Index kBlockWork = 65536, kMostBlocks = 256;
    const Index block = std::max({Index{16}, kBlockWork / std::max<Index>(channels, 1),
                                  (rows + kMostBlocks - 1) / kMostBlocks}),
                blocks = (rows + block - 1) / block, width = 2 * channels;
    const bool wanted = dgamma || dbeta;
    const Workspace<double> sums(*allocator_, wanted ? blocks * width : 1);
    threads_.parallel_for(blocks, 1, [&, c = channels](Index begin, Index end) {
      const Workspace<R> scratch(*allocator_, width);
      for (Index b = begin; b < end; ++b) {
        const Index row = b * block;
        double* own = wanted ? sums.data() + b * width : nullptr;
        if (own) std::fill_n(own, width, 0.0);
        kernels<T>().layer_norm_backward(
            x + row * c, dy + row * c, gamma, mean ? mean + row : nullptr, inv_std + row,
            term ? term + row * c : nullptr, dx ? dx + row * c : nullptr,
            std::min(block, rows - row), c, scratch.data(), own);
      }
    });
    const auto store = [&](R* to, Index first) {
      for (Index c = 0; to && c < channels; ++c) {
        double sum = args.accumulate ? static_cast<double>(to[c]) : 0.0;
        for (Index b = 0; b < blocks; ++b) sum += sums.data()[b * width + first + c];
        to[c] = static_cast<R>(sum);
      }
    };
    store(dbeta, 0);
    store(dgamma, channels);
  });
}

void CpuBackend::issue(const SoftmaxForward& args) {
  const auto [rows, n] = cpu::matrix_of(args.x);
  floating(args.x, [&, rows = rows, n = n](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    threads_.parallel_for(rows, cpu::rows_of_work(n), [&](Index begin, Index end) {
      const Index o = begin * n;
      kernels<T>().softmax(x + o, y + o, end - begin, n, args.logarithm);
    });
  });
}

void CpuBackend::issue(const SoftmaxBackward& args) {
  const auto [rows, n] = cpu::matrix_of(args.y);
  floating(args.y, [&, rows = rows, n = n](auto type) {
    using T = decltype(type);
    const T *y = args.y.data<T>(), *dy = args.dy.data<T>();
    T* dx = args.dx.data<T>();
    threads_.parallel_for(rows, cpu::rows_of_work(n), [&](Index begin, Index end) {
      const Index o = begin * n;
      kernels<T>().softmax_backward(y + o, dy + o, dx + o, end - begin, n, args.logarithm);
    });
  });
}

}  // namespace starling
