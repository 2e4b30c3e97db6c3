#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/operations/convolutions.h"
#include "core/operations/copying.h"
#include "core/operations/map.h"
#include "core/operations/pictures.h"
#include "kernels/math/pixel_steps.h"
#include "kernels/math/resize_pictures.h"
#include "tests/operations/rows.h"

// Pooling and what else moves pixels.
namespace starling::tests {

namespace {
/// The chance of i heads in size - 1 throws of a coin.
double binomial(Index size, Index i) {
  const auto factorial = [](Index n) { return std::tgamma(static_cast<double>(n + 1)); };
  return factorial(size - 1) / (factorial(i) * factorial(size - 1 - i)) /
         std::pow(2.0, static_cast<double>(size - 1));
}
}  // namespace

Operation pooling(Pooling kind, const Image& x, const Window2d& s, Ties ties) {
  const Image y{x.n, s.output(0, x.h), s.output(1, x.w), x.c};
  const bool max = kind == Pooling::kMax, blur = kind == Pooling::kBlur;
  Operation op;
  op.name = fmt::format("{} pooling of {}, {}{}",
                        max    ? "max"
                        : blur ? "blur"
                               : "average",
                        x.shape().text(), text(s), ties == Ties::kMany ? ", ties" : "");
  op.inputs = {x.shape()};
  op.outputs = {y.shape()};
  op.exact = max;
  if (max) {
    op.outputs.push_back(y.shape());  // where they are
    op.output_roles = {Role::kActivation, Role::kIndex};
  }
  if (ties == Ties::kMany) {
    op.fit = [](std::vector<Numbers>& in) {
      for (double& v : in[0]) v = std::round(2 * v);
    };
  }
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    const auto pool = [&](const Tensor& index) {
      b.pool2d_forward({.kind = kind, .x = in[0], .y = out[0], .index = index, .window = s});
    };
    pool(max ? out[1] : Tensor());
    if (ties == Ties::kMany) pool({});  // as in inference
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    std::fill(out[0].begin(), out[0].end(), max ? -std::numeric_limits<double>::infinity() : 0.0);
    for (Index n = 0; n < x.n; ++n) {
      for_taps(x, s, [&](Index p, Index q, Index i, Index j, Index h, Index w) {
        const double share = blur ? binomial(s.kernel[0], i) * binomial(s.kernel[1], j)
                                  : 1.0 / static_cast<double>(s.kernel[0] * s.kernel[1]);
        for (Index c = 0; c < x.c; ++c) {
          double& to = out[0][y.offset(n, p, q, c)];
          const double value = in[0][x.offset(n, h, w, c)];
          if (!max) {
            to += value * share;
          } else if (value > to || std::isnan(value)) {
            to = value;
            out[1][y.offset(n, p, q, c)] = static_cast<double>(h * x.w + w);
          }
        }
      });
    }
  };
  if (ties == Ties::kMany) return op;
  op.backward = [=](Backend& b, const Tensors&, const Tensors& out, const Tensors&,
                    const Tensor& dy, const Tensors& d) {
    b.pool2d_backward(
        {.kind = kind, .dy = dy, .index = max ? out[1] : Tensor(), .dx = d[0], .window = s});
  };
  return op;
}

Operation global_pooling(const Image& x) {
  Operation op;
  op.name = fmt::format("global average pooling of {}", x.shape().text());
  op.inputs = {x.shape()};
  op.outputs = {{x.n, x.c}};
  op.loose = {1};
  if (count(x.shape()) == 1) op.loose = {0, 1};  // one number broadcasts
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    Reduce mean(in[0], out[0].reshaped({x.n, 1, 1, x.c}));
    mean.factor = 1.0 / static_cast<double>(x.h * x.w);
    b.reduce(mean);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < x.n; ++n) {
      for (Index p = 0; p < x.h * x.w; ++p) {
        for (Index c = 0; c < x.c; ++c) {
          out[0][at(n * x.c + c)] +=
              in[0][at((n * x.h * x.w + p) * x.c + c)] / static_cast<double>(x.h * x.w);
        }
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy,
                    const Tensors& d) {
    b.map({{{MapFunction::kMultiply, 0, kMapNumbers}},
           {dy.reshaped({x.n, 1, 1, x.c})},
           d[0],
           {1.0 / static_cast<double>(x.h * x.w)}});
  };
  return op;
}

