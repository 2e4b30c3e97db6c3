#include "core/operations/accesses.h"

#include <algorithm>

#include "core/operations/convolutions.h"

namespace starling {

double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0.0;
  for (const Tensor& tensor : tensors) bytes += tensor ? static_cast<double>(tensor.bytes()) : 0.0;
  return bytes;
}

Accesses& Accesses::add(std::vector<Tensor>& to, std::initializer_list<Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor && tensor.elements() > 0) to.push_back(tensor);
  }
  bytes += bytes_of(tensors);
  return *this;
}

Accesses& Accesses::aside(std::initializer_list<Tensor> tensors) {
  return change(tensors).again(-2.0 * bytes_of(tensors));
}

Accesses& Accesses::read_part(const Tensor& x, const Tensor& other) {
  const std::int64_t channels = x.shape().back(), others = other.shape().back();
  const std::int64_t pixels = std::min(x.elements() / channels, other.elements() / others);
  const auto part = static_cast<double>(pixels * std::min(channels, others)) *
                    static_cast<double>(size_of(x.dtype()));
  return read({x}).again(part - bytes_of({x}));
}

Accesses& Accesses::convolves(const Tensor& images, const Tensor& weight) {
  if (!images || !weight) return *this;
  const std::int64_t terms = weight.elements() / weight.shape()[0];
  flops += 2.0 * static_cast<double>(images.elements()) * static_cast<double>(terms);
  return *this;
}

Accesses& Accesses::blurs(Pooling kind, const Tensor& results, const Window2d& window) {
  if (kind != Pooling::kBlur || !results) return *this;
  flops += 2.0 * static_cast<double>(results.elements()) *
           static_cast<double>(window.kernel[0] * window.kernel[1]);
  return *this;
}

}  // namespace starling
