#include "core/operations/updates.h"

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

void check(const GradientControl& args) {
  const Checker call("gradient_control");
  call.there(args.totals, "totals");
  call.that(args.totals.dtype() == DType::kFloat64 && args.first >= 0 && args.count >= 0 &&
                args.first + args.count <= args.totals.elements(),
            "totals {} to {} of {} {}", args.first, args.first + args.count, args.totals.elements(),
            name_of(args.totals.dtype()));
  call.has(args.control, "control", 2, DType::kFloat64);
}

// What a rule needs is the rule's matter: check_update() (kernels/optimizer.h).
void check(const Update& args) { Checker("update").there(args.args.x, "x"); }

}  // namespace starling
