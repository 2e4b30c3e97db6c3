#include <algorithm>
#include <array>
#include <limits>

#include "core/operations/reduce.h"
#include "kernels/cpu/cpu_backend_detail.h"
#include "kernels/cpu/map_rows.h"
#include "kernels/math/map_functions.h"

// Reductions. Places come in rows. Where the last dimension stays, rows are added up, a block of
// them to a thread; where it goes, a row's numbers are, or a piece of a long one's. What is added
// to what depends on sizes alone, so no bit depends on the number of threads.
namespace starling {

using cpu::Index;

namespace {

/// Numbers of a row whose sum is one term, as on a GPU
constexpr Index kPiece = 4096;
/// Terms go in chains, of which a GPU takes all at the same time; up to 32 are added one after
/// another.
constexpr Index kChains = 32;
/// Columns that are taken at a time; and rows of a block, where there are many columns.
constexpr Index kTile = 1024, kManyColumns = 4096, kMostRows = 256;

/// How a Reduce is cut.
struct Cut {
  MapLayout layout;
  cpu::MapWalk kept, rows;  ///< kept and reduced dimensions, without the last one
  Index length;
  bool columns;  ///< the last dimension stays
  bool images;   ///< the first dimension stays: a batch, whose places do not mix
  Index width, block_rows, pieces, blocks, tiles;

  explicit Cut(const Reduce& args)
      : layout(layout_of(args, args.places(), args.y)),
        kept(layout, [this](std::size_t d) { return !layout.reduced(d); }),
        rows(layout, [this](std::size_t d) { return layout.reduced(d); }),
        length(layout.size[last()]),
        columns(!layout.reduced(last())),
        images(columns && args.y.shape().rank() == args.in[0].shape().rank() &&
               args.y.shape()[0] == args.in[0].shape()[0]),
        width(columns ? length : 1),
        block_rows(!columns                ? 1
                   : length < kManyColumns ? cpu::block_rows(length)
                                           : kMostRows),
        pieces(columns ? 1 : (length + kPiece - 1) / kPiece),
        blocks((rows.count() + block_rows - 1) / block_rows * pieces),
        tiles(columns ? (length + kTile - 1) / kTile : 1) {}
  Cut(const Cut&) = delete;
  std::size_t last() const { return static_cast<std::size_t>(layout.rank - 1); }
  Index stride(std::size_t k) const { return layout.stride[k][last()]; }
};

template <class A>
A better(Reduction by, A a, A b) {
  return by == Reduction::kLargest ? math::map_function(MapFunction::kMaximum, a, b)
                                   : math::map_function(MapFunction::kMinimum, a, b);
}
double nothing(Reduction by) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return by == Reduction::kSum ? 0.0 : by == Reduction::kLargest ? -kInfinity : kInfinity;
}

/// One thread's share; A is the type of arithmetic.
template <class A>
class Share {
 public:
  Share(const Reduce& args, const Cut& cut, const cpu::AllKernels& kernels,
        cpu::CachingAllocator& allocator)
      : args_(args),
        cut_(cut),
        kernels_(kernels),
        operands_(args, cut.layout, allocator),
        room_(allocator, cpu::MapOperands<A>::kRoom) {}

  /// Does units `first` … `last` - 1, each a block of an output row's, or a tile of its columns.
  void work(Index first, Index last, double* sums) {
    for (Index u = first, n; u < last; u += n) {
      const Index tile = u % cut_.tiles, b = u / cut_.tiles % cut_.blocks,
                  o = u / cut_.tiles / cut_.blocks;
      double* to = sums + (o * cut_.blocks + b) * cut_.width + tile * kTile;
      n = 1;
      if (cut_.columns) {
        const Index columns = std::min(kTile, cut_.length - tile * kTile);
        std::fill_n(to, columns, nothing(args_.by));
        add_rows(cut_.kept.at(o), b * cut_.block_rows, tile * kTile, columns, to);
      } else if (cut_.blocks == 1 && (alone() || 2 * cut_.length <= kRoom)) {
        n = std::min(last - u, cut_.kept.run(o));
        if (!alone()) n = std::min(n, kRoom / cut_.length);
        const cpu::MapBlock block{cut_.kept.at(o), cut_.kept.step(), n, cut_.length};
        if (!own_lines(block, to)) fold_lines(evaluate(block), n, cut_.length, to);
      } else {
        const Index begin = b % cut_.pieces * kPiece;
        *to = line(cut_.rows.at(b / cut_.pieces, cut_.kept.at(o)), begin,
                   std::min(kPiece, cut_.length - begin));
      }
    }
  }

