#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/operations/rows.h"

// Pooling and what else moves pixels.
namespace starling::tests {

Operation pooling(Pooling kind, const Image& x, const Window2d& s) {
  const Image y{x.n, s.output(0, x.h), s.output(1, x.w), x.c};
  const bool max = kind == Pooling::kMax;
  Operation op;
  op.name = fmt::format("{} pooling of {}, {}", max ? "max" : "average", x.shape().text(), text(s));
  op.inputs = {x.shape()};
  op.outputs = {y.shape()};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors& saved) {
    if (max && saved.empty()) saved = {Tensor(b, y.shape(), DType::kInt32)};
    b.pool2d_forward({.kind = kind, .x = in[0], .y = out[0], .index = max ? saved[0] : Tensor(), .window = s});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    std::fill(out[0].begin(), out[0].end(), max ? -std::numeric_limits<double>::infinity() : 0.0);
    for (Index n = 0; n < x.n; ++n) {
      for_taps(x, s, [&](Index p, Index q, Index, Index, Index h, Index w) {
        for (Index c = 0; c < x.c; ++c) {
          double& to = out[0][y.offset(n, p, q, c)];
          const double value = in[0][x.offset(n, h, w, c)];
          to = max ? std::max(to, value) : to + value / static_cast<double>(s.kernel[0] * s.kernel[1]);
        }
      });
    }
  };
  op.backward = [=](Backend& b, const Tensors&, const Tensors&, const Tensors& saved, const Tensor& dy, const Tensors& d) {
    b.pool2d_backward({.kind = kind, .dy = dy, .index = max ? saved[0] : Tensor(), .dx = d[0], .window = s});
  };
  return op;
}

Operation global_pooling(const Image& x) {
  Operation op;
  op.name = fmt::format("global average pooling of {}", x.shape().text());
  op.inputs = {x.shape()};
  op.outputs = {{x.n, x.c}};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) { b.global_avg_pool_forward({.x = in[0], .y = out[0]}); };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < x.n; ++n) {
      for (Index p = 0; p < x.h * x.w; ++p) {
        for (Index c = 0; c < x.c; ++c) {
          out[0][at(n * x.c + c)] += in[0][at((n * x.h * x.w + p) * x.c + c)] / static_cast<double>(x.h * x.w);
        }
      }
    }
  };
  op.backward = [](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    b.global_avg_pool_backward({.dy = dy, .dx = d[0]});
  };
  return op;
}

Operation subsample_pad(const Image& x, Index stride, Index channels, Index before) {
  const Image y{x.n, (x.h + stride - 1) / stride, (x.w + stride - 1) / stride, channels};
  Operation op;
  op.name = fmt::format("subsample_pad of {} by {} to {} channels from {}", x.shape().text(), stride, channels, before);
  op.inputs = {x.shape()};
  op.outputs = {y.shape()};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.subsample_pad_forward({.x = in[0], .y = out[0], .stride = stride, .pad_before = before});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < y.n; ++n) {
      for (Index h = 0; h < y.h; ++h) {
        for (Index w = 0; w < y.w; ++w) {
          for (Index c = 0; c < x.c; ++c) out[0][y.offset(n, h, w, before + c)] = in[0][x.offset(n, h * stride, w * stride, c)];
        }
      }
    }
  };
  op.backward = [=](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    b.subsample_pad_backward({.dy = dy, .dx = d[0], .stride = stride, .pad_before = before});
  };
  return op;
}

Operation flatten(const Image& x) {
  Operation op;
  op.name = fmt::format("flatten of {}", x.shape().text());
  op.inputs = {x.shape()};
  op.outputs = {{x.n, x.c * x.h * x.w}};
  op.forward = [](Backend& b, const Tensors& in, const Tensors& out, Tensors&) { b.flatten_channels_first({.x = in[0], .y = out[0]}); };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < x.n; ++n) {
      for (Index c = 0; c < x.c; ++c) {
        for (Index p = 0; p < x.h * x.w; ++p) out[0][at((n * x.c + c) * x.h * x.w + p)] = in[0][at((n * x.h * x.w + p) * x.c + c)];
      }
    }
  };
  op.backward = [](Backend& b, const Tensors&, const Tensors&, const Tensors&, const Tensor& dy, const Tensors& d) {
    b.flatten_channels_first({.x = dy, .y = d[0], .inverse = true});
  };
  return op;
}

Operation augmentation(const Image& x, Index crop_padding) {
  Operation op;
  op.name = fmt::format("augment_images {}, padding {}", x.shape().text(), crop_padding);
  op.inputs = {x.shape(), {x.n, 3}};
  op.outputs = {x.shape()};
  op.input_roles = {Role::kByte, Role::kIndex};
  op.bounds = {256, 2 * crop_padding + 2};
  op.fit = [crop_padding](std::vector<Numbers>& in) {
    for (std::size_t i = 0; i < in[1].size(); ++i)
      in[1][i] = std::min(in[1][i], i % 3 == 2 ? 1.0 : 2.0 * static_cast<double>(crop_padding));
  };
  constexpr std::array<double, 4> kMean{0.5, 0.4, 0.3, 0.2}, kStd{0.25, 0.5, 0.2, 0.3};
  op.forward = [=](Backend& b, const Tensors& in, const Tensors& out, Tensors&) {
    b.augment_images({.x = in[0], .params = in[1], .y = out[0], .crop_padding = crop_padding, .mean = kMean, .std = kStd});
  };
  op.reference = [=](const std::vector<Numbers>& in, std::vector<Numbers>& out) {
    for (Index n = 0; n < x.n; ++n) {
      const auto top = static_cast<Index>(in[1][at(3 * n)]), left = static_cast<Index>(in[1][at(3 * n + 1)]);
      const bool flip = in[1][at(3 * n + 2)] != 0.0;
      for (Index h = 0; h < x.h; ++h) {
        for (Index w = 0; w < x.w; ++w) {
          const Index y = h + top - crop_padding, z = (flip ? x.w - 1 - w : w) + left - crop_padding;
          const bool inside = y >= 0 && y < x.h && z >= 0 && z < x.w;
          for (Index c = 0; c < x.c; ++c) {
            const double pixel = inside ? in[0][x.offset(n, y, z, c)] : 0.0;
            out[0][x.offset(n, h, w, c)] = (pixel / 255.0 - kMean[at(c)]) / kStd[at(c)];
          }
        }
      }
    }
  };
  return op;
}

}  // namespace starling::tests
