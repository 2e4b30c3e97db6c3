#include "core/operations/pointwise.h"

#include <initializer_list>
#include <utility>

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

namespace {

/// The others are as many numbers of x's dtype.
void check_alike(const Checker& call, const Tensor& x,
                 std::initializer_list<std::pair<const char*, const Tensor*>> others) {
  call.floating(x, "x");
  for (const auto& [name, other] : others) call.has(*other, name, x.elements(), x.dtype());
}

void check_subsample(const Checker& call, const Tensor& large, const Tensor& small,
                     std::int64_t stride, std::int64_t pad_before) {
  call.floating(large, "the image"), call.there(small, "the smaller image");
  const Shape &from = large.shape(), &to = small.shape();
  call.that(from.rank() == 4 && to.rank() == 4 && stride > 0 && from[0] == to[0] &&
                to[1] == (from[1] + stride - 1) / stride &&
                to[2] == (from[2] + stride - 1) / stride && pad_before >= 0 &&
                to[3] >= from[3] + pad_before && large.dtype() == small.dtype(),
            "{} does not become {} with stride {} and {} channels before", from.text(), to.text(),
            stride, pad_before);
}

}  // namespace

void check(const ActivationForward& args) {
  check_alike(Checker("activation_forward"), args.x, {{"y", &args.y}});
}

void check(const ActivationBackward& args) {
  check_alike(Checker("activation_backward"), args.x, {{"dy", &args.dy}, {"dx", &args.dx}});
}

void check(const Add& args) {
  check_alike(Checker("add"), args.a, {{"b", &args.b}, {"y", &args.y}});
}

void check(const SubsamplePadForward& args) {
  check_subsample(Checker("subsample_pad_forward"), args.x, args.y, args.stride, args.pad_before);
}

void check(const SubsamplePadBackward& args) {
  check_subsample(Checker("subsample_pad_backward"), args.dx, args.dy, args.stride,
                  args.pad_before);
}

void check(const FlattenChannelsFirst& args) {
  const Checker call("flatten_channels_first");
  check_alike(call, args.x, {{"y", &args.y}});
  const Shape image = (args.inverse ? args.y : args.x).shape();
  call.that(image.rank() == 4, "{} is not N×H×W×C", image.text());
}

void check(const Dropout& args) {
  const Checker call("dropout");
  check_alike(call, args.x, {{"y", &args.y}});
  call.that(args.p >= 0.0 && args.p <= 1.0, "p is {}, but must lie in [0, 1]", args.p);
  call.that(args.run > 0 && args.x.elements() % args.run == 0,
            "runs of {} do not make up {} elements", args.run, args.x.elements());
}

void check(const Cast& args) {
  const Checker call("cast");
  call.there(args.x, "x"), call.floating(args.y, "y");
  call.that(is_floating(args.x.dtype()) || args.x.dtype() == DType::kUInt8,
            "x is {}; needed: a floating dtype or uint8", name_of(args.x.dtype()));
  call.that(args.x.elements() == args.y.elements(), "x has {} elements, y {}", args.x.elements(),
            args.y.elements());
}

void check(const WeightedSum& args) {
  const Checker call("weighted_sum");
  call.floating(args.out, "out");
  call.that(args.terms >= 0 && args.terms <= 8, "{} terms; at most 8", args.terms);
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.terms); ++i)
    call.has(args.in[i], "an input", args.out.elements(), args.out.dtype());
}

void check(const SquaredDistance& args) {
  const Checker call("squared_distance");
  call.floating(args.x, "x");
  call.may_have(args.y, "y", args.x.elements(), args.x.dtype());
  call.there(args.totals, "totals");
  call.that(args.totals.dtype() == DType::kFloat64 && args.index >= 0 &&
                args.index < args.totals.elements(),
            "total {} of {} {}", args.index, args.totals.elements(), name_of(args.totals.dtype()));
}

void check(const SquaredNorms& args) {
  const Checker call("squared_norms");
  call.there(args.totals, "totals");
  call.that(args.totals.dtype() == DType::kFloat64 && args.first >= 0 &&
                args.first + static_cast<std::int64_t>(args.x.size()) <= args.totals.elements(),
            "{} totals from {} on, in {} {}", args.x.size(), args.first, args.totals.elements(),
            name_of(args.totals.dtype()));
  for (const Tensor& tensor : args.x) {
    call.there(tensor, "a tensor");
    call.that(tensor.dtype() == args.x[0].dtype() &&
                  (tensor.dtype() == DType::kFloat32 || tensor.dtype() == DType::kFloat64),
              "tensors of {} and {}; needed: all fp32 or all fp64", name_of(args.x[0].dtype()),
              name_of(tensor.dtype()));
  }
}

}  // namespace starling
