#include "core/operations.h"

#include <limits>

#include "core/error.h"

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

Accesses& Accesses::multiplies(const Tensor& a, const Tensor& c) {
  if (!a || !c) return *this;
  const double terms = static_cast<double>(a.elements()) /
                       static_cast<double>(std::max<std::int64_t>(1, c.shape()[0]));
  flops += 2.0 * terms * static_cast<double>(c.elements());
  return *this;
}

Accesses& Accesses::blurs(Pooling kind, const Tensor& results, const Window2d& window) {
  if (kind != Pooling::kBlur || !results) return *this;
  flops += 2.0 * static_cast<double>(results.elements()) *
           static_cast<double>(window.kernel[0] * window.kernel[1]);
  return *this;
}

std::vector<double> blur_filter(const Window2d& window) {
  const auto [rows, columns] = window.kernel;
  require(rows >= 1 && columns >= 1 && rows <= kLongestBlur && columns <= kLongestBlur &&
              window.dilation == std::array<std::int64_t, 2>{1, 1},
          "pool2d",
          "a blur of {}×{} pixels with a dilation of {}×{}; at most {} a side without one", rows,
          columns, window.dilation[0], window.dilation[1], kLongestBlur);
  // A row of Pascal's triangle over 2^(size - 1).
  const auto line = [](std::int64_t size) {
    std::vector<double> shares{1.0};
    for (std::int64_t i = 1; i < size; ++i)
      shares.push_back(shares.back() * static_cast<double>(size - i) / static_cast<double>(i));
    for (double& share : shares) share /= static_cast<double>(std::int64_t{1} << (size - 1));
    return shares;
  };
  std::vector<double> filter;
  for (const double down : line(rows)) {
    for (const double across : line(columns)) filter.push_back(down * across);
  }
  return filter;
}

void check_augment_images(const AugmentImages& args) {
  require(args.x && args.y && args.x.dtype() == DType::kUInt8 && args.x.shape().rank() == 4 &&
              args.x.shape() == args.y.shape() && args.x.shape()[3] >= 1 && args.x.shape()[3] <= 4,
          "augment_images", "x must be bytes of B×H×W×C with at most 4 channels, y of its shape");
  if (args.boxes) {
    const Shape& shape = args.boxes.shape();
    require(args.boxes.dtype() == DType::kInt32 && shape.rank() == 3 &&
                shape[0] == args.x.shape()[0] && shape[2] == 4 &&
                shape[1] <= static_cast<std::int64_t>(args.values.size()),
            "augment_images", "boxes are {} of {}; needed: int32 [{}, at most {}, 4]", shape.text(),
            name_of(args.boxes.dtype()), args.x.shape()[0], args.values.size());
  }
  if (args.mix) {
    require(args.mix.dtype() == DType::kInt32 && args.mix.elements() == 5, "augment_images",
            "mix is {} of {}; needed: int32 [5]", args.mix.shape().text(),
            name_of(args.mix.dtype()));
  }
}

void check_resize_pictures(const ResizePictures& args) {
  require(args.x && args.y && args.x.dtype() == DType::kUInt8 && args.y.dtype() == DType::kUInt8 &&
              args.y.shape().rank() == 4 && args.y.shape()[3] == 3,
          "resize_pictures", "x must be bytes, y bytes of B×H×W×3");
  const Shape shape = args.parts ? args.parts.shape() : Shape{};
  require(shape.rank() == 2 && args.parts.dtype() == DType::kInt32 &&
              shape[0] == args.y.shape()[0] && shape[1] == kCutPictureNumbers,
          "resize_pictures", "parts are {}; needed: int32 [{}, {}]", shape.text(),
          args.y.shape()[0], kCutPictureNumbers);
}

void check_change_pixels(const ChangePixels& args) {
  const auto bytes = [&](const Tensor& tensor) {
    return tensor && tensor.dtype() == DType::kUInt8 && tensor.shape() == args.x.shape();
  };
  require(bytes(args.x) && bytes(args.scratch) && bytes(args.y) && args.x.shape().rank() == 4 &&
              args.x.shape()[3] >= 1 && args.x.shape()[3] <= 4 &&
              args.x.shape()[1] * args.x.shape()[2] <= std::numeric_limits<std::int32_t>::max(),
          "change_pixels",
          "x, scratch and y must be bytes of one shape, B×H×W×C with at most 4 channels");
  const Shape shape = args.steps ? args.steps.shape() : Shape{};
  require(shape.rank() == 3 && args.steps.dtype() == DType::kInt32 &&
              shape[0] == args.x.shape()[0] && shape[2] == kPixelStepNumbers,
          "change_pixels", "steps are {}; needed: int32 [{}, some, {}]", shape.text(),
          args.x.shape()[0], kPixelStepNumbers);
}

std::int64_t message_bytes(Code code, DType dtype, std::int64_t elements, std::int64_t block) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t blocks = elements == 0 ? 0 : block == 0 ? 1 : (elements + block - 1) / block;
  switch (code) {
    case Code::kNone: return elements * size;
    case Code::kBf16: return elements * 2;
    case Code::kInt8: return elements + blocks * 4;
    case Code::kMinMax8: return elements + blocks * 8;
  }
  return 0;
}

void check_message(const char* operation, const Tensor& message, DType dtype, std::int64_t elements,
                   Code code, std::int64_t block) {
  require(dtype == DType::kFloat32 || dtype == DType::kFloat64, operation,
          "numbers must be fp32 or fp64");
  require(elements % 4 == 0 && block >= 0 && block % 32 == 0, operation,
          "{} elements in blocks of {}; elements must be a multiple of 4, and blocks of 32",
          elements, block);
  const std::int64_t bytes = message_bytes(code, dtype, elements, block);
  require(message && message.dtype() == DType::kUInt8 && message.elements() == bytes, operation,
          "a message of {} bytes for {} elements; needed: {}", message ? message.elements() : 0,
          elements, bytes);
}

void check_encode(const Encode& args) {
  require(static_cast<bool>(args.x), "encode", "numbers are missing");
  check_message("encode", args.message, args.x.dtype(), args.x.elements(), args.code, args.block);
}

void check_decode(const Decode& args) {
  require(static_cast<bool>(args.out), "decode", "numbers are missing");
  require(args.terms >= 1 && args.terms <= 8, "decode", "{} messages; at most 8", args.terms);
  for (int k = 0; k < args.terms; ++k) {
    check_message("decode", args.messages[static_cast<std::size_t>(k)], args.out.dtype(),
                  args.out.elements(), args.code, args.block);
  }
}

}  // namespace starling