Operation strided_copy(const std::string& what, const Shape& x, const Shape& y,
                       const StridedCopy& there, const StridedCopy& back) {
  Operation op;
  op.exact = true;
  op.loose = {0};  // x has no shape of its own
  op.name = fmt::format("strided_copy: {} of {} to {}", what, x.text(), y.text());
  op.inputs = {x};
  op.outputs = {y};
  const auto copy = [](Backend& b, StridedCopy args, const Tensor& from, const Tensor& to) {
    args.x = from, args.y = to;
    b.strided_copy(args);
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    copy(b, there, in[0], out[0]);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    std::fill(out[0].begin(), out[0].end(), 0.0);
    std::array<Index, Shape::kMaxRank> k{};
    const auto each = [&](auto&& self, int d, Index to, Index from) -> void {
      if (d == there.rank) {
        out[0][at(to)] = in[0][at(from)];
        return;
      }
      const StridedCopy::Dimension& of = there.dimensions[at(d)];
      for (k[at(d)] = 0; k[at(d)] < of.count; ++k[at(d)]) {
        self(self, d + 1, to * of.size + of.begin + k[at(d)] * of.step,
             from + k[at(d)] * of.stride);
      }
    };
    each(each, 0, 0, there.first);
  };
  if (back.rank > 0) {
    op.backward = [=](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy,
                      const Tensors& d) { copy(b, back, dy, d[0]); };
  }
  return op;
}

Operation subsample_pad(const Image& x, Index stride, Index channels, Index before) {
  const Image y{x.n, (x.h + stride - 1) / stride, (x.w + stride - 1) / stride, channels};
  using Dimension = StridedCopy::Dimension;
  const StridedCopy there{
      .dimensions = {Dimension::whole(x.n, x.h * x.w * x.c),
                     Dimension::whole(y.h, stride * x.w * x.c), Dimension::whole(y.w, stride * x.c),
                     Dimension{.size = y.c, .begin = before, .count = x.c, .stride = 1}},
      .rank = 4};
  const StridedCopy back{
      .dimensions = {Dimension::whole(x.n, y.h * y.w * y.c),
                     Dimension{.size = x.h, .count = y.h, .step = stride, .stride = y.w * y.c},
                     Dimension{.size = x.w, .count = y.w, .step = stride, .stride = y.c},
                     Dimension::whole(x.c, 1)},
      .rank = 4,
      .first = before};
  return strided_copy("option A", x.shape(), y.shape(), there, back);
}

Operation flatten(const Image& x) {
  using Dimension = StridedCopy::Dimension;
  const Index pixels = x.h * x.w;
  const auto turned = [&](Index rows, Index columns) {
    return StridedCopy{
        .dimensions = {Dimension::whole(x.n, rows * columns), Dimension::whole(columns, 1),
                       Dimension::whole(rows, columns)},
        .rank = 3};
  };
  return strided_copy("flatten", x.shape(), {x.n, x.c * pixels}, turned(pixels, x.c),
                      turned(x.c, pixels));
}

Operation turned_around(Index rows, Index columns) {
  const auto whole = &StridedCopy::Dimension::whole;
  const StridedCopy copy{.dimensions = {whole(rows, -columns), whole(columns, -1)},
                         .rank = 2,
                         .first = rows * columns - 1};
  return strided_copy("turning around", {rows, columns}, {rows, columns}, copy, copy);
}

