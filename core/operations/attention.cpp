#include "core/operations/attention.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "core/operations/checker.h"
#include "core/operations/list.h"

namespace starling {

namespace {

/// Minus the bytes of tensors that the views do not show, which do not move.
double unseen(std::initializer_list<const View*> views) {
  double result = 0.0;
  for (const View* view : views) {
    if (!*view) continue;
    const double seen =
        static_cast<double>(view->elements()) * static_cast<double>(size_of(view->dtype()));
    result += std::min(0.0, seen - bytes_of({view->tensor()}));
  }
  return result;
}

/// Arithmetic of `products` products of all queries and keys.
double flops_of(const Attention& args, int products) {
  const auto keys = static_cast<double>(args.k.shape()[2]);
  double looked_at = args.causal ? (keys + 1.0) / 2.0 : keys;  // in the mean
  if (args.window > 0) looked_at = std::min(looked_at, static_cast<double>(args.window));
  return 2.0 * products * static_cast<double>(args.q.elements()) * looked_at;
}

void check_inputs(const Checker& call, const Attention& args) {
  call.floating(args.q.tensor(), "q");
  const Shape &q = args.q.shape(), &k = args.k.shape();
  call.that(q.rank() == 4 && k.rank() == 4 && args.v.shape() == k,
            "q, k and v must be [N,H,T,D], [N,Hkv,S,D] and as k, not {}, {} and {}", q.text(),
            k.text(), args.v.shape().text());
  call.that(q[0] == k[0] && q[3] == k[3] && q[3] > 0 && k[1] > 0 && q[1] % k[1] == 0,
            "queries {} do not go with keys {}", q.text(), k.text());
  if (args.mask) {
    const Shape scores{q[0], q[1], q[2], k[2]};
    call.that(args.mask.shape() == scores, "the mask is {}; needed: {}", args.mask.shape().text(),
              scores.text());
    call.that(args.mask.dtype() == args.q.dtype(), "the mask is {}; needed: {}",
              name_of(args.mask.dtype()), name_of(args.q.dtype()));
  }
  call.that(args.window >= 0 && (args.window == 0 || args.causal),
            "a window of {} keys, {}; needed: 1 or more, and causal attention", args.window,
            args.causal ? "causal" : "not causal");
  if (args.positions) {
    const Shape tokens{q[0], q[2]};
    call.that(args.causal && q[2] == k[2],
              "positions in documents need causal attention of as many keys as queries");
    call.that(args.positions.shape() == tokens && args.positions.dtype() == DType::kInt32,
              "positions are {} {}; needed: int32 {}", name_of(args.positions.dtype()),
              args.positions.shape().text(), tokens.text());
  }
  call.that(args.p >= 0.0 && args.p <= 1.0, "p is {}, but must lie in [0, 1]", args.p);
}

/// A view of `shape` with contiguous last dimension.
void check_view(const Checker& call, const View& x, const char* name, const Shape& shape,
                DType dtype) {
  call.that(x.shape() == shape, "{} is {}; needed: {}", name, x.shape().text(), shape.text());
  call.that(x.dtype() == dtype, "{} is {}; needed: {}", name, name_of(x.dtype()), name_of(dtype));
  call.that(x.stride(3) == 1 || shape[3] == 1, "no places of {} lie whole", name);
}

}  // namespace

Accesses AttentionForward::accesses() const {
  Accesses result = Accesses()
                        .read({q.tensor(), k.tensor(), v.tensor(), mask.tensor(), positions})
                        .write({y.tensor(), lse})
                        .again(unseen({&q, &k, &v, &mask, &y}));
  result.flops += flops_of(*this, 2);
  return result;
}

Accesses AttentionBackward::accesses() const {
  Accesses result = Accesses()
                        .read({q.tensor(), k.tensor(), v.tensor(), mask.tensor(), positions,
                               y.tensor(), dy.tensor(), lse})
                        .write({dq.tensor(), dk.tensor(), dv.tensor()})
                        .again(unseen({&q, &k, &v, &mask, &y, &dy, &dq, &dk, &dv}));
  result.flops += flops_of(*this, 5);
  return result;
}

void check(const AttentionForward& args) {
  const Checker call("attention_forward");
  check_inputs(call, args);
  const Shape& q = args.q.shape();
  check_view(call, args.q, "q", q, args.q.dtype());
  check_view(call, args.k, "k", args.k.shape(), args.q.dtype());
  check_view(call, args.v, "v", args.k.shape(), args.q.dtype());
  check_view(call, args.y, "y", q, args.q.dtype());
  call.has(args.lse, "lse", q[0] * q[1] * q[2], wide_of(args.q.dtype()));
}

void check(const AttentionBackward& args) {
  const Checker call("attention_backward");
  check_inputs(call, args);
  const Shape &q = args.q.shape(), &k = args.k.shape();
  const struct {
    const View* view;
    const char* name;
    const Shape* shape;
  } views[] = {{&args.q, "q", &q},   {&args.k, "k", &k},   {&args.v, "v", &k},
               {&args.y, "y", &q},   {&args.dy, "dy", &q}, {&args.dq, "dq", &q},
               {&args.dk, "dk", &k}, {&args.dv, "dv", &k}};
  for (const auto& [view, name, shape] : views)
    check_view(call, *view, name, *shape, args.q.dtype());
  call.has(args.lse, "lse", q[0] * q[1] * q[2], wide_of(args.q.dtype()));
}

void check(const Rotary& args) {
  const Checker call("rotary");
  const auto x = call.matrix(args.x, "x");
  call.has(args.y, "y", x.elements(), args.x.dtype());
  call.that(x.columns % 2 == 0, "rows of {} numbers are no pairs", x.columns);
  call.that(!args.positions || args.positions.dtype() == DType::kInt32,
            "positions are {}; needed: int32",
            args.positions ? name_of(args.positions.dtype()) : "none");
  const std::int64_t count = args.places() * args.repeat;
  call.that(args.repeat > 0 && (count > 0 ? x.rows % count == 0 : x.rows == 0),
            "{} positions, {} times each, are no part of {} rows", args.places(), args.repeat,
            x.rows);
}

}  // namespace starling
