#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/tensor.h"

namespace starling {

enum class Pooling : std::uint8_t;
struct Window2d;

/// Which tensors a call reads and writes: what a check of the order between streams needs to know;
/// and how much it moves and computes. An output that is added to is read and written. Where only
/// part of a tensor is touched it is a view of that part, if it can be one; where it depends on
/// numbers whether a tensor is read, it is.
struct Accesses {
  std::vector<Tensor> reads, writes;  ///< none of them empty
  /// The least that goes through the device's memory: each tensor once for each list that it is in,
  /// but for what is said below.
  double bytes = 0.0;
  double flops = 0.0;  ///< of convolutions and matrix products, two per multiply-add

  Accesses& read(std::initializer_list<Tensor> tensors) { return add(reads, tensors); }
  Accesses& write(std::initializer_list<Tensor> tensors) { return add(writes, tensors); }
  Accesses& change(std::initializer_list<Tensor> tensors) { return read(tensors).write(tensors); }
  /// Outputs that are overwritten, or with `accumulate` added to.
  Accesses& output(bool accumulate, std::initializer_list<Tensor> tensors) {
    return accumulate ? change(tensors) : write(tensors);
  }
  /// Changed beside the work: a few numbers whose bytes do not count.
  Accesses& aside(std::initializer_list<Tensor> tensors);
  /// Bytes moved once more: of what a batch needs as a whole before it can go on.
  Accesses& again(double more) { return bytes += more, *this; }
  /// Read in part: the pixels that `other` has, in the channels that both have.
  Accesses& read_part(const Tensor& x, const Tensor& other);
  /// A convolution: each number of `images` is one product with a filter, or goes into it.
  Accesses& convolves(const Tensor& images, const Tensor& weight);
  /// A pooling of `results` numbers, if it is a blur, which is a convolution of every channel
  /// alone.
  Accesses& blurs(Pooling kind, const Tensor& results, const Window2d& window);

 private:
  Accesses& add(std::vector<Tensor>& to, std::initializer_list<Tensor> tensors);
};

/// 0 for empty ones.
double bytes_of(std::initializer_list<Tensor> tensors);

}  // namespace starling
