#include "kernels/cpu/update.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/updates.h"
#include "kernels/cpu/decode.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"

namespace starling::cpu {
namespace {

constexpr std::int64_t kBlock = detail::kUpdateBlock;
constexpr std::int64_t kGrain = 1024;  // elements; whole pages of fp32 for each thread
/// Elements that go through all that is done to them while they are in the cache.
constexpr std::int64_t kPiece = 1024;
/// Bytes from which on parameters that do not replace the old ones in place are written with
/// streaming stores. Nobody reads them before the caches have been filled several times over, and a
/// line that is in no cache would have to be fetched just to be overwritten.
constexpr std::size_t kStreamBytes = 4u << 20;

template <class T>
struct Whole {
  UpdateSpan<T> span;
  std::vector<const T*> received;
  std::vector<T> weights;
  std::vector<const T*> sum;  ///< with sum_received: the terms, whose sum is the one received
  bool sums = false;          ///< there are such terms, or messages
  const Kernels<T>* decoder = nullptr;
  std::vector<const std::uint8_t*> messages;
  std::vector<T> message_weights;
  bool skip = false;    ///< mix only
  bool stream = false;  ///< writes x_out past the caches
};

template <class T>
Whole<T> whole_of(const CpuStep<T>& step, const UpdateArgs& args) {
  Whole<T> whole;
  const detail::Mixture mixture = detail::mixture_of(args);
  UpdateSpan<T>& span = whole.span;
  whole.sums = args.sum_received && !args.received.empty();
  if (args.encoded) {
    for (const Tensor& message : args.received)
      whole.messages.push_back(message.data<std::uint8_t>());
    for (std::size_t k = 0; k < whole.messages.size(); ++k)
      whole.message_weights.push_back(static_cast<T>(args.encoded.weights[k]));
    span.x = args.x.data<T>();
  } else if (args.sum_received) {
    for (const Tensor& term : args.received) whole.sum.push_back(term.data<T>());
    span.x = args.x.data<T>();
  } else {
    span.x = mixture.x->data<T>();
  }
  for (std::size_t k = mixture.skip; k < args.weights.size(); ++k) {
    whole.received.push_back(args.sum_received ? nullptr : args.received[k].data<T>());
    whole.weights.push_back(static_cast<T>(args.weights[k]));
  }
  span.x_out = args.x_out.data<T>();
  whole.stream = args.x_out.raw() != args.x.raw() && args.x_out.bytes() >= kStreamBytes &&
                 reinterpret_cast<std::uintptr_t>(span.x_out) % 64 == 0;
  span.gradient = args.gradient.data<T>();
  for (std::size_t k = 0; k < args.states.size(); ++k) span.states[k] = args.states[k].data<T>();
  span.weights = whole.weights.data();
  span.terms = static_cast<int>(whole.received.size());
  span.self_weight = static_cast<T>(mixture.self_weight);
  double factor = 1.0;
  if (args.control) {
    factor = args.control.data<double>()[0];
    whole.skip = args.control.data<double>()[1] != 0.0;
  }
  span.gradient_scale = static_cast<T>(args.gradient_scale * factor);
  span.decay = args.decay.data<std::uint8_t>();
  if (step.measure) {
    span.owner = args.layers.owner.data<std::int32_t>();
    span.factors = args.layers.factors.data<double>();
  }
  return whole;
}

/// Calls run with the span of [begin, end) of the bucket, into `out`. `sum`: what was received,
/// from `begin` on, where it was added up.
template <class T, class Run>
void with_span(const UpdateArgs& args, const Whole<T>& whole, std::int64_t begin, std::int64_t end,
               const T* sum, T* out, Run&& run) {
  UpdateSpan<T> span = whole.span;
  span.x += begin;
  span.x_out = out;
  span.gradient += begin;
  for (std::size_t k = 0; k < args.states.size(); ++k) span.states[k] += begin;
  std::array<const T*, 16> few;
  std::vector<const T*> many;
  const T** terms = few.data();
  if (span.terms > static_cast<int>(few.size())) {
    many.resize(static_cast<std::size_t>(span.terms));
    terms = many.data();
  }
  if (sum) {
    if (span.terms == 0) span.x = sum;  // the sum holds this rank's share already
    terms[0] = sum;
  } else {
    for (int k = 0; k < span.terms; ++k)
      terms[k] = whole.received[static_cast<std::size_t>(k)] + begin;
  }
  span.received = terms;
  span.decay += begin / kBlock;
  if (span.owner) span.owner += begin / kBlock;
  span.n = end - begin;
  run(span);
}

template <class T>
void update_piece(const CpuStep<T>& step, const UpdateArgs& args, const Whole<T>& whole,
                  std::int64_t begin, std::int64_t end, const T* sum, T* out) {
  with_span(args, whole, begin, end, sum, out, [&](const UpdateSpan<T>& span) {
    if (whole.skip) {
      IsaLaunch::run(rules::MixStep<T>{}, span);
    } else {
      step.update(span);
    }
  });
}

/// Adds up what was received, in its order.
template <class T>
void add_up(const UpdateArgs& args, const Whole<T>& whole, std::int64_t begin, std::int64_t end,
            T* sum) {
  if (args.encoded) {
    const EncodedTerms& encoded = args.encoded;
    const MessageLayout layout(
        encoded.code, encoded.elements > 0 ? encoded.elements : args.x.elements(), encoded.block);
    sum_decoded(*whole.decoder, encoded.code, layout, whole.messages.data(),
                whole.message_weights.data(), static_cast<Index>(whole.messages.size()),
                encoded.first + begin, encoded.first + end, false, sum);
    return;
  }
  std::vector<const T*> terms;
  for (std::size_t k = 1; k < whole.sum.size(); ++k) terms.push_back(whole.sum[k] + begin);
  const std::vector<T> ones(terms.size(), T(1));
  UpdateSpan<T> span;
  span.x = span.gradient = whole.sum[0] + begin;  // the gradient is not read
  span.x_out = sum;
  span.received = terms.data();
  span.weights = ones.data();
  span.terms = static_cast<int>(terms.size());
  span.decay = whole.span.decay;
  span.n = end - begin;
  IsaLaunch::run(rules::MixStep<T>{}, span);
}

/// Copies past the caches; `bytes` is a multiple of 64, and both are aligned to as many.
void stream(const void* from, void* to, std::size_t bytes) {
#if defined(__SSE2__)
  const auto* source = static_cast<const __m128i*>(from);
  auto* target = static_cast<__m128i*>(to);
  for (std::size_t i = 0; i < bytes / sizeof(__m128i); ++i)
    _mm_stream_si128(target + i, _mm_load_si128(source + i));
#else
  std::memcpy(to, from, bytes);
#endif
}
/// Ends a stream: other threads see what was streamed before what is stored from now on.
void end_of_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class T, class Low>
void round_piece(const T* from, Low* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = Low(static_cast<float>(from[i]));
}

/// Asks for what the rule will read of [begin, end), while messages are decoded: that computes, and
/// leaves the memory idle.
template <class T>
void prefetch_range(const UpdateArgs& args, const Whole<T>& whole, std::int64_t begin,
                    std::int64_t end) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = begin; i < end; i += kLine) {
    __builtin_prefetch(whole.span.gradient + i, 0, 2);
    for (std::size_t k = 0; k < args.states.size(); ++k)
      __builtin_prefetch(whole.span.states[k] + i, 1, 2);
  }
}

