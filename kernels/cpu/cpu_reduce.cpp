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

/// How a Reduce is cut.
struct Cut {
  MapLayout layout;
  cpu::MapWalk kept, rows;  ///< what stays, and what goes, beside the last dimension
  Index length;
  bool columns;  ///< the last dimension stays
  bool images;   ///< the first dimension stays: a batch, whose places do not mix
  Index width, block_rows, pieces, blocks;

  explicit Cut(const Reduce& args)
      : layout(layout_of(args, args.places(), args.y)),
        kept(layout, [this](std::size_t d) { return !layout.reduced(d); }),
        rows(layout, [this](std::size_t d) { return layout.reduced(d); }),
        length(layout.size[last()]),
        columns(!layout.reduced(last())),
        images(columns && args.y.shape().rank() == args.in[0].shape().rank() &&
               args.y.shape()[0] == args.in[0].shape()[0]),
        width(columns ? length : 1),
        block_rows(columns ? cpu::block_rows(length) : 1),
        pieces(columns ? 1 : (length + kPiece - 1) / kPiece),
        blocks((rows.count() + block_rows - 1) / block_rows * pieces) {}
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
        room_(allocator, cpu::MapOperands<A>::kRoom),
        scratch_(allocator, cut.columns ? cpu::fold_width(cut.length) + 4 * kPiece : 0) {}

  /// Does units `first` … `last` - 1, each a block of an output row's.
  void work(Index first, Index last, double* sums) {
    for (Index u = first, n; u < last; u += n) {
      const Index o = u / cut_.blocks, b = u % cut_.blocks;
      double* to = sums + u * cut_.width;
      n = 1;
      if (cut_.columns) {
        std::fill_n(to, cut_.width, nothing(args_.by));
        add_rows(cut_.kept.at(o), b * cut_.block_rows, to);
      } else if (cut_.blocks == 1 && 2 * cut_.length <= kRoom) {
        n = std::min({kRoom / cut_.length, last - u, cut_.kept.run(o)});
        const A* values = evaluate({cut_.kept.at(o), cut_.kept.step(), n, cut_.length});
        for (Index r = 0; r < n; ++r) to[r] = total(values + r * cut_.length, cut_.length);
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
      operands_.run(std::get<cpu::Kernels<A>>(kernels_), block, {&result, 1});
    } else if (operands_.in(0)) {
      return operands_.in(0);
    } else if (operands_.wide(0)) {
      return operands_.wide(0);
    } else {
      std::fill_n(room_.data(), n, operands_.number(0));
    }
    return room_.data();
  }
  double total(const A* values, Index n) const {
    if (args_.by == Reduction::kSum) return std::get<cpu::Kernels<A>>(kernels_).sum(values, n);
    A result = values[0];
    for (Index i = 1; i < n; ++i) result = better(args_.by, result, values[i]);
    return static_cast<double>(result);
  }

  double line(cpu::MapOffsets first, Index begin, Index n) {
    for (std::size_t k = 0; k < first.size(); ++k) first[k] += begin * cut_.stride(k);
    if (double result = 0.0; squares(first, n, result)) return result;
    double result = nothing(args_.by);
    for (Index at = 0; at < n; at += kRoom) {
      const Index count = std::min(kRoom, n - at);
      const double part = total(evaluate({first, {}, 1, count}), count);
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
      result = std::get<cpu::Kernels<T>>(kernels_).squares(args_.in[0].data<T>() + first[0], n);
    });
    return true;
  }

