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

// The fused update of one bucket as a GPU kernel, generated from an optimizer rule
// (kernels/math/rules.h): mixing, unscaling and clipping, weight decay, the rule itself and the
// low-precision copy in one pass over memory. The line
//
//     STARLING_CUDA_RULE(mine, mine::Sign)
//
// in a plug-in's .cu file generates and registers the kernels for RuleKernel<mine::Sign>. Its first
// argument is an identifier, unique in the library. The rule's struct must be in a header that the
// .cpp and the .cu file both include, in a named namespace (a type in an unnamed namespace is a
// different type in each file).

namespace starling::cuda {

constexpr int kUpdateThreads = 256;
/// Upper limit of the grid. Enough blocks that a last wave which fills the device in part costs
/// little; each block loops over the same number of tiles.
constexpr int kUpdateBlocksPerMultiprocessor = 32;

namespace detail {

/// As many 16-bit elements as a Pack<T> has elements.
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

/// __launch_bounds__' minimum of resident blocks per multiprocessor. 0 leaves it to the compiler,
/// which would spill a few bytes of fp64 kernels needlessly.
template <class Step, int kTerms>
constexpr int kLeastBlocks = sizeof(typename Step::Real) == sizeof(double) ? 2 : 0;

/// Packs that a thread loads from each array before it computes. The fewer arrays a kernel reads,
/// the more packs it takes to keep enough loads in flight.
template <class Step, int kTerms>
constexpr int packs_in_flight() {
  const int received = kTerms == kEncodedTerms ? 0 : kTerms < 0 ? 1 : kTerms;
  const int arrays = 2 + received + std::popcount(Step::kReads);  // 2: parameters, gradient
  return arrays <= 3 && sizeof(typename Step::Real) == 4 ? 4 : 2;
}

/// sum[k] += the decoded elements of one message from element offset[k] on.
template <class Kind, class T, int kPacks>
__device__ __forceinline__ void add_message(const EncodedBuffers& encoded,
                                            const UpdateTerm<T>& term,
                                            const std::int64_t (&offset)[kPacks],
                                            Pack<T> (&sum)[kPacks]) {
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t i = encoded.first + offset[k];
    const std::uint32_t block = static_cast<std::uint32_t>(i / Pack<T>::kSize) / encoded.block;
    CodedMessage<Kind>::add(static_cast<const std::uint8_t*>(term.received), encoded.elements, i,
                            block, term.weight, sum[k].v);
  }
}

/// x = self_weight · x + Σ weight · received, over a number of terms known at run time only.
template <class Step, int kTerms, bool kAligned, class T, int kPacks>
__device__ __forceinline__ void mix_terms(const UpdateBuffers<T>& buffers,
                                          const UpdateValues<Step, kTerms>& values, T self_weight,
                                          T encoded_weight, const std::int64_t (&offset)[kPacks],
                                          Pack<T> (&x)[kPacks], Pack<T> (&received)[kPacks]) {
  using P = Pack<T>;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    received[k] = {};
#pragma unroll
    for (int i = 0; i < P::kSize; ++i) x[k].v[i] = self_weight * x[k].v[i];
  }
#pragma unroll 2
  for (int t = 0; t < buffers.terms; ++t) {
    UpdateTerm<T> term;
    if (values.device_terms != nullptr) {
      term = values.device_terms[t];
    } else {
      term = values.terms[t];
    }
    if constexpr (kTerms == kEncodedTerms) {
      if (buffers.encoded.code == Code::kMinMax8) {
        add_message<math::MinMax8Code>(buffers.encoded, term, offset, received);
      } else if (buffers.encoded.code == Code::kInt4) {
        add_message<math::Int4Code>(buffers.encoded, term, offset, received);
      } else {
        add_message<math::Int8Code>(buffers.encoded, term, offset, received);
      }
    } else {
      const T weight = term.weight;
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        received[k] = load_pack<kAligned>(static_cast<const T*>(term.received) + offset[k]);
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
#pragma unroll
        for (int i = 0; i < P::kSize; ++i) x[k].v[i] = x[k].v[i] + weight * received[k].v[i];
      }
    }
  }
  if constexpr (kTerms == kEncodedTerms) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
      for (int i = 0; i < P::kSize; ++i) x[k].v[i] = x[k].v[i] + encoded_weight * received[k].v[i];
    }
  }
}

}  // namespace detail