/// A multiple of 32 numbers.
template <class T>
double sum_of_squares(const T* numbers, std::int64_t count) {
  using Function = double (*)(const T*, std::int64_t);
  static const Function function =
      select_isa<Function>(detected_isa(), &scalar::sum_of_squares<T>, &avx2::sum_of_squares<T>,
                           &avx512::sum_of_squares<T>);
  return function(numbers, count);
}

/// `squares`: of each piece of the whole, where they are asked for.
template <class T>
void run_pieces(const CpuStep<T>& step, const UpdateArgs& args, const Whole<T>& whole,
                std::int64_t begin, std::int64_t end, std::vector<double>& squares) {
  alignas(64) T sum[kPiece], streamed[kPiece];
  for (std::int64_t first = begin; first < end; first += kPiece) {
    const std::int64_t last = std::min(first + kPiece, end);
    T* out = whole.stream ? streamed : whole.span.x_out + first;
    if (!whole.messages.empty() && !whole.skip)
      prefetch_range(args, whole, std::min(first + kPiece, end), std::min(last + kPiece, end));
    if (whole.sums) add_up(args, whole, first, last, sum);
    // Here the update finds it in the cache.
    if (!squares.empty())
      squares[static_cast<std::size_t>(first / kPiece)] =
          sum_of_squares(whole.span.gradient + first, last - first);
    update_piece<T>(step, args, whole, first, last, whole.sums ? sum : nullptr, out);
    if (args.low && args.low.dtype() == DType::kBFloat16) {
      round_piece(out, args.low.data<BFloat16>() + first, last - first);
    } else if (args.low) {
      round_piece(out, args.low.data<Float16>() + first, last - first);
    }
    if (whole.stream)
      stream(streamed, whole.span.x_out + first,
             static_cast<std::size_t>(last - first) * sizeof(T));
  }
  if (whole.stream) end_of_stream();
}

