#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/updates.h"
#include "kernels/cuda/device/decode.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/operations/measure_kernel.h"
#include "kernels/cuda/operations/update_buffers.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/gpu_update.h"
#include "kernels/math/update_loop.h"

// The fused update of one bucket as a GPU kernel, made from a rule (kernels/math/rules.h says what
// one is): mix, unscale and clip, decay, rule and low-precision copy in one pass. A plug-in's .cu
// file with
//
//     STARLING_CUDA_RULE(mine, mine::Sign)
//
// This makes and registers the kernels for RuleKernel<mine::Sign>. The rule's struct lies in a
// header that the .cpp and the .cu share, in a namespace with a name (types of anonymous namespaces
// differ from file to file). The name is any word, once a library.

namespace starling::cuda {

constexpr int kUpdateThreads = 256;
/// Blocks that share the work evenly, each at most a few tiles: enough of them that the last ones
/// to run cost little.
constexpr int kUpdateBlocksPerMultiprocessor = 32;

namespace detail {

/// Numbers of a low precision, as many as a Pack<T> holds.
template <class Low, int kCount>
struct alignas(sizeof(Low) * kCount) LowPack {
  Low v[kCount];
};

template <bool kAligned, class T>
__device__ __forceinline__ Pack<T> load_pack(const T* from) {
  if constexpr (kAligned) {
    return *reinterpret_cast<const Pack<T>*>(from);
  } else {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) pack.v[i] = from[i];
    return pack;
  }
}

template <bool kAligned, class P, class T>
__device__ __forceinline__ void store_pack(T* to, const P& pack) {
  if constexpr (kAligned) {
    *reinterpret_cast<P*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(P) / sizeof(T)); ++i) to[i] = pack.v[i];
  }
}

template <bool kAligned, class Low, class T>
__device__ __forceinline__ void store_low(Low* to, const Pack<T>& value) {
  LowPack<Low, Pack<T>::kSize> low;
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) low.v[i] = Low(static_cast<float>(value.v[i]));
  store_pack<kAligned>(to, low);
}

/// Blocks that a multiprocessor must hold; 0: as the compiler sees fit, which for fp64 spills a few
/// bytes, to no use.
template <class Step, int kTerms>
constexpr int kLeastBlocks = sizeof(typename Step::Real) == sizeof(double) ? 2 : 0;

/// Packs that a thread has in flight in each of its streams: fewer streams, more packs.
template <class Step, int kTerms>
constexpr int packs_in_flight() {
  const int reads = 2 +
                    (kTerms == kEncodedTerms ? 0
                     : kTerms < 0            ? 1
                                             : kTerms) +
                    std::popcount(Step::kReads);
  return reads <= 3 && sizeof(typename Step::Real) == 4 ? 4 : 2;
}

/// Decodes what one message holds as it is added to the packs that begin at `at`.
template <class Code8, class T, int kPacks>
__device__ __forceinline__ void add_message(const EncodedBuffers& encoded,
                                            const UpdateTerm<T>& term,
                                            const std::int64_t (&at)[kPacks],
                                            Pack<T> (&sum)[kPacks]) {
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t i = encoded.first + at[k];
    const std::uint32_t block = static_cast<std::uint32_t>(i / Pack<T>::kSize) / encoded.block;
    ByteMessage<Code8>::add(static_cast<const std::uint8_t*>(term.received), encoded.elements, i,
                            block, term.weight, sum[k].v);
  }
}

}  // namespace detail

