// Compiled once per instruction set; see kernels/cpu/isa.h. Without contraction to fused
// multiply-add (kernels/CMakeLists.txt), so all copies give the same bits.
#include "kernels/cpu/isa.h"
#include "kernels/math/adafactor.h"
#include "kernels/math/adagrad.h"
#include "kernels/math/lamb.h"
#include "kernels/math/lars.h"
#include "kernels/math/linear.h"
#include "kernels/math/lion.h"
#include "kernels/math/muon.h"
#include "kernels/math/nadam.h"
#include "kernels/math/rmsprop.h"
#include "kernels/math/rules.h"
#include "kernels/math/schedule_free.h"
#include "kernels/math/update_loop.h"

namespace starling::cpu::STARLING_ISA {

template <class Step>
void update_span(const Step& step, const UpdateSpan<typename Step::Real>& span) {
  detail::update_span(step, span);
}

template <class Step>
void measure_span(const Step& step, const UpdateSpan<typename Step::Real>& span, double* squares) {
  detail::measure_span(step, span, squares);
}

#define STARLING_UPDATE(...) \
  template void update_span(const rules::__VA_ARGS__&, const UpdateSpan<rules::__VA_ARGS__::Real>&);
#define STARLING_MEASURED_UPDATE(...)                   \
  STARLING_UPDATE(__VA_ARGS__)                          \
  template void measure_span(const rules::__VA_ARGS__&, \
                             const UpdateSpan<rules::__VA_ARGS__::Real>&, double*);
#define STARLING_ACCUM_UPDATE(T, kDecoupled)                                \
  STARLING_UPDATE(AccumAdamStep<T, kDecoupled, rules::AccumPhase::kFirst>)  \
  STARLING_UPDATE(AccumAdamStep<T, kDecoupled, rules::AccumPhase::kMiddle>) \
  STARLING_UPDATE(AccumAdamStep<T, kDecoupled, rules::AccumPhase::kLast>)   \
  STARLING_UPDATE(AccumAdamStep<T, kDecoupled, rules::AccumPhase::kOnly>)
#define STARLING_UPDATES(T)                           \
  STARLING_UPDATE(MixStep<T>)                         \
  STARLING_UPDATE(SgdStep<T, false, false>)           \
  STARLING_UPDATE(SgdStep<T, true, false>)            \
  STARLING_UPDATE(SgdStep<T, true, true>)             \
  STARLING_UPDATE(AdamStep<T, false>)                 \
  STARLING_UPDATE(AdamStep<T, true>)                  \
  STARLING_UPDATE(NoiseCorrectedAdamStep<T, false>)   \
  STARLING_UPDATE(NoiseCorrectedAdamStep<T, true>)    \
  STARLING_UPDATE(LinearStep<T, 0, 0>)                \
  STARLING_UPDATE(LinearStep<T, 1, 0>)                \
  STARLING_UPDATE(LinearStep<T, 1, 1>)                \
  STARLING_UPDATE(LinearStep<T, 2, 0>)                \
  STARLING_UPDATE(LinearStep<T, 2, 1>)                \
  STARLING_UPDATE(LinearStep<T, 2, 2>)                \
  STARLING_UPDATE(RmspropStep<T, false, false>)       \
  STARLING_UPDATE(RmspropStep<T, false, true>)        \
  STARLING_UPDATE(RmspropStep<T, true, false>)        \
  STARLING_UPDATE(RmspropStep<T, true, true>)         \
  STARLING_UPDATE(AdagradStep<T>)                     \
  STARLING_UPDATE(NadamStep<T, false>)                \
  STARLING_UPDATE(NadamStep<T, true>)                 \
  STARLING_UPDATE(LionStep<T>)                        \
  STARLING_UPDATE(ScheduleFreeAdamStep<T>)            \
  STARLING_MEASURED_UPDATE(LarsStep<T, false, false>) \
  STARLING_MEASURED_UPDATE(LarsStep<T, true, false>)  \
  STARLING_MEASURED_UPDATE(LarsStep<T, true, true>)   \
  STARLING_MEASURED_UPDATE(LambStep<T>)               \
  STARLING_MEASURED_UPDATE(MuonStep<T, false>)        \
  STARLING_MEASURED_UPDATE(MuonStep<T, true>)         \
  STARLING_MEASURED_UPDATE(AdafactorStep<T>)          \
  STARLING_UPDATE(AdafactorSquareStep<T>)             \
  STARLING_UPDATE(AdafactorQuotientStep<T>)           \
  STARLING_ACCUM_UPDATE(T, false)                     \
  STARLING_ACCUM_UPDATE(T, true)

STARLING_UPDATES(float)
STARLING_UPDATES(double)

}  // namespace starling::cpu::STARLING_ISA