/// kTerms: the number of neighbours (0, 1, 2), -1 where it is known at run time only, or
/// kEncodedTerms for any number of encoded messages. kAligned: all addresses are multiples of a
/// pack's size. Each element is read before it is written, by the same thread, so x_out may be x.
/// The order of operations is that of starling::detail::update_block(): CPU and GPU give the same
/// bits.
template <class Step, int kTerms, bool kAligned>
__global__ void __launch_bounds__(kUpdateThreads, detail::kLeastBlocks<Step, kTerms>)
    update_kernel(const UpdateBuffers<typename Step::Real> buffers,
                  const UpdateValues<Step, kTerms> values) {
  using T = typename Step::Real;
  using P = Pack<T>;
  constexpr int kPacks = detail::packs_in_flight<Step, kTerms>();
  constexpr int kStates = Step::kStates;
  constexpr int kStateSlots = kStates > 0 ? kStates : 1;  // arrays of length 0 are not allowed
  constexpr std::int64_t kTile = std::int64_t{kUpdateThreads} * kPacks;
  constexpr int kPacksPerDecay = starling::detail::kUpdateBlock / P::kSize;

  UpdateScalars<Step> scalars = values.scalars;
  if (values.device_scalars != nullptr) scalars = *values.device_scalars;
  const Step step = scalars.step;
  const T self_weight = scalars.self_weight;
  const T weight0 = scalars.weights[0], weight1 = scalars.weights[1];
  double clipping = 1.0;
  bool skip = false;
  if (buffers.control) {
    clipping = buffers.control[0];
    skip = buffers.control[1] != 0.0;
  }
  const T gradient_scale = static_cast<T>(scalars.gradient_scale * clipping);

  for (std::int64_t tile = std::int64_t{blockIdx.x} * kTile; tile < buffers.packs;
       tile += std::int64_t{gridDim.x} * kTile) {
    // 1. Load everything. Threads past the end load the last pack again and do not store it.
    P x[kPacks], gradients[kPacks], received0[kPacks], received1[kPacks];
    P states[kStateSlots][kPacks];
    std::uint8_t decay[kPacks];
    std::int64_t offset[kPacks];              // in elements
    [[maybe_unused]] T layer_factor[kPacks];  // for rules with layer-wise rates
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t pack = tile + k * kUpdateThreads + threadIdx.x;
      const std::int64_t clamped = pack < buffers.packs ? pack : buffers.packs - 1;
      offset[k] = clamped * P::kSize;
      decay[k] = buffers.decay[clamped / kPacksPerDecay];
      if constexpr (kMeasuresLayers<Step>)
        layer_factor[k] = static_cast<T>(buffers.factors[buffers.owner[clamped / kPacksPerDecay]]);
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      x[k] = detail::load_pack<kAligned>(buffers.x + offset[k]);
      gradients[k] = detail::load_pack<kAligned>(buffers.gradient + offset[k]);
      if constexpr (kTerms > 0)
        received0[k] = detail::load_pack<kAligned>(buffers.received[0] + offset[k]);
      if constexpr (kTerms > 1)
        received1[k] = detail::load_pack<kAligned>(buffers.received[1] + offset[k]);
#pragma unroll
      for (int s = 0; s < kStates; ++s) {
        if ((Step::kReads >> s) & 1u)
          states[s][k] = detail::load_pack<kAligned>(buffers.states[s] + offset[k]);
      }
    }
    asm volatile("" ::: "memory");  // keeps the compiler from moving loads into the branches below

    // 2. Mix with the neighbours' parameters, then apply the rule.
    if constexpr (kTerms < 0)
      detail::mix_terms<Step, kTerms, kAligned>(buffers, values, self_weight, weight0, offset, x,
                                                received0);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
      for (int i = 0; i < P::kSize; ++i) {
        T& p = x[k].v[i];
        if constexpr (kTerms >= 0) p = self_weight * p;
        if constexpr (kTerms > 0) p = p + weight0 * received0[k].v[i];
        if constexpr (kTerms > 1) p = p + weight1 * received1[k].v[i];
      }
      // This branch also keeps the packs' live ranges apart: AdamW's kernel takes 64 registers with
      // it and 74 without.
      if (skip) continue;
#pragma unroll
      for (int i = 0; i < P::kSize; ++i) {
        T state[kStateSlots] = {};
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          if ((Step::kReads >> s) & 1u) state[s] = states[s][k].v[i];
        }
        const T gradient = gradient_scale * gradients[k].v[i];
        const bool decays = (decay[k] & kDecays) != 0;
        if constexpr (kMeasuresLayers<Step>) {
          x[k].v[i] = step(x[k].v[i], gradient, state, decays, layer_factor[k]);
        } else {
          x[k].v[i] = step(x[k].v[i], gradient, state, decays);
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          if ((Step::kWrites >> s) & 1u) states[s][k].v[i] = state[s];
        }
      }
    }

    // 3. Store.
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (tile + k * kUpdateThreads + threadIdx.x >= buffers.packs) continue;
      detail::store_pack<kAligned>(buffers.x_out + offset[k], x[k]);
      if (!skip) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          if ((Step::kWrites >> s) & 1u)
            detail::store_pack<kAligned>(buffers.states[s] + offset[k], states[s][k]);
        }
      }
      if (buffers.low_bf16) detail::store_low<kAligned>(buffers.low_bf16 + offset[k], x[k]);
      if (buffers.low_fp16) detail::store_low<kAligned>(buffers.low_fp16 + offset[k], x[k]);
    }
  }
}

