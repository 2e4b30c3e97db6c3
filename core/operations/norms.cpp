#include "core/operations/norms.h"

#include <initializer_list>
#include <utility>

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

namespace {

/// Tensors of one number a channel, of the dtype that statistics have.
void check_channels(const Checker& call, std::int64_t channels, DType dtype,
                    std::initializer_list<std::pair<const char*, const Tensor*>> tensors,
                    std::initializer_list<std::pair<const char*, const Tensor*>> optional = {}) {
  for (const auto& [name, tensor] : tensors) call.has(*tensor, name, channels, dtype);
  for (const auto& [name, tensor] : optional) call.may_have(*tensor, name, channels, dtype);
}

}  // namespace

void check(const BatchNormForward& args) {
  const Checker call("batch_norm_forward");
  const auto x = call.matrix(args.x, "x");
  const DType dtype = args.x.dtype(), wide = wide_of(dtype);
  if (!args.training) call.there(args.y, "y");
  call.may_have(args.y, "y", x.elements(), dtype);
  call.may_have(args.residual, "residual", x.elements(), dtype);
  check_channels(call, x.columns, wide, {}, {{"gamma", &args.gamma}, {"beta", &args.beta}});
  const bool given = !args.training && !args.running_mean && !args.running_var;
  if (args.training || given) {
    check_channels(call, x.columns, wide,
                   {{"saved_mean", &args.saved_mean}, {"saved_inv_std", &args.saved_inv_std}},
                   {{"running_mean", &args.running_mean}, {"running_var", &args.running_var}});
    call.may_have(args.batches_tracked, "batches_tracked", 1, DType::kInt64);
  } else {
    check_channels(call, x.columns, wide,
                   {{"running_mean", &args.running_mean}, {"running_var", &args.running_var}},
                   {{"saved_mean", &args.saved_mean}, {"saved_inv_std", &args.saved_inv_std}});
  }
}

void check(const BatchNormBackward& args) {
  const Checker call("batch_norm_backward");
  const auto x = call.matrix(args.x, "x");
  const DType dtype = args.x.dtype(), wide = wide_of(dtype);
  call.has(args.dy, "dy", x.elements(), dtype);
  if (args.rectifier.relu && !args.beta) call.has(args.y, "y", x.elements(), dtype);
  call.may_have(args.dy2, "dy2", x.elements(), dtype);
  call.may_have(args.dx, "dx", x.elements(), dtype);
  call.may_have(args.dresidual, "dresidual", x.elements(), dtype);
  check_channels(call, x.columns, wide,
                 {{"saved_mean", &args.saved_mean}, {"saved_inv_std", &args.saved_inv_std}},
                 {{"gamma", &args.gamma},
                  {"beta", &args.beta},
                  {"dgamma", &args.dgamma},
                  {"dbeta", &args.dbeta}});
  using Sums = BatchNormBackward::Sums;
  call.that(args.sums != Sums::kGiven || !args.dresidual,
            "dresidual comes with the sums, which are given");
  if (args.sums != Sums::kOwn)
    check_channels(call, x.columns, DType::kFloat64,
                   {{"sum_dy", &args.sum_dy}, {"sum_dy_xhat", &args.sum_dy_xhat}});
}

void check(const BatchNormFinish& args) {
  const Checker call("batch_norm_finish");
  call.there(args.sum, "sum"), call.there(args.saved_mean, "saved_mean");
  call.that(args.count > 0, "sums of {} values", args.count);
  const std::int64_t channels = args.sum.elements();
  const DType dtype = args.saved_mean.dtype();
  call.that(dtype == DType::kFloat32 || dtype == DType::kFloat64,
            "statistics are fp32 or fp64, not {}", name_of(dtype));
  check_channels(call, channels, DType::kFloat64,
                 {{"sum", &args.sum}, {"square_sum", &args.square_sum}});
  check_channels(call, channels, dtype,
                 {{"saved_mean", &args.saved_mean}, {"saved_inv_std", &args.saved_inv_std}},
                 {{"running_mean", &args.running_mean}, {"running_var", &args.running_var}});
  call.may_have(args.batches_tracked, "batches_tracked", 1, DType::kInt64);
}

void check(const LayerNormForward& args) {
  const Checker call("layer_norm_forward");
  const auto x = call.matrix(args.x, "x");
  const DType wide = wide_of(args.x.dtype());
  call.has(args.y, "y", x.elements(), args.x.dtype());
  check_channels(call, x.columns, wide, {}, {{"gamma", &args.gamma}, {"beta", &args.beta}});
  call.may_have(args.saved_mean, "saved_mean", x.rows, wide);
  call.that(args.centered || !args.saved_mean, "there is a mean, but it counts as 0");
  call.may_have(args.saved_inv_std, "saved_inv_std", x.rows, wide);
  call.may_have(args.residual, "residual", x.elements(), args.x.dtype());
  call.may_have(args.sum, "sum", x.elements(), args.x.dtype());
  call.that(static_cast<bool>(args.residual) == static_cast<bool>(args.sum),
            "a residual and the sum come together");
}

void check(const LayerNormBackward& args) {
  const Checker call("layer_norm_backward");
  const auto x = call.matrix(args.x, "x");
  const DType dtype = args.x.dtype(), wide = wide_of(dtype);
  call.has(args.dy, "dy", x.elements(), dtype);
  call.may_have(args.dx, "dx", x.elements(), dtype);
  call.may_have(args.term, "term", x.elements(), dtype);
  if (args.centered) call.has(args.saved_mean, "saved_mean", x.rows, wide);
  call.that(args.centered || !args.saved_mean, "there is a mean, but it counts as 0");
  call.has(args.saved_inv_std, "saved_inv_std", x.rows, wide);
  check_channels(call, x.columns, wide, {},
                 {{"gamma", &args.gamma}, {"dgamma", &args.dgamma}, {"dbeta", &args.dbeta}});
}

void check(const SoftmaxForward& args) {
  const Checker call("softmax_forward");
  call.has(args.y, "y", call.matrix(args.x, "x").elements(), args.x.dtype());
}

void check(const SoftmaxBackward& args) {
  const Checker call("softmax_backward");
  const auto y = call.matrix(args.y, "y");
  call.has(args.dy, "dy", y.elements(), args.y.dtype());
  call.has(args.dx, "dx", y.elements(), args.y.dtype());
}

}  // namespace starling
