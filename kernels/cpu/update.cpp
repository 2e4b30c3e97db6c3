#include "kernels/cpu/update.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/math/update_loop.h"

namespace starling::cpu {
namespace {

constexpr std::int64_t kBlock = detail::kUpdateBlock;
constexpr std::int64_t kGrain = 1024;  // elements; whole pages of fp32 for each thread

void check_tensor(const Tensor& tensor, const Tensor& like, const char* what) {
  require(static_cast<bool>(tensor), "update", "{} is missing", what);
  require(tensor.dtype() == like.dtype() && tensor.elements() == like.elements(), "update", "{} is {} elements of {}, but x is {} of {}",
          what, tensor.elements(), name_of(tensor.dtype()), like.elements(), name_of(like.dtype()));
}

void check(const OptimizerRule& rule, const UpdateArgs& args) {
  require(static_cast<bool>(args.x), "update", "x is missing");
  const std::int64_t n = args.x.elements();
  require(n % kBlock == 0, "update", "a bucket of {} elements is not a multiple of {}", n, kBlock);
  check_tensor(args.x_out, args.x, "x_out");
  check_tensor(args.gradient, args.x, "the gradient");
  const std::size_t states = rule.state_names().size();
  require(states <= 4 && args.states.size() == states, "update", "the rule has {} states (at most 4), but {} were given", states,
          args.states.size());
  for (const Tensor& state : args.states) check_tensor(state, args.x, "a state");
  for (const Tensor& received : args.received) check_tensor(received, args.x, "a received buffer");
  require(args.weights.size() == args.received.size(), "update", "{} weights for {} received buffers", args.weights.size(),
          args.received.size());
  require(args.decay && args.decay.dtype() == DType::kUInt8 && args.decay.elements() == n / kBlock, "update",
          "decay must be one uint8 per {} elements", kBlock);
  require(args.step >= 1, "update", "step is {}, but counts from 1", args.step);
}

template <class T>
void run(const Threads& threads, const OptimizerRule& rule, const UpdateArgs& args) {
  std::vector<const T*> received;
  std::vector<T> weights;
  for (std::size_t k = 0; k < args.received.size(); ++k) {
    received.push_back(args.received[k].data<T>());
    weights.push_back(static_cast<T>(args.weights[k]));
  }
  UpdateSpan<T> whole;
  whole.x = args.x.data<T>();
  whole.x_out = args.x_out.data<T>();
  whole.gradient = args.gradient.data<T>();
  for (std::size_t k = 0; k < args.states.size(); ++k) whole.states[k] = args.states[k].data<T>();
  std::size_t skip = 0;
  if (received.empty()) {
    whole.self_weight = T(1);
  } else if (args.self_weight == 0.0) {
    // A group's sum holds this rank's share already: x need not be read.
    whole.x = received[0];
    whole.self_weight = weights[0];
    skip = 1;
  } else {
    whole.self_weight = static_cast<T>(args.self_weight);
  }
  whole.weights = weights.data() + skip;
  whole.terms = static_cast<int>(received.size() - skip);
  whole.gradient_scale = static_cast<T>(args.gradient_scale);
  const std::uint8_t* decay = args.decay.data<std::uint8_t>();

  threads.parallel_for(args.x.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    UpdateSpan<T> span = whole;
    span.x += begin;
    span.x_out += begin;
    span.gradient += begin;
    for (std::size_t k = 0; k < args.states.size(); ++k) span.states[k] += begin;
    std::array<const T*, 16> few;
    std::vector<const T*> many;
    const T** terms = few.data();
    if (whole.terms > static_cast<int>(few.size())) {
      many.resize(static_cast<std::size_t>(whole.terms));
      terms = many.data();
    }
    for (int k = 0; k < whole.terms; ++k) terms[k] = received[static_cast<std::size_t>(k) + skip] + begin;
    span.received = terms;
    span.decay = decay + begin / kBlock;
    span.n = end - begin;
    rule.update(span, args.lr, args.step);
  });
}

}  // namespace

void update(const Threads& threads, const OptimizerRule& rule, const UpdateArgs& args) {
  check(rule, args);
  switch (args.x.dtype()) {
    case DType::kFloat32: run<float>(threads, rule, args); break;
    case DType::kFloat64: run<double>(threads, rule, args); break;
    default:
      fail(ExitCode::kInternal, "update", "parameters of {} cannot be updated on the CPU; fp32 and fp64 can", name_of(args.x.dtype()));
  }
}

}  // namespace starling::cpu
