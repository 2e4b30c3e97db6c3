#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "core/operations/copying.h"
#include "kernels/cpu/cpu_backend_detail.h"

// Strided copies. y is written line by line, along its last dimension; if another dimension is
// contiguous in x, matrices are transposed.
namespace starling {

using cpu::Index;

namespace {

using Dimension = StridedCopy::Dimension;
/// Bytes of y from which what is written goes past the caches.
constexpr std::size_t kLarge = std::size_t{4} << 20;

/// Elements of x and of y.
struct Place {
  Index x = 0, y = 0;
  bool inside = true;  ///< of what takes numbers of x
};

/// Some dimensions of y; without `others` only the indices that are copied.
class Walk {
 public:
  Walk(const StridedCopy& copy, bool all) : all_(all) {
    Index stride = 1;
    for (int d = copy.rank; d-- > 0;) {
      const auto i = static_cast<std::size_t>(d);
      y_stride_[i] = stride;
      stride *= copy.dimensions[i].size;
    }
  }
  void add(const StridedCopy& copy, int d) {
    const auto i = static_cast<std::size_t>(d);
    own_[rank_] = copy.dimensions[i];
    stride_[rank_++] = y_stride_[i];
    count_ *= size(copy.dimensions[i]);
  }
  Index count() const { return count_; }
  Index size(const Dimension& d) const { return all_ ? d.size : d.count; }
  Index y_stride(int d) const { return y_stride_[static_cast<std::size_t>(d)]; }
  Place at(Index i) const {
    Place result;
    for (std::size_t r = rank_; r-- > 0;) {
      const Index n = size(own_[r]);
      step(own_[r], stride_[r], i % n, result);
      i /= n;
    }
    return result;
  }
  /// Advances to index i of a dimension with stride `y_stride` in y.
  void step(const Dimension& d, Index y_stride, Index i, Place& place) const {
    const Index from = all_ ? i - d.begin : i * d.step, k = from / d.step;
    place.y += (d.begin + from) * y_stride;
    place.x += k * d.stride;
    place.inside = place.inside && from >= 0 && k * d.step == from && k < d.count;
  }

 private:
  bool all_;
  std::array<Index, Shape::kMaxRank> y_stride_{}, stride_{};
  std::array<Dimension, Shape::kMaxRank> own_{};
  std::size_t rank_ = 0;
  Index count_ = 1;
};

/// One line: the places of y that take numbers, and at the others a number, or what is there.
template <class T>
void copy_row(const Dimension& d, const T* x, T* y, const T* other) {
  if (d.step == 1 && other) {
    std::fill_n(y, d.begin, *other);
    std::fill_n(y + d.begin + d.count, d.size - d.begin - d.count, *other);
  } else if (other) {
    std::fill_n(y, d.size, *other);
  }
  if (d.stride == 1 && d.step == 1) return void(std::copy_n(x, d.count, y + d.begin));
  if (d.stride == 0 && d.step == 1) return void(std::fill_n(y + d.begin, d.count, *x));
  for (Index k = 0; k < d.count; ++k) y[d.begin + k * d.step] = x[k * d.stride];
}

/// The dimension that is contiguous in x but not in y, or -1.
int turned_dimension(const StridedCopy& copy) {
  const Dimension& row = copy.dimensions[static_cast<std::size_t>(copy.rank - 1)];
  if (!row.is_whole() || row.size == 1 || row.stride <= 1) return -1;
  for (int d = 0; d < copy.rank - 1; ++d) {
    const Dimension& other = copy.dimensions[static_cast<std::size_t>(d)];
    if (other.is_whole() && other.size > 1 && other.stride == 1) return d;
  }
  return -1;
}

/// T: an integer of the numbers' size; K: the type of that size whose kernels move them. Bytes have
/// none.
template <class T, class K>
struct Copy {
  static constexpr bool kBytes = sizeof(T) == 1;
  const StridedCopy& copy;
  const cpu::Threads& threads;
  const cpu::Kernels<K>& kernels;
  const T* x;
  T* y;
  const T* other;  ///< null: other places stay
  const Dimension& row = copy.dimensions[static_cast<std::size_t>(copy.rank - 1)];
  bool large = copy.y.bytes() >= kLarge;

