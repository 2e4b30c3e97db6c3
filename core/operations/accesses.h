#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/tensor.h"

namespace starling {

enum class Pooling : std::uint8_t;
struct Window2d;

/// The tensors that an operation reads and writes, for checking the order between streams, and how
/// much it moves and computes. An output that is accumulated into is both. If only part of a tensor
/// is accessed it is a view of that part, if possible. Reads that depend on data are included.
struct Accesses {
  std::vector<Tensor> reads, writes;  ///< none of them empty
  /// Minimal memory traffic: each tensor once per list that it is in, with the exceptions below.
  double bytes = 0.0;
  double flops = 0.0;  ///< of convolutions and matrix products, two per multiply-add

  Accesses& read(std::initializer_list<Tensor> tensors) { return add(reads, tensors); }
  Accesses& write(std::initializer_list<Tensor> tensors) { return add(writes, tensors); }
  Accesses& change(std::initializer_list<Tensor> tensors) { return read(tensors).write(tensors); }
  /// Outputs that are overwritten or, with `accumulate`, added to.
  Accesses& output(bool accumulate, std::initializer_list<Tensor> tensors) {
    return accumulate ? change(tensors) : write(tensors);
  }
  /// Tensors that are changed, without counting their bytes: small ones, and scratch memory.
  Accesses& aside(std::initializer_list<Tensor> tensors);
  /// Additional traffic, of operations that pass over a tensor twice.
  Accesses& again(double more) { return bytes += more, *this; }
  /// Reads the pixels of `other`'s shape, in the channels that both have.
  Accesses& read_part(const Tensor& x, const Tensor& other);
  /// Adds the FLOPs of a convolution: one product with a filter per element of `images`.
  Accesses& convolves(const Tensor& images, const Tensor& weight);
  /// Adds the FLOPs of a blur pooling, which is a depthwise convolution.
  Accesses& blurs(Pooling kind, const Tensor& results, const Window2d& window);

 private:
  Accesses& add(std::vector<Tensor>& to, std::initializer_list<Tensor> tensors);
};

/// 0 for empty ones.
double bytes_of(std::initializer_list<Tensor> tensors);

}  // namespace starling
