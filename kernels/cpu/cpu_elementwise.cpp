#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/math/gradient_factor.h"

// Activations, sums, dropout and casts.
namespace starling {

using cpu::Index;
using cpu::kElementGrain;

void CpuBackend::activation_forward(const ActivationForward& args) {
  constexpr const char* kName = "activation forward";
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = cpu::numbers<T>(args.y, args.x.elements(), kName, "y");
    threads_.parallel_for(args.x.elements(), kElementGrain, [&](Index begin, Index end) {
      kernels<T>().activation_forward(args.kind, x + begin, y + begin, end - begin);
    });
  });
}

void CpuBackend::activation_backward(const ActivationBackward& args) {
  constexpr const char* kName = "activation backward";
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    const T* dy = cpu::numbers<T>(args.dy, args.x.elements(), kName, "dy");
    T* dx = cpu::numbers<T>(args.dx, args.x.elements(), kName, "dx");
    threads_.parallel_for(args.x.elements(), kElementGrain, [&](Index begin, Index end) {
      kernels<T>().activation_backward(args.kind, x + begin, dy + begin, dx + begin, end - begin);
    });
  });
}

void CpuBackend::add(const Add& args) {
  floating(args.a, "add", [&](auto type) {
    using T = decltype(type);
    const T* a = args.a.data<T>();
    const T* b = cpu::numbers<T>(args.b, args.a.elements(), "add", "b");
    T* y = cpu::numbers<T>(args.y, args.a.elements(), "add", "y");
    threads_.parallel_for(args.a.elements(), kElementGrain, [&](Index begin, Index end) {
      kernels<T>().add(a + begin, b + begin, y + begin, end - begin);
    });
  });
}

void CpuBackend::dropout(const Dropout& args) {
  require(args.p >= 0.0 && args.p <= 1.0, "cpu", "dropout: p is {}, but must lie in [0, 1]",
          args.p);
  require(args.run > 0 && args.x.elements() % args.run == 0, "cpu",
          "dropout: runs of {} do not make up {} elements", args.run, args.x.elements());
  floating(args.x, "dropout", [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* y = cpu::numbers<T>(args.y, args.x.elements(), "dropout", "y");
    if (args.run > 1) {
      threads_.parallel_for(args.x.elements(), kElementGrain, [&](Index begin, Index end) {
        kernels<T>().dropout_runs(x, y, begin, end - begin, args.run, args.p, args.key,
                                  args.counter);
      });
      return;
    }
    threads_.parallel_for(args.x.elements(), 4096, [&](Index begin, Index end) {
      kernels<T>().dropout(x, y, begin, end - begin, args.p, args.key, args.counter);
    });
  });
}

void CpuBackend::weighted_sum(const WeightedSum& args) {
  constexpr const char* kName = "weighted_sum";
  require(args.terms >= 0 && args.terms <= 8, "cpu", "weighted_sum: {} terms; at most 8",
          args.terms);
  floating(args.out, kName, [&](auto type) {
    using T = decltype(type);
    const Index n = args.out.elements();
    T* out = args.out.data<T>();
    std::array<const T*, 8> in{};
    std::array<Compute<T>, 8> weight{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.terms); ++i) {
      in[i] = cpu::numbers<T>(args.in[i], n, kName, "an input");
      weight[i] = static_cast<Compute<T>>(args.weight[i]);
    }
    threads_.parallel_for(n, kElementGrain, [&](Index begin, Index end) {
      std::array<const T*, 8> from{};
      for (std::size_t i = 0; i < static_cast<std::size_t>(args.terms); ++i)
        from[i] = in[i] + begin;
      kernels<T>().weighted_sum(from.data(), weight.data(), args.terms, out + begin, end - begin,
                                args.accumulate);
    });
  });
}

void CpuBackend::gradient_control(const GradientControl& args) {
  require(args.totals && args.first >= 0 && args.count >= 0 &&
              args.first + args.count <= args.totals.elements(),
          "cpu", "gradient_control: totals {} to {} of {}", args.first, args.first + args.count,
          args.totals ? args.totals.elements() : 0);
  require(args.control && args.control.elements() == 2, "cpu",
          "gradient_control: control must have 2 elements");
  const double* totals = args.totals.data<double>() + args.first;
  double sum = 0.0;
  for (Index i = 0; i < args.count; ++i) sum += totals[i];
  double* control = args.control.data<double>();
  const math::GradientFactor result =
      math::gradient_factor(sum, args.scale, args.clip, args.check_finite);
  control[0] = result.factor;
  control[1] = result.skip;
}

