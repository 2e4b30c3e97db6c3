#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>

#include "core/dispatch.h"
#include "core/operations/map.h"
#include "kernels/cpu/workspace.h"

// Rows of an expression's places as the kernels of maps take them. A row is the last of a layout's
// dimensions; rows that are short are taken some at once.
namespace starling::cpu {

/// Elements of each tensor, and last of the result.
using MapOffsets = std::array<Index, kMapTensors + 1>;

/// The coordinates in some dimensions of a layout, one after another.
class MapWalk {
 public:
  /// The dimensions but the last that `takes` returns true for.
  template <class Takes>
  MapWalk(const MapLayout& layout, Takes takes) : layout_(&layout) {
    for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(layout.rank); ++d) {
      if (!takes(d)) continue;
      dimensions_[rank_++] = d;
      count_ *= layout.size[d];
    }
  }
  Index count() const { return count_; }
  /// The tensors' offsets at coordinate i, starting from `from`.
  MapOffsets at(Index i, MapOffsets from = {}) const {
    for (std::size_t r = rank_; r-- > 0;) {
      const std::size_t d = dimensions_[r];
      const Index coordinate = i % layout_->size[d];
      i /= layout_->size[d];
      for (std::size_t k = 0; k < from.size(); ++k) from[k] += coordinate * layout_->stride[k][d];
    }
    return from;
  }
  /// Coordinates from i on whose elements are step() apart, at least one.
  Index run(Index i) const {
    if (rank_ == 0) return 1;
    const Index size = layout_->size[dimensions_[rank_ - 1]];
    return size - i % size;
  }
  MapOffsets step() const {
    MapOffsets result{};
    for (std::size_t k = 0; k < result.size() && rank_ > 0; ++k)
      result[k] = layout_->stride[k][dimensions_[rank_ - 1]];
    return result;
  }

 private:
  const MapLayout* layout_;
  std::array<std::size_t, Shape::kMaxRank> dimensions_{};
  std::size_t rank_ = 0;
  Index count_ = 1;
};

/// Rows of places, dense: `length` each, the next one's elements `step` behind those of the one
/// before.
struct MapBlock {
  MapOffsets first{}, step{};
  Index rows = 1, length = 0;
};

/// Operands of a map of K's numbers over one block after another.
template <class K>
class MapOperands {
 public:
  using R = Compute<K>;
  /// Places of a block, where operands are not as the kernels take them.
  static constexpr Index kRoom = 1024;

  MapOperands(const Expression& expression, const MapLayout& layout, CachingAllocator& allocator)
      : expression_(expression),
        layout_(layout),
        allocator_(allocator),
        tensors_(expression.tensors()) {
    for (std::size_t i = 0; i < expression.numbers.size(); ++i)
      constants_[kMapNumbers + i] = static_cast<R>(expression.numbers[i]);
  }

  void take(const MapBlock& block) {
    const auto last = static_cast<std::size_t>(layout_.rank - 1);
    for (std::size_t k = 0; k < tensors_; ++k) {
      dispatch_floating(expression_.in[k].dtype(), [&](auto type) {
        using S = decltype(type);
        take(k, expression_.in[k].template data<S>() + block.first[k], block, block.step[k],
             layout_.stride[k][last]);
      });
    }
  }
  /// Calls the kernel on the block; the results have as many numbers.
  void run(const Kernels<K>& kernels, const MapBlock& block,
           std::span<const MapResult<K>> results) const {
    kernels.map(expression_.steps.data(), expression_.count, in_.data(), wide_.data(),
                constants_.data(), results.data(), static_cast<int>(results.size()),
                block.rows * block.length);
  }
  /// Operand k of the block: numbers of K or of R, or where both are null one number.
  const K* in(std::size_t k) const { return in_[k]; }
  const R* wide(std::size_t k) const { return wide_[k]; }
  R number(std::size_t k) const { return constants_[k]; }

 private:
  template <class S>
  void take(std::size_t k, const S* from, const MapBlock& block, Index step, Index stride) {
    in_[k] = nullptr;
    wide_[k] = nullptr;
    const bool one_row = block.rows == 1;
    if (stride == 0 && (one_row || step == 0)) {
      constants_[k] = static_cast<R>(widen(*from));
      return;
    }
    const bool dense = stride == 1 && (one_row || step == block.length);
    if constexpr (std::is_same_v<S, K>) {
      if (dense) return void(in_[k] = from);
    } else if constexpr (std::is_same_v<S, R>) {
      if (dense) return void(wide_[k] = from);
    }
    if (!room_) room_.emplace(allocator_, static_cast<Index>(tensors_) * kRoom);
    R* to = room_->data() + static_cast<Index>(k) * kRoom;
    wide_[k] = to;
    // A row that every row repeats stays from block to block.
    const Held held{from, block.rows, block.length};
    if (step == 0 && held_[k] == held) return;
    held_[k] = step == 0 ? held : Held{};
    for (Index r = 0; r < block.rows; ++r, to += block.length) {
      const S* row = from + r * step;
      if (stride == 0) {
        std::fill_n(to, block.length, static_cast<R>(widen(*row)));
      } else if (r > 0 && step == 0) {
        std::copy_n(to - block.length, block.length, to);
      } else {
        for (Index i = 0; i < block.length; ++i) to[i] = static_cast<R>(widen(row[i]));
      }
    }
  }
  struct Held {
    const void* from = nullptr;
    Index rows = 0, length = 0;
    bool operator==(const Held&) const = default;
  };

  const Expression& expression_;
  const MapLayout& layout_;
  CachingAllocator& allocator_;
  std::size_t tensors_;
  std::array<const K*, kMapTensors> in_{};
  std::array<const R*, kMapTensors> wide_{};
  std::array<R, kMapResults> constants_{};
  std::array<Held, kMapTensors> held_{};
  std::optional<Workspace<R>> room_;
};

}  // namespace starling::cpu
