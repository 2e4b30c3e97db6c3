#include "core/operations/attention.h"

#include <cmath>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/math/rotary.h"

namespace starling {

using cpu::Index;

namespace {

template <class T>
cpu::Heads<T> heads(const View& x) {
  if (!x) return {};
  return {x.data<std::remove_const_t<T>>(), x.stride(0), x.stride(1), x.stride(2)};
}

template <class T>
cpu::AttentionCall<T> call_of(const Attention& args, const Tensor& lse) {
  const Shape &q = args.q.shape(), &k = args.k.shape();
  cpu::AttentionCall<T> call{.samples = q[0],
                             .heads = q[1],
                             .kv_heads = k[1],
                             .queries = q[2],
                             .keys = k[2],
                             .depth = q[3],
                             .q = heads<const T>(args.q),
                             .k = heads<const T>(args.k),
                             .v = heads<const T>(args.v),
                             .lse = lse.data<Compute<T>>(),
                             .causal = args.causal,
                             .window = args.window,
                             .scale = static_cast<Compute<T>>(args.scale),
                             .p = args.p,
                             .key = args.key,
                             .counter = args.counter};
  if (args.positions) call.positions = args.positions.data<std::int32_t>();
  if (args.mask) {
    call.mask = args.mask.data<T>();
    call.mask_sample = args.mask.stride(0), call.mask_head = args.mask.stride(1);
    call.mask_query = args.mask.stride(2), call.mask_key = args.mask.stride(3);
  }
  return call;
}

}  // namespace

void CpuBackend::issue(const AttentionForward& args) {
  floating(args.q.tensor(), [&](auto type) {
    using T = decltype(type);
    auto call = call_of<T>(args, args.lse);
    call.out = heads<T>(args.y);
    const Index tasks = call.samples * call.heads * call.query_blocks(),
                each = call.forward_scratch();
    const cpu::Workspace<Compute<T>> scratch(*allocator_, each * threads_.count());
    threads_.parallel_parts(tasks, 1, [&](Index part, Index begin, Index end) {
      kernels<T>().attention_forward(call, begin, end, scratch.data() + part * each);
    });
  });
}

void CpuBackend::issue(const AttentionBackward& args) {
  floating(args.q.tensor(), [&](auto type) {
    using T = decltype(type);
    auto call = call_of<T>(args, args.lse);
    call.y = heads<const T>(args.y), call.dy = heads<const T>(args.dy);
    call.dq = heads<T>(args.dq), call.dk = heads<T>(args.dk), call.dv = heads<T>(args.dv);
    const Index tasks = call.samples * call.kv_heads, each = call.backward_scratch();
    const cpu::Workspace<Compute<T>> scratch(*allocator_, each * threads_.count());
    threads_.parallel_parts(tasks, 1, [&](Index part, Index begin, Index end) {
      kernels<T>().attention_backward(call, begin, end, scratch.data() + part * each);
    });
  });
}

void CpuBackend::issue(const Rotary& args) {
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    const Index width = args.x.shape().back(), half = width / 2, rows = args.x.elements() / width,
                count = args.places();
    const auto* positions = args.positions ? args.positions.data<std::int32_t>() : nullptr;
    // The turn of each pair at each position, for all rows that have it.
    const cpu::Workspace<R> turns(*allocator_, 2 * count * half);
    threads_.parallel_for(count, cpu::rows_of_work(16 * width), [&](Index begin, Index end) {
      for (Index i = begin * half; i < end * half; ++i) {
        const Index position = positions ? positions[i / half] : args.first + i / half;
        const math::Turn<R> turn = math::rotary_turn<R>(
            position, math::rotary_frequency(args.frequencies, i % half, width), args.inverse);
        turns.data()[2 * i] = turn.cos, turns.data()[2 * i + 1] = turn.sin;
      }
    });
    const Index step = args.interleaved ? 2 : 1, apart = args.interleaved ? 1 : half;
    threads_.parallel_for(rows, cpu::rows_of_work(width), [&](Index begin, Index end) {
      for (Index row = begin; row < end; ++row) {
        const T* x = args.x.data<T>() + row * width;
        T* y = args.y.data<T>() + row * width;
        const R* turn = turns.data() + row / args.repeat % count * width;
        for (Index i = 0; i < half; ++i, x += step, y += step, turn += 2) {
          const R a = cpu::widen(x[0]), b = cpu::widen(x[apart]);
          y[0] = cpu::narrow<T>(a * turn[0] - b * turn[1]);
          y[apart] = cpu::narrow<T>(b * turn[0] + a * turn[1]);
        }
      }
    });
  });
}

}  // namespace starling