Operation repeated(Index rows, Index times) {
  const auto whole = &StridedCopy::Dimension::whole;
  return strided_copy("repetition", {rows}, {rows, times},
                      {.dimensions = {whole(rows, 1), whole(times, 0)}, .rank = 2}, {});
}

Operation put_beside(Index rows, Index columns, Index begin, Index count,
                     std::optional<double> others) {
  const auto whole = &StridedCopy::Dimension::whole;
  const StridedCopy::Dimension part{.size = columns, .begin = begin, .count = count, .stride = 1};
  const StridedCopy copy{.dimensions = {whole(rows, count), part}, .rank = 2, .others = others};
  Operation op =
      strided_copy(others ? "padding" : "a part", {rows, count}, {rows, columns}, copy, {});
  // What stays is what a fill has left.
  const double rest = others.value_or(1.5);
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    if (!others) b.fill(out[0], rest);
    StridedCopy args = copy;
    args.x = in[0], args.y = out[0];
    b.strided_copy(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index i = 0; i < rows * columns; ++i) {
      const Index place = i % columns - begin;
      const bool inside = place >= 0 && place < count;
      out[0][at(i)] = inside ? in[0][at(i / columns * count + place)] : rest;
    }
  };
  return op;
}

Operation augmentation(const Image& x, Index crop_padding, Index boxes, bool mix) {
  Operation op;
  op.exact = true;
  op.name =
      fmt::format("augment_images {}, padding {}{}{}", x.shape().text(), crop_padding,
                  boxes > 0 ? fmt::format(", {} erased boxes", boxes) : "", mix ? ", mixed" : "");
  op.inputs = {x.shape(), {x.n, 3}};
  op.outputs = {x.shape()};
  op.input_roles = {Role::kByte, Role::kIndex};
  op.bounds = {256, 2 * crop_padding + 2};
  if (boxes > 0) op.inputs.push_back({x.n, boxes, 4});
  if (mix) op.inputs.push_back({5});
  op.loose = {op.inputs.size()};
  op.input_roles.resize(op.inputs.size(), Role::kIndex);
  op.bounds.resize(op.inputs.size(), 2);
  op.fit = [=](std::vector<Numbers>& in) {
    for (std::size_t i = 0; i < in[1].size(); ++i)
      in[1][i] = std::min(in[1][i], i % 3 == 2 ? 1.0 : 2.0 * static_cast<double>(crop_padding));
    // Rectangles of every size, some of them empty or the whole image.
    const auto rectangle = [&](Numbers& numbers, std::size_t first, std::size_t number) {
      const auto tall = static_cast<double>(x.h), wide = static_cast<double>(x.w),
                 k = static_cast<double>(number % 7);
      numbers[first] = std::floor(tall * k / 14.0);
      numbers[first + 1] = std::floor(wide * k / 21.0);
      numbers[first + 2] = std::floor(tall * (1.0 - k / 8.0));
      numbers[first + 3] = std::floor(wide * (1.0 - k / 9.0));
    };
    if (boxes > 0) {
      for (std::size_t i = 0; i < in[2].size(); i += 4) rectangle(in[2], i, i / 4 + 1);
    }
    if (mix) {
      in.back()[0] = 0.625 * (1 << 24);
      rectangle(in.back(), 1, 4);
    }
  };
  constexpr std::array<double, 4> kMean{0.5, 0.4, 0.3, 0.2}, kStd{0.25, 0.5, 0.2, 0.3},
      kValues{0.0, -1.5, 0.25, 2.0};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    AugmentImages args{.x = in[0],
                       .params = in[1],
                       .y = out[0],
                       .crop_padding = crop_padding,
                       .mean = kMean,
                       .std = kStd,
                       .values = kValues};
    if (boxes > 0) args.boxes = in[2];
    if (mix) args.mix = in.back();
    b.augment_images(args);
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    const auto inside_of = [](const Numbers& numbers, Index first, Index h, Index w) {
      const auto y = static_cast<double>(h), z = static_cast<double>(w);
      return y >= numbers[at(first)] && z >= numbers[at(first + 1)] && y < numbers[at(first + 2)] &&
             z < numbers[at(first + 3)];
    };
    Numbers plain(out[0].size());
    for (Index n = 0; n < x.n; ++n) {
      const auto top = static_cast<Index>(in[1][at(3 * n)]),
                 left = static_cast<Index>(in[1][at(3 * n + 1)]);
      const bool flip = in[1][at(3 * n + 2)] != 0.0;
      for (Index h = 0; h < x.h; ++h) {
        for (Index w = 0; w < x.w; ++w) {
          const Index y = h + top - crop_padding,
                      z = (flip ? x.w - 1 - w : w) + left - crop_padding;
          const bool inside = y >= 0 && y < x.h && z >= 0 && z < x.w;
          for (Index c = 0; c < x.c; ++c) {
            const double pixel = inside ? in[0][x.offset(n, y, z, c)] : 0.0;
            double& number = plain[x.offset(n, h, w, c)];
            number = (pixel / 255.0 - kMean[at(c)]) / kStd[at(c)];
            for (Index k = n * boxes; k < (n + 1) * boxes; ++k) {
              if (inside_of(in[2], 4 * k, h, w)) number = kValues[at(k - n * boxes)];
            }
          }
        }
      }
    }
    for (Index n = 0; n < x.n; ++n) {
      for (Index h = 0; h < x.h; ++h) {
        for (Index w = 0; w < x.w; ++w) {
          const double own = !mix                            ? 1.0
                             : inside_of(in.back(), 1, h, w) ? 0.0
                                                             : in.back()[0] / (1 << 24);
          for (Index c = 0; c < x.c; ++c) {
            out[0][x.offset(n, h, w, c)] =
                own * plain[x.offset(n, h, w, c)] +
                (1.0 - own) * plain[x.offset((n + x.n - 1) % x.n, h, w, c)];
          }
        }
      }
    }
  };
  return op;
}