 private:
  static constexpr Index kRoom = cpu::MapOperands<A>::kRoom;

  /// The expression's numbers.
  const A* evaluate(const cpu::MapBlock& block) {
    operands_.take(block);
    const Index n = block.rows * block.length;
    if (args_.count > 0) {
      const cpu::MapResult<A> result{room_.data(), kMapResults + args_.count - 1};
      operands_.run(kernels_.of<A>(), block, {&result, 1});
    } else if (operands_.in(0)) {
      return operands_.in(0);
    } else if (operands_.wide(0)) {
      return operands_.wide(0);
    } else {
      std::fill_n(room_.data(), n, operands_.number(0));
    }
    return room_.data();
  }
  void fold_lines(const A* values, Index lines, Index n, double* to) const {
    kernels_.of<A>().fold_lines(args_.by, values, n, lines, n, to);
  }

  /// A single tensor of the arithmetic type with contiguous last dimension, read without a copy.
  bool alone() const {
    const DType own = args_.in[0].dtype();
    return args_.count == 0 && cut_.stride(0) == 1 &&
           (std::is_same_v<A, double> ? DType::kFloat64 : DType::kFloat32) ==
               (is_low_precision(own) ? DType::kFloat32 : own);
  }
  /// Calls f(kernels, its numbers from an element on), if it is alone.
  template <class F>
  bool with_own(Index from, const F& f) const {
    if (!alone()) return false;
    dispatch_floating(args_.in[0].dtype(), [&](auto type) {
      using T = decltype(type);
      if constexpr (std::is_same_v<Compute<T>, A>)
        f(kernels_.of<T>(), args_.in[0].data<T>() + from);
    });
    return true;
  }
  bool own_lines(const cpu::MapBlock& block, double* to) const {
    return with_own(block.first[0], [&](const auto& kernels, const auto* x) {
      kernels.fold_lines(args_.by, x, block.step[0], block.rows, block.length, to);
    });
  }

  double line(cpu::MapOffsets first, Index begin, Index n) {
    for (std::size_t k = 0; k < first.size(); ++k) first[k] += begin * cut_.stride(k);
    if (double result = 0.0; squares(first, n, result)) return result;
    double result = nothing(args_.by), part = 0.0;
    if (own_lines({first, {}, 1, n}, &result)) return result;
    for (Index at = 0; at < n; at += kRoom) {
      const Index count = std::min(kRoom, n - at);
      fold_lines(evaluate({first, {}, 1, count}), 1, count, &part);
      result = args_.by == Reduction::kSum ? result + part : better(args_.by, result, part);
      for (std::size_t k = 0; k < first.size(); ++k) first[k] += count * cut_.stride(k);
    }
    return result;
  }
  /// Sums squares without a step between.
  bool squares(const cpu::MapOffsets& first, Index n, double& result) {
    if (!sums_squares(args_) || cut_.stride(0) != 1) return false;
    dispatch_floating(args_.in[0].dtype(), [&](auto type) {
      using T = decltype(type);
      result = kernels_.of<T>().squares(args_.in[0].data<T>() + first[0], n);
    });
    return true;
  }