  void add_rows(const cpu::MapOffsets& kept, Index begin, double* to) {
    const Index end = std::min(begin + cut_.block_rows, cut_.rows.count());
    for (Index q = begin, n; q < end; q += n) {
      n = std::min(end - q, cut_.rows.run(q));
      const cpu::MapBlock block{cut_.rows.at(q, kept), cut_.rows.step(), n, cut_.length};
      if (adds_images(block, to) || sums_as_it_lies(block, to)) continue;
      const Index together = std::max<Index>(1, kRoom / cut_.length);
      for (Index r = 0; r < n; r += together) {
        for (Index column = 0; column < cut_.length; column += kRoom)
          add(piece_of(block, r, std::min(together, n - r), column), to + column);
      }
    }
  }
  cpu::MapBlock piece_of(cpu::MapBlock block, Index row, Index rows, Index column) const {
    for (std::size_t k = 0; k < block.first.size(); ++k)
      block.first[k] += row * block.step[k] + column * cut_.stride(k);
    block.rows = rows;
    block.length = std::min(kRoom, cut_.length - column);
    return block;
  }
  void add(const cpu::MapBlock& block, double* to) {
    const A* values = evaluate(block);
    if (args_.by == Reduction::kSum) {
      return std::get<cpu::Kernels<A>>(kernels_).column_sums(values, block.rows, block.length,
                                                             scratch_.data(), to);
    }
    for (Index i = 0; i < block.rows * block.length; ++i) {
      double& best = to[i % block.length];
      best = better(args_.by, best, static_cast<double>(values[i]));
    }
  }
  /// Whether a tensor alone is added up, whose rows follow each other.
  bool lies_dense(const cpu::MapBlock& block) const {
    return args_.count == 0 && args_.by == Reduction::kSum && cut_.stride(0) == 1 &&
           (block.rows == 1 || block.step[0] == block.length);
  }
  /// A batch's rows are added four by four, however short they are: one image has the bits that it
  /// has among others.
  bool adds_images(const cpu::MapBlock& block, double* to) {
    if (!cut_.images || !lies_dense(block) || args_.in[0].dtype() != DTypeOf<A>::value)
      return false;
    const A* row = args_.in[0].data<A>() + block.first[0];
    constexpr auto kAdd = MapFunction::kAdd;
    constexpr MapStep kFour[] = {{kAdd, 0, 1},
                                 {kAdd, 2, 3},
                                 {kAdd, kMapResults, kMapResults + 1},
                                 {kAdd, kMapResults + 2, 4}},
                      kOne[] = {{kAdd, 0, 4}};
    const Index length = block.length;
    A* sum = scratch_.data();
    std::fill_n(sum, length, A(0));
    std::array<const A*, kMapTensors> in{};
    const std::array<const A*, kMapTensors> wide{};
    in[4] = sum;
    for (Index r = 0, n; r < block.rows; r += n) {
      n = block.rows - r < 4 ? 1 : 4;
      for (Index i = 0; i < n; ++i) in[static_cast<std::size_t>(i)] = row + (r + i) * length;
      const cpu::MapResult<A> result{sum, kMapResults + static_cast<int>(n) - 1};
      std::get<cpu::Kernels<A>>(kernels_).map(n == 4 ? kFour : kOne, static_cast<int>(n), in.data(),
                                              wide.data(), nullptr, &result, 1, length);
    }
    for (Index c = 0; c < length; ++c) to[c] += static_cast<double>(sum[c]);
    return true;
  }
  /// A tensor's own rows are added up in as long runs as they come.
  bool sums_as_it_lies(const cpu::MapBlock& block, double* to) {
    const Tensor& x = args_.in[0];
    if (!lies_dense(block)) return false;
    bool done = false;
    dispatch_floating(x.dtype(), [&](auto type) {
      using T = decltype(type);
      if constexpr (std::is_same_v<Compute<T>, A>) {
        std::get<cpu::Kernels<T>>(kernels_).column_sums(x.data<T>() + block.first[0], block.rows,
                                                        block.length, scratch_.data(), to);
        done = true;
      }
    });
    return done;
  }

  const Reduce& args_;
  const Cut& cut_;
  const cpu::AllKernels& kernels_;
  cpu::MapOperands<A> operands_;
  cpu::Workspace<A> room_, scratch_;
};

/// Puts the blocks' results at sums[b · width] together: those of rows one after another, those of
/// pieces in chains.
double combined(Reduction by, const Cut& cut, const double* sums) {
  const Index chains = cut.columns ? 1 : std::min(kChains, cut.blocks);
  double result = nothing(by);
  for (Index chain = 0; chain < chains; ++chain) {
    double part = nothing(by);
    for (Index b = chain; b < cut.blocks; b += chains) {
      const double term = sums[b * cut.width];
      part = by == Reduction::kSum ? part + term : better(by, part, term);
    }
    result = by == Reduction::kSum ? result + part : better(by, result, part);
  }
  return result;
}

}  // namespace

void CpuBackend::issue(const Reduce& args) {
  if (args.y.elements() == 0) return;
  threads_.enter();
  const Cut cut(args);
  const Index units = cut.kept.count() * cut.blocks;
  const cpu::Workspace<double> sums(*allocator_, std::max<Index>(units * cut.width, 1));
  const Index each = cut.columns ? std::min(cut.block_rows, cut.rows.count()) * cut.length
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
    const Index each_row = cut.blocks * cut.width;
    threads_.parallel_for(
        args.y.elements(), cpu::rows_of_work(cut.blocks), [&](Index begin, Index end) {
          for (Index i = begin; i < end; ++i) {
            const double* own = sums.data() + i / cut.width * each_row + i % cut.width;
            const double result = combined(args.by, cut, own);
            using R = Compute<T>;
            y[i] = cpu::narrow<T>(
                args.accumulate
                    ? static_cast<R>(static_cast<double>(cpu::widen(y[i])) + result * args.factor)
                    : static_cast<R>(result) * static_cast<R>(args.factor));
          }
        });
  });
}

}  // namespace starling