  void turn(int turned) const {
    constexpr Index kRows = 128, kColumns = 4096;
    const Dimension& columns = copy.dimensions[static_cast<std::size_t>(turned)];
    Walk outer(copy, other != nullptr);
    for (int d = 0; d + 1 < copy.rank; ++d)
      if (d != turned) outer.add(copy, d);
    const Index line_y = outer.y_stride(turned), down = (row.size + kRows - 1) / kRows,
                across = (columns.size + kColumns - 1) / kColumns;
    const Index each = std::min(kRows, row.size) * std::min(kColumns, columns.size);
    threads.parallel_for(
        outer.count() * down * across, cpu::rows_of_work(each), [&](Index begin, Index end) {
          for (Index unit = begin; unit < end; ++unit) {
            const Place at = outer.at(unit / (down * across));
            const Index r = unit / across % down * kRows, c = unit % across * kColumns,
                        rows = std::min(kRows, row.size - r),
                        count = std::min(kColumns, columns.size - c);
            T* to = y + at.y + c * line_y + r;
            if (at.inside) {
              if constexpr (!kBytes)
                kernels.transpose(as_kernels(x + at.x + r * row.stride + c), row.stride,
                                  as_kernels(to), line_y, rows, count, large);
            } else if (other) {
              for (Index i = 0; i < count; ++i) std::fill_n(to + i * line_y, rows, *other);
            }
          }
        });
  }

  void lines() const {
    const Dimension one{};
    const auto dimension = [&](int d) -> const Dimension& {
      return d < 0 ? one : copy.dimensions[static_cast<std::size_t>(d)];
    };
    // Lines go along the one of the last dimensions in which they lie closer together in x.
    int along = copy.rank - 2;
    if (copy.rank > 2 && dimension(along - 1).stride < dimension(along).stride) --along;
    const Dimension& line = dimension(along);
    const Index apart = along < 0 ? 0 : Walk(copy, true).y_stride(along);
    Walk outer(copy, other != nullptr);
    for (int d = 0; d + 1 < copy.rank; ++d)
      if (d != along) outer.add(copy, d);
    const Index count = outer.size(line),
                chunk =
                    std::clamp<Index>(cpu::rows_of_work(row.size), 1, std::max<Index>(count, 1)),
                chunks = (count + chunk - 1) / chunk;
    threads.parallel_for(
        outer.count() * chunks, cpu::rows_of_work(row.size * chunk), [&](Index begin, Index end) {
          for (Index u = begin; u < end; ++u) {
            const Index first = u % chunks * chunk;
            block(outer, line, apart, outer.at(u / chunks), first, std::min(chunk, count - first));
          }
          // What went past the caches is there before others read it.
          if (large) std::atomic_thread_fence(std::memory_order_seq_cst);
        });
  }

 private:
  static K* as_kernels(T* numbers) { return reinterpret_cast<K*>(numbers); }
  static const K* as_kernels(const T* numbers) { return reinterpret_cast<const K*>(numbers); }
  /// Lines first … first + n - 1 of those at a place, which are `apart` in y.
  void block(const Walk& walk, const Dimension& line, Index apart, const Place& at, Index first,
             Index n) const {
    const bool together = row.stride == 1 && row.step == 1 && (!other || row.is_whole());
    for (Index i = first, run; i < first + n; i += run) {
      Place place = at;
      walk.step(line, apart, i, place);
      run = 1;
      if (!kBytes && place.inside && together && (!other || line.step == 1)) {
        // Up to the last line that takes numbers
        run = std::min(first + n, other ? line.begin + line.count : line.count) - i;
        if constexpr (!kBytes)
          kernels.copy_lines(as_kernels(x + place.x), line.stride,
                             as_kernels(y + place.y + row.begin), (other ? 1 : line.step) * apart,
                             run, row.count, large);
      } else if (place.inside) {
        copy_row(row, x + place.x, y + place.y, other);
      } else if (other) {
        std::fill_n(y + place.y, row.size, *other);
      }
    }
  }
};

}  // namespace

void CpuBackend::issue(const StridedCopy& args) {
  const StridedCopy copy = args.joined();
  if (copy.y.elements() == 0) return;
  const auto run = [&]<class T, class K>(T, K) {
    const T number = static_cast<T>(copy.other_bits());
    const Copy<T, K> all{copy,
                         threads_,
                         kernels<K>(),
                         reinterpret_cast<const T*>(copy.x.raw()) + copy.first,
                         reinterpret_cast<T*>(copy.y.raw()),
                         copy.others ? &number : nullptr};
    const int turned = sizeof(T) == 1 ? -1 : turned_dimension(copy);
    turned < 0 ? all.lines() : all.turn(turned);
  };
  switch (size_of(copy.x.dtype())) {
    case 1: return run(std::uint8_t{}, float{});
    case 2: return run(std::uint16_t{}, BFloat16{});
    case 4: return run(std::uint32_t{}, float{});
    default: return run(std::uint64_t{}, double{});
  }
}

}  // namespace starling
