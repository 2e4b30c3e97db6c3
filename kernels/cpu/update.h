#pragma once

#include "core/operations/updates.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/optimizer.h"

namespace starling::cpu {

struct AllKernels;  // kernels/cpu/kernels.h, which nvcc cannot read

/// Backend::update on the CPU: checks the arguments, cuts the bucket into one span a thread, and
/// lets the rule update each. The bits do not depend on the number of threads. `kernels` decode
/// messages.
void update(const Threads& threads, const AllKernels& kernels, const OptimizerRule& rule,
            const UpdateArgs& args);

}  // namespace starling::cpu

/// The loops of the built-in rules, one copy per instruction set: kernels/cpu/update_isa.cpp.
STARLING_DECLARE_PER_ISA(
    template <class Step>
    void update_span(const Step& step, const UpdateSpan<typename Step::Real>& span);
    template <class Step>
    void measure_span(const Step& step, const UpdateSpan<typename Step::Real>& span,
                      double* squares);
    template <class T> double sum_of_squares(const T* numbers, std::int64_t count);)

namespace starling::cpu {

/// RuleKernel's Launch for the built-in rules.
struct IsaLaunch {
  static constexpr bool kBuiltIn = true;
  template <class Step>
  static void run(const Step& step, const UpdateSpan<typename Step::Real>& span) {
    using Function = void (*)(const Step&, const UpdateSpan<typename Step::Real>&);
    static const Function function =
        select_isa<Function>(detected_isa(), &scalar::update_span<Step>, &avx2::update_span<Step>,
                             &avx512::update_span<Step>);
    function(step, span);
  }
  template <class Step>
  static void measure(const Step& step, const UpdateSpan<typename Step::Real>& span,
                      double* squares) {
    using Function = void (*)(const Step&, const UpdateSpan<typename Step::Real>&, double*);
    static const Function function =
        select_isa<Function>(detected_isa(), &scalar::measure_span<Step>, &avx2::measure_span<Step>,
                             &avx512::measure_span<Step>);
    function(step, span, squares);
  }
};

}  // namespace starling::cpu