/// kTerms is the number of neighbours (0, 1, 2), or -1 for any number, or kEncodedTerms for any
/// number of messages; kAligned: all addresses are multiples of a pack's size. Every element is
/// read before it is written, by the same thread; arithmetic in the order of detail::update_block,
/// so that the bits are the CPU's.
template <class Step, int kTerms, bool kAligned>
__global__ void __launch_bounds__(kUpdateThreads, detail::kLeastBlocks<Step, kTerms>)
    update_kernel(const UpdateBuffers<typename Step::Real> buffers,
                  const UpdateValues<Step, kTerms> values) {
  using T = typename Step::Real;
  using P = Pack<T>;
  constexpr int kPacks = detail::packs_in_flight<Step, kTerms>();
  constexpr int kStates = Step::kStates;
  constexpr int kHeld = kStates > 0 ? kStates : 1;
  constexpr std::int64_t kTile = std::int64_t{kUpdateThreads} * kPacks;
  constexpr int kPacksPerDecay = starling::detail::kUpdateBlock / P::kSize;

  UpdateScalars<Step> scalars = values.scalars;
  if (values.from != nullptr) scalars = *values.from;
  const Step step = scalars.step;
  const T self_weight = scalars.self_weight;
  const T weight0 = scalars.weights[0], weight1 = scalars.weights[1];
  double clipping = 1.0;
  bool skip = false;
  if (buffers.control) {
    clipping = buffers.control[0];
    skip = buffers.control[1] != 0.0;
  }
  const T scale = static_cast<T>(scalars.gradient_scale * clipping);

  for (std::int64_t tile = std::int64_t{blockIdx.x} * kTile; tile < buffers.packs;
       tile += std::int64_t{gridDim.x} * kTile) {
    // All loads first. Past the end they repeat the last pack, whose result is dropped.
    P x[kPacks], g[kPacks], received0[kPacks], received1[kPacks], states[kHeld][kPacks];
    std::uint8_t entry[kPacks];
    std::int64_t at[kPacks];
    [[maybe_unused]] T factor[kPacks];  // of the element's layer
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t pack = tile + k * kUpdateThreads + threadIdx.x;
      const std::int64_t inside = pack < buffers.packs ? pack : buffers.packs - 1;
      at[k] = inside * P::kSize;
      entry[k] = buffers.decay[inside / kPacksPerDecay];
      if constexpr (kMeasuresLayers<Step>)
        factor[k] = static_cast<T>(buffers.factors[buffers.owner[inside / kPacksPerDecay]]);
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      x[k] = detail::load_pack<kAligned>(buffers.x + at[k]);
      g[k] = detail::load_pack<kAligned>(buffers.gradient + at[k]);
      if constexpr (kTerms > 0)
        received0[k] = detail::load_pack<kAligned>(buffers.received[0] + at[k]);
      if constexpr (kTerms > 1)
        received1[k] = detail::load_pack<kAligned>(buffers.received[1] + at[k]);
#pragma unroll
      for (int s = 0; s < kStates; ++s) {
        if ((Step::kReads >> s) & 1u)
          states[s][k] = detail::load_pack<kAligned>(buffers.states[s] + at[k]);
      }
    }
    asm volatile("" ::: "memory");  // no load sinks into the branches below
    if constexpr (kTerms < 0) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        received0[k] = {};
#pragma unroll
        for (int i = 0; i < P::kSize; ++i) x[k].v[i] = self_weight * x[k].v[i];
      }
