#include "core/operations/losses.h"

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

void check(const TargetLoss& args) {
  const Checker call("target_loss");
  const auto x = call.matrix(args.x, "x");
  const DType wide = wide_of(args.x.dtype());
  call.there(args.targets, "targets");
  if (args.targets.dtype() == DType::kInt32)
    call.has(args.targets, "targets", x.rows, DType::kInt32);
  else
    call.has(args.targets, "targets", x.elements(), wide);
  call.may_have(args.dx, "dx", x.elements(), args.x.dtype());
  call.may_have(args.loss, "loss", 1, wide);
  call.may_have(args.class_weights, "class_weights", x.columns, DType::kFloat64);
  call.that(!args.class_weights || is_softmax(args.kind),
            "class_weights are for the losses of a softmax");
  call.may_have(args.total, "total", 1, DType::kFloat64);
  call.that((!args.ignored && !args.total) ||
                (is_softmax(args.kind) && args.targets.dtype() == DType::kInt32),
            "what counts is for numbers of classes and the losses of a softmax");
  call.that(args.classes >= 0 && args.classes <= x.columns, "a row has fewer numbers than classes");
  call.that(args.classes == 0 || (args.kind == LossKind::kCrossEntropy && !args.class_weights &&
                                  args.targets.dtype() == DType::kInt32),
            "padding is for the cross entropy with numbers of classes");
}

}  // namespace starling