  /// Columns `column` … of rows begin … of a block.
  void add_rows(const cpu::MapOffsets& kept, Index begin, Index column, Index columns, double* to) {
    const Index end = std::min(begin + cut_.block_rows, cut_.rows.count());
    const Index together = std::max<Index>(1, kRoom / columns);
    for (Index q = begin, n; q < end; q += n) {
      n = std::min(end - q, cut_.rows.run(q));
      cpu::MapBlock block{cut_.rows.at(q, kept), cut_.rows.step(), n, columns};
      for (std::size_t k = 0; k < block.first.size(); ++k)
        block.first[k] += column * cut_.stride(k);
      const bool own = with_own(block.first[0], [&](const auto& kernels, const auto* x) {
        // A batch's rows are taken four by four, however short they are: one image has the bits
        // that it has among others.
        const bool joins = !cut_.images || !std::is_same_v<decltype(x), const A*>;
        kernels.fold_columns(args_.by, x, n == 1 ? columns : block.step[0], n, columns, joins, to);
      });
      for (Index r = 0; r < n && !own; r += together) {
        cpu::MapBlock piece = block;
        piece.rows = std::min(together, n - r);
        for (std::size_t k = 0; k < piece.first.size(); ++k) piece.first[k] += r * piece.step[k];
        const A* values = evaluate(piece);
        kernels_.of<A>().fold_columns(args_.by, values, columns, piece.rows, columns, true, to);
      }
    }
  }

  const Reduce& args_;
  const Cut& cut_;
  const cpu::AllKernels& kernels_;
  cpu::MapOperands<A> operands_;
  cpu::Workspace<A> room_;
};

/// Puts the blocks' results together, those of rows one after another, those of pieces in chains:
/// of `count` neighbours, whose first block's are at `sums`.
constexpr Index kNeighbours = 64;
void combine(Reduction by, const Cut& cut, const double* sums, Index count, double* results) {
  const auto add = [&](double* into, const double* terms) {
    if (by == Reduction::kSum) {
      for (Index k = 0; k < count; ++k) into[k] += terms[k];
    } else {
      for (Index k = 0; k < count; ++k) into[k] = better(by, into[k], terms[k]);
    }
  };
  const Index chains = cut.columns ? 1 : std::min(kChains, cut.blocks);
  std::fill_n(results, count, nothing(by));
  std::array<double, kNeighbours> part;
  for (Index chain = 0; chain < chains; ++chain) {
    std::fill_n(part.data(), count, nothing(by));
    for (Index b = chain; b < cut.blocks; b += chains) add(part.data(), sums + b * cut.width);
    add(results, part.data());
  }
}

}  // namespace

void CpuBackend::issue(const Reduce& args) {
  if (args.y.elements() == 0) return;
  threads_.enter();
  const Cut cut(args);
  const Index results = cut.kept.count() * cut.blocks, units = results * cut.tiles;
  const cpu::Workspace<double> sums(*allocator_, std::max<Index>(results * cut.width, 1));
  const Index each = cut.columns
                         ? std::min(cut.block_rows, cut.rows.count()) * std::min(cut.length, kTile)
                         : std::min(kPiece, cut.length);
  const auto work = [&](auto arithmetic) {
    threads_.parallel_for(units, cpu::rows_of_work(each), [&](Index begin, Index end) {
      Share<decltype(arithmetic)>(args, cut, kernels_, *allocator_).work(begin, end, sums.data());
    });
  };
  if (args.y.dtype() == DType::kFloat64)
    work(double{});
  else
    work(float{});
  dispatch_floating(args.y.dtype(), [&](auto type) {
    using T = decltype(type);
    T* y = args.y.data<T>();
    using R = Compute<T>;
    const Index each_row = cut.blocks * cut.width;
    threads_.parallel_for(
        args.y.elements(), cpu::rows_of_work(cut.blocks), [&](Index begin, Index end) {
          if (cut.blocks == 1 && !args.accumulate) {
            const auto factor = static_cast<R>(args.factor);
            for (Index i = begin; i < end; ++i)
              y[i] = cpu::narrow<T>(static_cast<R>(sums.data()[i]) * factor);
            return;
          }
          std::array<double, kNeighbours> found;
          for (Index i = begin; i < end;) {
            const Index place = i % cut.width,
                        count = std::min({kNeighbours, end - i, cut.width - place});
            combine(args.by, cut, sums.data() + i / cut.width * each_row + place, count,
                    found.data());
            for (Index k = 0; k < count; ++k, ++i) {
              const double result = found[static_cast<std::size_t>(k)];
              y[i] = cpu::narrow<T>(
                  args.accumulate
                      ? static_cast<R>(static_cast<double>(cpu::widen(y[i])) + result * args.factor)
                      : static_cast<R>(result) * static_cast<R>(args.factor));
            }
          }
        });
  });
}

}  // namespace starling