#pragma unroll 2
      for (int term = 0; term < buffers.terms; ++term) {
        UpdateTerm<T> from;
        if (values.terms_from != nullptr) {
          from = values.terms_from[term];
        } else {
          from = values.terms[term];
        }
        if constexpr (kTerms == kEncodedTerms) {
          if (buffers.encoded.min_max) {
            detail::add_message<math::MinMax8Code>(buffers.encoded, from, at, received0);
          } else {
            detail::add_message<math::Int8Code>(buffers.encoded, from, at, received0);
          }
        } else {
          const T weight = from.weight;
#pragma unroll
          for (int k = 0; k < kPacks; ++k)
            received0[k] =
                detail::load_pack<kAligned>(static_cast<const T*>(from.received) + at[k]);
#pragma unroll
          for (int k = 0; k < kPacks; ++k) {
#pragma unroll
            for (int i = 0; i < P::kSize; ++i) x[k].v[i] = x[k].v[i] + weight * received0[k].v[i];
          }
        }
      }
      if constexpr (kTerms == kEncodedTerms) {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
#pragma unroll
          for (int i = 0; i < P::kSize; ++i) x[k].v[i] = x[k].v[i] + weight0 * received0[k].v[i];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
      for (int i = 0; i < P::kSize; ++i) {
        T& p = x[k].v[i];
        if constexpr (kTerms >= 0) p = self_weight * p;
        if constexpr (kTerms > 0) p = p + weight0 * received0[k].v[i];
        if constexpr (kTerms > 1) p = p + weight1 * received1[k].v[i];
      }
      // The branch also keeps packs apart: without it AdamW's kernel takes 74 registers, and 64 so
      if (skip) continue;
#pragma unroll
      for (int i = 0; i < P::kSize; ++i) {
        T state[kHeld] = {};
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          if ((Step::kReads >> s) & 1u) state[s] = states[s][k].v[i];
        }
        const T gradient = scale * g[k].v[i];
        const bool decays = (entry[k] & kDecays) != 0;
        if constexpr (kMeasuresLayers<Step>) {
          x[k].v[i] = step(x[k].v[i], gradient, state, decays, factor[k]);
        } else {
          x[k].v[i] = step(x[k].v[i], gradient, state, decays);
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          if ((Step::kWrites >> s) & 1u) states[s][k].v[i] = state[s];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (tile + k * kUpdateThreads + threadIdx.x >= buffers.packs) continue;
      detail::store_pack<kAligned>(buffers.x_out + at[k], x[k]);
      if (!skip) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          if ((Step::kWrites >> s) & 1u)
            detail::store_pack<kAligned>(buffers.states[s] + at[k], states[s][k]);
        }
      }
      if (buffers.low_bf16) detail::store_low<kAligned>(buffers.low_bf16 + at[k], x[k]);
      if (buffers.low_fp16) detail::store_low<kAligned>(buffers.low_fp16 + at[k], x[k]);
    }
  }
}

/// Starts kernels through the CUDA library's own runtime: for the built-in rules.
struct BackendLaunch {
  template <class... P, class... A>
  static void run(void (*kernel)(P...), const Launch& how, A&&... arguments) {
    launch(kernel, how, std::forward<A>(arguments)...);
  }
};
/// Launches through the runtime of the library that holds the kernel: for a plug-in's kernels.
struct PluginLaunch {
  template <class... P, class... A>
  static void run(void (*kernel)(P...), const Launch& how, A&&... arguments) {
    launch_own(kernel, how, std::forward<A>(arguments)...);
  }
};