/// One piece's two sums of squares (UpdateLayers::sums).
template <class T>
void measure_piece(const CpuStep<T>& step, const UpdateArgs& args, const Whole<T>& whole,
                   std::int64_t begin, std::int64_t end, double* sums) {
  static_assert(kPiece == kLayerLanes && kLayerPiece % kPiece == 0);
  alignas(64) T sum[kPiece];
  alignas(64) double squares[2 * kLayerLanes] = {};
  for (std::int64_t first = begin; first < end; first += kPiece) {
    const std::int64_t last = std::min(first + kPiece, end);
    if (whole.sums) add_up(args, whole, first, last, sum);
    with_span<T>(args, whole, first, last, whole.sums ? sum : nullptr, nullptr,
                 [&](const UpdateSpan<T>& span) { step.measure(span, squares); });
  }
  for (int which = 0; which < 2; ++which) {
    double* lanes = squares + which * kLayerLanes;
    for (std::int64_t width = kLayerLanes / 2; width > 0; width /= 2) {
      for (std::int64_t i = 0; i < width; ++i) lanes[i] = lanes[i] + lanes[i + width];
    }
    sums[which] = lanes[0];
  }
}

/// The first pass of a rule that measures layers: what its second pass multiplies by.
template <class T>
void measure_layers(const Threads& threads, const CpuStep<T>& step, const UpdateArgs& args,
                    const Whole<T>& whole) {
  const std::int32_t* pieces = args.layers.pieces.data<std::int32_t>();
  double* sums = args.layers.sums.data<double>();
  threads.parallel_for(args.layers.pieces.elements() / 2, 1,
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t piece = begin; piece < end; ++piece) {
                           const std::int64_t first = pieces[2 * piece] * kBlock,
                                              count = pieces[2 * piece + 1] * kBlock;
                           measure_piece(step, args, whole, first, first + count, sums + 2 * piece);
                         }
                       });
  const std::int32_t* layer = args.layers.layers.data<std::int32_t>();
  double* factors = args.layers.factors.data<double>();
  for (std::int64_t k = 0; k < args.layers.factors.elements(); ++k, layer += 4) {
    double chains[kLayerChains][2] = {}, total[2] = {};
    for (std::int64_t j = 0; j < layer[1]; ++j) {
      for (int which = 0; which < 2; ++which)
        chains[j % kLayerChains][which] += sums[2 * (layer[0] + j) + which];
    }
    for (const auto& chain : chains) {
      for (int which = 0; which < 2; ++which) total[which] += chain[which];
    }
    const std::int32_t last = layer[0] + layer[1] - 1;
    const std::int64_t numbers =
        std::int64_t{pieces[2 * last] + pieces[2 * last + 1] - layer[2]} * kBlock - layer[3] / 2;
    factors[k] = step.layer_factor(total[0], total[1], layer[3] % 2 != 0,
                                   (whole.span.decay[layer[2]] & kDecays) != 0, numbers);
  }
}

template <class T>
void run(const Threads& threads, const Kernels<T>& decoder, const OptimizerRule& rule,
         const UpdateArgs& args) {
  const CpuStep<T> step = rule.step<T>(args.lr, args.step);
  Whole<T> whole = whole_of(step, args);
  whole.decoder = &decoder;
  if (step.measure && !whole.skip) measure_layers(threads, step, args, whole);
  static_assert(kGrain == kPiece);  // so that threads share no piece
  std::vector<double> squares(
      args.squares ? static_cast<std::size_t>((args.x.elements() + kPiece - 1) / kPiece) : 0);
  const bool pieces = args.low || whole.stream || whole.sums || !squares.empty();
  threads.parallel_for(args.x.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (pieces) return run_pieces(step, args, whole, begin, end, squares);
    update_piece<T>(step, args, whole, begin, end, nullptr, whole.span.x_out + begin);
  });
  if (!args.squares) return;
  double& sum = args.squares.data<double>()[0] = 0.0;
  for (const double piece : squares) sum += piece;
}

}  // namespace

void update(const Threads& threads, const AllKernels& kernels, const OptimizerRule& rule,
            const UpdateArgs& args) {
  check_update(rule, args);
  switch (args.x.dtype()) {
    case DType::kFloat32: run<float>(threads, kernels.fp32, rule, args); break;
    case DType::kFloat64: run<double>(threads, kernels.fp64, rule, args); break;
    default:
      fail(ExitCode::kInternal, "update",
           "parameters of {} cannot be updated on the CPU; fp32 and fp64 can",
           name_of(args.x.dtype()));
  }
}

}  // namespace starling::cpu
