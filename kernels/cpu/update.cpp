#include "kernels/cpu/update.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"

namespace starling::cpu {
namespace {

constexpr std::int64_t kBlock = detail::kUpdateBlock;
constexpr std::int64_t kGrain = 1024;  // elements; whole pages of fp32 for each thread
/// Elements after which a low-precision copy is made, while they are in the cache.
constexpr std::int64_t kPiece = 8192;

template <class T>
struct Whole {
  UpdateSpan<T> span;
  std::vector<const T*> received;
  std::vector<T> weights;
  bool skip = false;  ///< mix only
};

template <class T>
Whole<T> whole_of(const UpdateArgs& args) {
  Whole<T> whole;
  const detail::Mixture mixture = detail::mixture_of(args);
  for (std::size_t k = mixture.skip; k < args.received.size(); ++k) {
    whole.received.push_back(args.received[k].data<T>());
    whole.weights.push_back(static_cast<T>(args.weights[k]));
  }
  UpdateSpan<T>& span = whole.span;
  span.x = mixture.x->data<T>();
  span.x_out = args.x_out.data<T>();
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
  return whole;
}

template <class T>
void update_piece(const OptimizerRule& rule, const UpdateArgs& args, const Whole<T>& whole, std::int64_t begin, std::int64_t end) {
  UpdateSpan<T> span = whole.span;
  span.x += begin;
  span.x_out += begin;
  span.gradient += begin;
  for (std::size_t k = 0; k < args.states.size(); ++k) span.states[k] += begin;
  std::array<const T*, 16> few;
  std::vector<const T*> many;
  const T** terms = few.data();
  if (span.terms > static_cast<int>(few.size())) {
    many.resize(static_cast<std::size_t>(span.terms));
    terms = many.data();
  }
  for (int k = 0; k < span.terms; ++k) terms[k] = whole.received[static_cast<std::size_t>(k)] + begin;
  span.received = terms;
  span.decay += begin / kBlock;
  span.n = end - begin;
  if (whole.skip) {
    IsaLaunch::run(rules::MixStep<T>{}, span);
  } else {
    rule.update(span, args.lr, args.step);
  }
}

template <class T, class Low>
void round_piece(const T* from, Low* to, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) to[i] = Low(static_cast<float>(from[i]));
}

template <class T>
void run(const Threads& threads, const OptimizerRule& rule, const UpdateArgs& args) {
  const Whole<T> whole = whole_of<T>(args);
  threads.parallel_for(args.x.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (!args.low) return update_piece(rule, args, whole, begin, end);
    for (std::int64_t first = begin; first < end; first += kPiece) {
      const std::int64_t last = std::min(first + kPiece, end);
      update_piece(rule, args, whole, first, last);
      if (args.low.dtype() == DType::kBFloat16) {
        round_piece(whole.span.x_out, args.low.data<BFloat16>(), first, last);
      } else {
        round_piece(whole.span.x_out, args.low.data<Float16>(), first, last);
      }
    }
  });
}

}  // namespace

void update(const Threads& threads, const OptimizerRule& rule, const UpdateArgs& args) {
  check_update(rule, args);
  switch (args.x.dtype()) {
    case DType::kFloat32: run<float>(threads, rule, args); break;
    case DType::kFloat64: run<double>(threads, rule, args); break;
    default:
      fail(ExitCode::kInternal, "update", "parameters of {} cannot be updated on the CPU; fp32 and fp64 can", name_of(args.x.dtype()));
  }
}

}  // namespace starling::cpu