/// For the built-in rules: launches with the CUDA runtime that the backend is linked with.
struct BackendLaunch {
  template <class... P, class... A>
  static void run(void (*kernel)(P...), const Launch& how, A&&... arguments) {
    launch(kernel, how, std::forward<A>(arguments)...);
  }
};
/// For a plug-in's kernels: launches with the CUDA runtime of the library that contains the kernel.
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

/// The addresses of the arguments. `aligned` is set to whether all of them allow loads and stores
/// of whole packs.
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
    buffers.encoded.code = args.encoded.code;
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
  const std::int64_t max_blocks =
      std::int64_t{site.multiprocessors} * kUpdateBlocksPerMultiprocessor;
  const std::int64_t tiles_per_block = (tiles + max_blocks - 1) / max_blocks;
  Launch how{};
  how.grid.x = static_cast<unsigned>((tiles + tiles_per_block - 1) / tiles_per_block);
  how.block.x = kUpdateThreads;
  how.stream = site.stream;
  Launcher::run(&update_kernel<Step, kTerms, kAligned>, how, buffers, values);
}

/// Addresses and weights of all terms, for kernels with kTerms < 0.
template <class T>
std::vector<UpdateTerm<T>> terms_of(const UpdateArgs& args,
                                    const starling::detail::Mixture& mixture) {
  std::vector<UpdateTerm<T>> terms;
  const std::vector<double>& weights = args.encoded ? args.encoded.weights : args.weights;
  for (std::size_t k = mixture.skip; k < args.received.size(); ++k)
    terms.push_back({args.received[k].raw(), static_cast<T>(weights[k])});
  return terms;
}

/// Whether this step's kernel decodes messages itself. Rules that measure layers do not: they would
/// decode each message twice, once for the norms and once for the update.
template <class Step>
constexpr bool kDecodes = sizeof(typename Step::Real) == sizeof(float) && !kMeasuresLayers<Step>;

template <class Launcher, class T, class Rule>
void launch_update(const Rule& rule, const UpdateArgs& args, const GpuUpdateContext& site) {
  const auto mixture = args.encoded ? starling::detail::Mixture{&args.x, args.self_weight, 0}
                                    : starling::detail::mixture_of(args);
  bool aligned = true;
  UpdateBuffers<T> buffers = update_buffers<T>(args, mixture, aligned);
  if (buffers.packs == 0) return;
  const int kind = args.encoded ? kEncodedTerms
                   : starling::detail::kSpecialised<T> && aligned && buffers.terms <= 2
                       ? buffers.terms
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
    const UpdateScalars<Step>* device_scalars = nullptr;
    const UpdateTerm<T>* device_terms = nullptr;
    if (!site.by_value) {
      std::vector<unsigned char> bytes(sizeof(scalars) + terms.size() * sizeof(UpdateTerm<T>));
      std::memcpy(bytes.data(), &scalars, sizeof(scalars));
      if (!terms.empty())
        std::memcpy(bytes.data() + sizeof(scalars), terms.data(), bytes.size() - sizeof(scalars));
      device_scalars = static_cast<const UpdateScalars<Step>*>(
          site.upload(site.owner, bytes.data(), bytes.size()));
      if (!device_scalars) return;
      device_terms = reinterpret_cast<const UpdateTerm<T>*>(device_scalars + 1);
    } else if (terms.size() > kTermsByValue) {
      device_terms = static_cast<const UpdateTerm<T>*>(
          site.upload(site.owner, terms.data(), terms.size() * sizeof(UpdateTerm<T>)));
    }
    const auto start = [&]<int kTerms, bool kAligned>() {
      UpdateValues<Step, kTerms> values;
      values.scalars = scalars;
      values.device_scalars = device_scalars;
      if constexpr (kTerms < 0) {
        for (std::size_t k = 0; device_terms == nullptr && k < terms.size(); ++k)
          values.terms[k] = terms[k];
        values.device_terms = device_terms;
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
    if constexpr (starling::detail::kSpecialised<T>) {
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
