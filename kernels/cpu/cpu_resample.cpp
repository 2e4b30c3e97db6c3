#include <algorithm>
#include <vector>

#include "core/operations/resampling.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Images of another size: a line of the result is made of lines first, and then pixel by pixel.
namespace starling {

using cpu::Index;

namespace {

/// An axis as its result, or with `transposed` its source, is made.
class Axis {
 public:
  Axis(const ResampleAxis& axis, bool transposed) : transposed_(transposed) {
    for (Index p = 0; p < axis.out; ++p) taps_.push_back(axis.taps(p));
    for (Index i = 0; transposed && i < axis.in; ++i) made_.push_back(axis.users_of(i));
  }
  /// Calls f(source, weight) for what pixel i is made of.
  template <class F>
  void for_sources(Index i, const F& f) const {
    const auto at = static_cast<std::size_t>(i);
    const Index first = transposed_ ? made_[at].first : taps_[at].first,
                last = transposed_ ? made_[at].last : taps_[at].last;
    for (Index s = first; s <= last; ++s)
      f(s, transposed_ ? taps_[static_cast<std::size_t>(s)].of(i) : taps_[at].of(s));
  }

 private:
  bool transposed_;
  std::vector<ResampleTaps> taps_;
  std::vector<ResampleAxis::PixelRange> made_;
};

}  // namespace

void CpuBackend::issue(const Resample& args) {
  const Shape &from = args.x.shape(), &to = args.y.shape();
  const Index height = from[1], width = from[2], rows = to[1], columns = to[2], channels = to[3];
  if (args.y.elements() == 0) return;
  const Axis down(args.axis(0), args.transposed), across(args.axis(1), args.transposed);
  floating(args.x, [&](auto type) {
    using T = decltype(type);
    using R = Compute<T>;
    threads_.parallel_for(to[0] * rows, cpu::rows_of_work(columns * channels),
                          [&](Index begin, Index end) {
                            const Index line = width * channels, made = columns * channels;
                            const cpu::Workspace<R> memory(*allocator_, line + made);
                            R *const sum = memory.data(), *const result = sum + line;
                            for (Index r = begin; r < end; ++r) {
                              std::fill_n(sum, line, R(0));
                              down.for_sources(r % rows, [&](Index h, double weight) {
                                const T* x = args.x.data<T>() + (r / rows * height + h) * line;
                                const R factor = static_cast<R>(weight);
                                STARLING_LOOP
                                for (Index i = 0; i < line; ++i)
                                  sum[i] += factor * cpu::widen(x[i]);
                              });
                              std::fill_n(result, made, R(0));
                              for (Index q = 0; q < columns; ++q) {
                                R* const pixel = result + q * channels;
                                across.for_sources(q, [&](Index w, double weight) {
                                  const R* x = sum + w * channels;
                                  const R factor = static_cast<R>(weight);
                                  STARLING_LOOP
                                  for (Index c = 0; c < channels; ++c) pixel[c] += factor * x[c];
                                });
                              }
                              T* y = args.y.data<T>() + r * made;
                              for (Index i = 0; i < made; ++i) y[i] = cpu::narrow<T>(result[i]);
                            }
                          });
  });
}

}  // namespace starling