Operation changed_pixels(const Image& x, Index steps) {
  // Steps whose plain form is a line; apps/augment compares all of them with the originals, and
  // cuda/image a device's with the CPU's.
  const auto number = [](Index image, Index step, Index which) {
    const PixelChange changes[] = {PixelChange::kWindow, PixelChange::kScale, PixelChange::kInvert,
                                   PixelChange::kTransform};
    const auto change = changes[(image + step) % 4];
    const auto i = static_cast<std::int32_t>(image);
    switch (change) {
      case PixelChange::kWindow:
        return std::array<std::int32_t, 9>{1, 1 - i, i, i % 2, 0}[at(which)];
      case PixelChange::kScale: return std::array<std::int32_t, 9>{4, 20000 - 9000 * i}[at(which)];
      case PixelChange::kInvert:
        return std::array<std::int32_t, 9>{9, 100 + 20 * i, 0xF0}[at(which)];
      // rows become columns
      default: return std::array<std::int32_t, 9>{2, 0, 1 << 16, 1 << 16, 0, 0, 0, 0, 0}[at(which)];
    }
  };
  Operation op;
  op.exact = true;
  op.name = fmt::format("change_pixels {}, {} steps", x.shape().text(), steps);
  op.inputs = {x.shape(), {x.n, steps, kPixelStepNumbers}};
  op.outputs = {x.shape()};
  op.input_roles = {Role::kByte, Role::kIndex};
  op.output_roles = {Role::kByte};
  op.bounds = {256, 2};
  op.fit = [=](std::vector<Numbers>& in) {
    for (Index n = 0; n < x.n; ++n) {
      for (Index k = 0; k < steps * kPixelStepNumbers; ++k) {
        in[1][at(n * steps * kPixelStepNumbers + k)] =
            number(n, k / kPixelStepNumbers, k % kPixelStepNumbers);
      }
    }
  };
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    if (saved.empty()) saved = {Tensor(b, x.shape(), DType::kUInt8)};
    b.change_pixels({.x = in[0], .steps = in[1], .scratch = saved[0], .y = out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    Numbers now = in[0];
    for (Index n = 0; n < x.n; ++n) {
      for (Index k = 0; k < steps; ++k) {
        const auto step = [&](Index which) { return number(n, k, which); };
        const Numbers before = now;
        for (Index h = 0; h < x.h; ++h) {
          for (Index w = 0; w < x.w; ++w) {
            Index y = h, z = w;
            if (step(0) == 1) y += step(1), z = (step(3) != 0 ? x.w - 1 - w : w) + step(2);
            if (step(0) == 2) y = w, z = h;
            const bool inside = y >= 0 && y < x.h && z >= 0 && z < x.w;
            for (Index c = 0; c < x.c; ++c) {
              double v = inside ? before[x.offset(n, y, z, c)] : 0.0;
              if (step(0) == 4) v = std::clamp(std::floor(v * step(1) / 16384.0), 0.0, 255.0);
              if (step(0) == 9)
                v = static_cast<double>(static_cast<int>(v >= step(1) ? 255.0 - v : v) & step(2));
              now[x.offset(n, h, w, c)] = v;
            }
          }
        }
      }
    }
    out[0] = now;
  };
  return op;
}

Operation resized_pictures(const Image& y) {
  // Pixels of twice the image's size, of which the nearest is taken; turned each time otherwise.
  // Other filters are compared with the loader's own code, and that with Pillow (apps/pictures,
  // cuda/loader).
  const auto turn_of = [](Index image) { return static_cast<std::int32_t>(image % 8); };
  const auto part_of = [=](Index image) {
    const bool transposed = (turn_of(image) & CutPicture::kTransposed) != 0;
    CutPicture cut = CutPicture::whole(2 * (transposed ? y.w : y.h), 2 * (transposed ? y.h : y.w));
    cut.place = image * 12 * y.h * y.w;
    cut.interpolation = static_cast<std::int32_t>(Interpolation::kNearest);
    cut.turn = turn_of(image);
    return cut;
  };
  Operation op;
  op.exact = true;
  op.loose = {0};
  op.name = fmt::format("resize_pictures to {}", y.shape().text());
  op.inputs = {{y.n * 12 * y.h * y.w}, {y.n, kCutPictureNumbers}};
  op.outputs = {y.shape()};
  op.input_roles = {Role::kByte, Role::kIndex};
  op.output_roles = {Role::kByte};
  op.bounds = {256, 2};
  op.fit = [=](std::vector<Numbers>& in) {
    for (Index n = 0; n < y.n; ++n) {
      const CutPicture cut = part_of(n);
      std::array<std::int32_t, kCutPictureNumbers> numbers{};
      std::memcpy(numbers.data(), &cut, sizeof cut);
      std::copy(numbers.begin(), numbers.end(), in[1].begin() + n * kCutPictureNumbers);
    }
  };
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.resize_pictures({.x = in[0], .parts = in[1], .y = out[0]});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < y.n; ++n) {
      const CutPicture cut = part_of(n);
      for (Index h = 0; h < y.h; ++h) {
        for (Index w = 0; w < y.w; ++w) {
          const Index seen_h = (cut.turn & CutPicture::kMirrorY) != 0 ? y.h - 1 - h : h;
          const Index seen_w = (cut.turn & CutPicture::kMirrorX) != 0 ? y.w - 1 - w : w;
          const bool transposed = (cut.turn & CutPicture::kTransposed) != 0;
          const Index row = 2 * (transposed ? seen_w : seen_h) + 1,
                      column = 2 * (transposed ? seen_h : seen_w) + 1;
          for (Index c = 0; c < 3; ++c)
            out[0][y.offset(n, h, w, c)] =
                in[0][at(cut.place + (row * cut.width + column) * 3 + c)];
        }
      }
    }
  };
  return op;
}

}  // namespace starling::tests