void CpuBackend::squared_distance(const SquaredDistance& args) {
  constexpr const char* kName = "squared_distance";
  // elements whose sum is one term, so that the order does not depend on the threads
  constexpr Index kBlock = 4096;
  require(args.totals && args.index >= 0 && args.index < args.totals.elements(), "cpu",
          "squared_distance: no total {}", args.index);
  floating(args.x, kName, [&](auto type) {
    using T = decltype(type);
    const Index n = args.x.elements(), blocks = (n + kBlock - 1) / kBlock;
    const T* x = args.x.data<T>();
    const T* y = cpu::optional_numbers<T>(args.y, n, kName, "y");
    const cpu::Workspace<double> sums(*allocator_, std::max<Index>(blocks, 1));
    threads_.parallel_for(blocks, 8, [&](Index begin, Index end) {
      for (Index b = begin; b < end; ++b) {
        const Index o = b * kBlock;
        sums.data()[b] =
            kernels<T>().squared_distance(x + o, y ? y + o : nullptr, std::min(kBlock, n - o));
      }
    });
    // In chains, of which a GPU takes all at the same time; up to 32 terms are added one after
    // another.
    constexpr Index kChains = 32;
    double sum = 0.0;
    for (Index chain = 0; chain < std::min(kChains, blocks); ++chain) {
      double part = 0.0;
      for (Index b = chain; b < blocks; b += kChains) part += sums.data()[b];
      sum += part;
    }
    args.totals.data<double>()[args.index] += sum;
  });
}

namespace {

template <class To>
To rounded(double value) {
  if constexpr (std::is_same_v<To, double> || std::is_same_v<To, float>) {
    return static_cast<To>(value);
  } else {
    return To(static_cast<float>(value));
  }
}

template <class From, class To>
void cast_numbers(const cpu::Threads& threads, const Tensor& x, const Tensor& y) {
  const From* from = x.data<From>();
  To* to = y.data<To>();
  threads.parallel_for(x.elements(), kElementGrain, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      if constexpr (std::is_same_v<From, double>) {
        to[i] = rounded<To>(from[i]);
      } else if constexpr (std::is_same_v<To, double>) {
        to[i] = static_cast<double>(static_cast<float>(from[i]));
      } else {
        to[i] = To(static_cast<float>(from[i]));
      }
    }
  });
}

template <class From>
void cast_from(const cpu::Threads& threads, const Tensor& x, const Tensor& y) {
  switch (y.dtype()) {
    case DType::kFloat32: return cast_numbers<From, float>(threads, x, y);
    case DType::kFloat64: return cast_numbers<From, double>(threads, x, y);
    case DType::kBFloat16: return cast_numbers<From, BFloat16>(threads, x, y);
    case DType::kFloat16: return cast_numbers<From, Float16>(threads, x, y);
    default:
      fail(ExitCode::kUsage, "cpu",
           "a cast from {} to {} is not offered; to fp32, fp64, bf16 and fp16 it is",
           name_of(x.dtype()), name_of(y.dtype()));
  }
}

}  // namespace

void CpuBackend::cast(const Cast& args) {
  require(args.x && args.y && args.x.elements() == args.y.elements(), "cpu",
          "cast: x and y must have as many elements");
  // Denormal numbers of 16-bit types are values like any other; a cast must keep them, so this does
  // not enter().
  const auto between = [&](auto low) {
    using T = decltype(low);
    const Index n = args.x.elements();
    if (args.x.dtype() == DType::kFloat32) return narrow(args.x.data<float>(), args.y.data<T>(), n);
    threads_.parallel_for(n, kElementGrain, [&](Index begin, Index end) {
      kernels<T>().widen(args.x.data<T>() + begin, args.y.data<float>() + begin, end - begin);
    });
  };
  const auto is_between = [&](DType low) {
    return (args.x.dtype() == low && args.y.dtype() == DType::kFloat32) ||
           (args.y.dtype() == low && args.x.dtype() == DType::kFloat32);
  };
  if (is_between(DType::kBFloat16)) return between(BFloat16());
  if (is_between(DType::kFloat16)) return between(Float16());
  switch (args.x.dtype()) {
    case DType::kFloat32: return cast_from<float>(threads_, args.x, args.y);
    case DType::kFloat64: return cast_from<double>(threads_, args.x, args.y);
    case DType::kBFloat16: return cast_from<BFloat16>(threads_, args.x, args.y);
    case DType::kFloat16: return cast_from<Float16>(threads_, args.x, args.y);
    case DType::kUInt8: return cast_from<std::uint8_t>(threads_, args.x, args.y);
    default:
      fail(ExitCode::kUsage, "cpu",
           "a cast from {} is not offered; from floating types and uint8 it is",
           name_of(args.x.dtype()));
  }
}

}  // namespace starling