namespace detail {

template <class T>
bool aligned_to(const T* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

/// Everything about a launch that does not depend on the step's type.
template <class T>
UpdateBuffers<T> update_buffers(const UpdateArgs& args, const starling::detail::Mixture& mixture,
                                bool& aligned) {
  UpdateBuffers<T> buffers;
  buffers.x = mixture.x->data<T>();
  buffers.x_out = args.x_out.data<T>();
  buffers.gradient = args.gradient.data<T>();
  aligned = aligned_to(buffers.x, 16) && aligned_to(buffers.x_out, 16) &&
            aligned_to(buffers.gradient, 16);
  for (std::size_t s = 0; s < args.states.size(); ++s) {
    buffers.states[s] = args.states[s].data<T>();
    aligned = aligned && aligned_to(buffers.states[s], 16);
  }
  buffers.terms = static_cast<int>(args.received.size() - mixture.skip);
  if (args.encoded) {
    buffers.encoded.elements =
        args.encoded.elements > 0 ? args.encoded.elements : args.x.elements();
    buffers.encoded.first = args.encoded.first;
    const std::int64_t block =
        args.encoded.block > 0 ? args.encoded.block : buffers.encoded.elements;
    buffers.encoded.block = static_cast<std::uint32_t>(block / Pack<T>::kSize);
    buffers.encoded.min_max = args.encoded.code == Code::kMinMax8;
    for (const Tensor& message : args.received) aligned = aligned && aligned_to(message.raw(), 16);
  } else {
    for (std::size_t k = mixture.skip; k < args.received.size(); ++k) {
      const T* received = args.received[k].data<T>();
      if (k - mixture.skip < 2) buffers.received[k - mixture.skip] = received;
      aligned = aligned && aligned_to(received, 16);
    }
  }
  buffers.decay = args.decay.data<std::uint8_t>();
  if (args.control) buffers.control = args.control.data<double>();
  constexpr std::size_t kLowBytes = sizeof(BFloat16) * Pack<T>::kSize;
  if (args.low && args.low.dtype() == DType::kBFloat16) {
    buffers.low_bf16 = args.low.data<BFloat16>();
    aligned = aligned && aligned_to(buffers.low_bf16, kLowBytes);
  } else if (args.low) {
    buffers.low_fp16 = args.low.data<Float16>();
    aligned = aligned && aligned_to(buffers.low_fp16, kLowBytes);
  }
  buffers.packs = args.x.elements() / Pack<T>::kSize;
  if (args.layers.owner) {
    buffers.owner = args.layers.owner.data<std::int32_t>();
    buffers.factors = args.layers.factors.data<double>();
  }
  return buffers;
}

template <class Launcher, int kTerms, bool kAligned, class Step, class T>
void launch_terms(const UpdateBuffers<T>& buffers, const UpdateValues<Step, kTerms>& values,
                  const GpuUpdateContext& site) {
  static_assert(sizeof(buffers) + sizeof(values) <= 4096, "a launch has 4 KiB of parameters");
  constexpr std::int64_t kTile = std::int64_t{kUpdateThreads} * packs_in_flight<Step, kTerms>();
  const std::int64_t tiles = (buffers.packs + kTile - 1) / kTile;
  const std::int64_t most = std::int64_t{site.multiprocessors} * kUpdateBlocksPerMultiprocessor;
  const std::int64_t each = (tiles + most - 1) / most;
  Launch how{};
  how.grid.x = static_cast<unsigned>((tiles + each - 1) / each);
  how.block.x = kUpdateThreads;
  how.stream = site.stream;
  Launcher::run(&update_kernel<Step, kTerms, kAligned>, how, buffers, values);
}

/// The terms that no fixed number of registers holds.
template <class T>
std::vector<UpdateTerm<T>> terms_of(const UpdateArgs& args,
                                    const starling::detail::Mixture& mixture) {
  std::vector<UpdateTerm<T>> terms;
  const std::vector<double>& weights = args.encoded ? args.encoded.weights : args.weights;
  for (std::size_t k = mixture.skip; k < args.received.size(); ++k)
    terms.push_back({args.received[k].raw(), static_cast<T>(weights[k])});
  return terms;
}

/// Steps whose kernels decode: in fp32, and none that reads what was received twice.
template <class Step>
constexpr bool kDecodes = sizeof(typename Step::Real) == sizeof(float) && !kMeasuresLayers<Step>;

/// Kernels for few neighbours and aligned buffers are for the dtype that is trained in: fp64 has
/// the general one alone, which gives the same bits.
template <class T>
constexpr bool kFewTerms = sizeof(T) == sizeof(float);

template <class Launcher, class T, class Rule>
void launch_update(const Rule& rule, const UpdateArgs& args, const GpuUpdateContext& site) {
  const auto mixture = args.encoded ? starling::detail::Mixture{&args.x, args.self_weight, 0}
                                    : starling::detail::mixture_of(args);
  bool aligned = true;
  UpdateBuffers<T> buffers = update_buffers<T>(args, mixture, aligned);
  if (buffers.packs == 0) return;
  const int kind = args.encoded                                    ? kEncodedTerms
                   : kFewTerms<T> && aligned && buffers.terms <= 2 ? buffers.terms
                                                                   : -1;
  rules::with_step(rule.template step<T>(args.lr, args.step), [&](const auto& step) {
    using Step = std::remove_cvref_t<decltype(step)>;
    static_assert(std::is_trivially_copyable_v<Step>,
                  "a step is copied to the device byte by byte");
    UpdateScalars<Step> scalars{step, args.gradient_scale, static_cast<T>(mixture.self_weight), {}};
    for (int k = 0; k < kind; ++k)
      scalars.weights[k] = static_cast<T>(args.weights[static_cast<std::size_t>(k) + mixture.skip]);
    if (args.encoded) scalars.weights[0] = static_cast<T>(args.weights[0]);
    if (site.step_type) site.step_type(site.owner, typeid(Step));
    std::vector<UpdateTerm<T>> terms;
    if (kind < 0) terms = terms_of<T>(args, mixture);
    const UpdateScalars<Step>* from = nullptr;
    const UpdateTerm<T>* terms_from = nullptr;
    if (!site.by_value) {
      std::vector<unsigned char> bytes(sizeof(scalars) + terms.size() * sizeof(UpdateTerm<T>));
      std::memcpy(bytes.data(), &scalars, sizeof(scalars));
      if (!terms.empty())
        std::memcpy(bytes.data() + sizeof(scalars), terms.data(), bytes.size() - sizeof(scalars));
      from = static_cast<const UpdateScalars<Step>*>(
          site.upload(site.owner, bytes.data(), bytes.size()));
      if (!from) return;
      terms_from = reinterpret_cast<const UpdateTerm<T>*>(from + 1);
    } else if (terms.size() > kTermsByValue) {
      terms_from = static_cast<const UpdateTerm<T>*>(
          site.upload(site.owner, terms.data(), terms.size() * sizeof(UpdateTerm<T>)));
    }
    const auto start = [&]<int kTerms, bool kAligned>() {
      UpdateValues<Step, kTerms> values;
      values.scalars = scalars;
      values.from = from;
      if constexpr (kTerms < 0) {
        for (std::size_t k = 0; terms_from == nullptr && k < terms.size(); ++k)
          values.terms[k] = terms[k];
        values.terms_from = terms_from;
      }
      if constexpr (kMeasuresLayers<Step>)
        launch_measure<Launcher>(args.layers, buffers, values, site);
      launch_terms<Launcher, kTerms, kAligned>(buffers, values, site);
    };
    if constexpr (kDecodes<Step>) {
      if (kind == kEncodedTerms) return start.template operator()<kEncodedTerms, true>();
    }
    require(kind != kEncodedTerms, "update",
            "messages of this kind are decoded before a GPU's update");
    if constexpr (kFewTerms<T>) {
      switch (kind) {
        case 0: return start.template operator()<0, true>();
        case 1: return start.template operator()<1, true>();
        case 2: return start.template operator()<2, true>();
        default: break;
      }
      if (aligned) return start.template operator()<-1, true>();
    }
    start.template operator()<-1, false>();
  });
}

}  // namespace detail

/// The GpuUpdateLauncher of RuleKernel<Rule, CpuLaunch>.
template <class Rule, class CpuLaunch, class Launcher>
void launch_rule(const OptimizerRule& rule, const UpdateArgs& args, const GpuUpdateContext& site) {
  const Rule& settings = static_cast<const RuleKernel<Rule, CpuLaunch>&>(rule).rule();
  if (args.x.dtype() == DType::kFloat32) {
    detail::launch_update<Launcher, float>(settings, args, site);
  } else if (args.x.dtype() == DType::kFloat64) {
    detail::launch_update<Launcher, double>(settings, args, site);
  } else {
    fail(ExitCode::kInternal, "update",
         "parameters of {} cannot be updated on a GPU; fp32 and fp64 can", name_of(args.x.dtype()));
  }
}

}  // namespace starling::cuda

#define STARLING_CUDA_RULE(name, ...)                                          \
  static const bool starling_cuda_rule_##name = starling::register_gpu_update( \
      typeid(starling::RuleKernel<__VA_ARGS__>),                               \
      &starling::cuda::launch_rule<__VA_ARGS__, starling::InlineLaunch,        \
                                   starling::cuda::PluginLaunch>);
