// Compiled once per instruction set; see kernels/cpu/isa.h. Without contraction to fused
// multiply-add (kernels/CMakeLists.txt), so all copies give the same bits.
#include <tuple>
#include <variant>

#include "kernels/cpu/isa.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizers/list.h"

namespace starling::cpu::STARLING_ISA {

template <class Step>
void update_span(const Step& step, const UpdateSpan<typename Step::Real>& span) {
  detail::update_span(step, span);
}

template <class Step>
void measure_span(const Step& step, const UpdateSpan<typename Step::Real>& span, double* squares) {
  detail::measure_span(step, span, squares);
}

/// In sixteen sums, so that many are added at a time, and in one order everywhere.
template <class T>
double sum_of_squares(const T* numbers, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  double lanes[kLanes] = {};
  for (std::int64_t i = 0; i + kLanes <= count; i += kLanes) {
    for (std::int64_t k = 0; k < kLanes; ++k) {
      const auto number = static_cast<double>(numbers[i + k]);
      lanes[k] += number * number;
    }
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}
template double sum_of_squares(const float*, std::int64_t);
template double sum_of_squares(const double*, std::int64_t);

/// A step's loops, by their addresses: so they are compiled here, of every step that a built-in
/// rule makes.
template <class Step>
struct Loops {
  void (*update)(const Step&, const UpdateSpan<typename Step::Real>&) = &update_span<Step>;
};
template <class Step>
requires kMeasuresLayers<Step>
struct Loops<Step> {
  void (*update)(const Step&, const UpdateSpan<typename Step::Real>&) = &update_span<Step>;
  void (*measure)(const Step&, const UpdateSpan<typename Step::Real>&,
                  double*) = &measure_span<Step>;
};
template <class... Steps>
struct Loops<std::variant<Steps...>> {
  std::tuple<Loops<Steps>...> each;
};
template <class... Rules>
struct Loops<rules::RuleList<Rules...>> {
  std::tuple<Loops<rules::StepOf<Rules, float>>...> fp32;
  std::tuple<Loops<rules::StepOf<Rules, double>>...> fp64;
};
[[gnu::used]] constinit const Loops<rules::BuiltIn> kLoops;
[[gnu::used]] constinit const Loops<std::variant<rules::MixStep<float>, rules::MixStep<double>>>
    kMixLoops;

}  // namespace starling::cpu::STARLING_ISA
