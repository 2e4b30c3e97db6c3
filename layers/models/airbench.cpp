#include <algorithm>
#include <array>
#include <cmath>

#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/models/image_model.h"
#include "layers/sequential.h"
#include "layers/stateless.h"
#include "layers/symmetric_eigen.h"

namespace starling {

namespace {

constexpr std::int64_t kPatch = 2;          // pixels
constexpr std::int64_t kWhitenFrom = 5000;  // training images
constexpr double kWhitenEps = 5e-4;         // added to the patches' variances

/// A 2×2 convolution without padding whose filters are not trained: the eigenvectors of the
/// covariance of patches of the first training images, each divided by the square root of its
/// eigenvalue, largest first, followed by their negatives. Its outputs are thus uncorrelated with
/// equal variance (arXiv 2404.00498, section 3.2). The bias starts at 0 and is trained. Without
/// images the filters stay random.
class Whitening : public Layer {
 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3 || input[0] < kPatch || input[1] < kPatch)
      bad_shape(input, "an image of 2×2 pixels or more");
    const std::int64_t values = kPatch * kPatch * input[2], filters = 2 * values;
    const Init init = Init::uniform(1.0 / std::sqrt(static_cast<double>(values)));
    weight_ = &add_parameter("weight", {filters, kPatch, kPatch, input[2]}, init,
                             TensorLayout::kConvWeight);
    weight_->trainable = false;
    bias_ = &add_parameter("bias", {filters}, Init::constant(0.0));
    return {input[0] - kPatch + 1, input[1] - kPatch + 1, filters};
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const Shape image = x.shape().without_batch();
    if (image[0] < kPatch || image[1] < kPatch) bad_shape(image, "an image of 2×2 pixels or more");
    return functions::conv2d(x, *weight_, bias_, kWindow, pass);
  }
  std::int64_t wanted_samples() const override { return kWhitenFrom; }
  void begin_values(const FirstSamples& images) override {
    if (images.count() == 0) return;
    const std::int64_t height = images.shape[0], width = images.shape[1],
                       channels = images.shape[2], run = kPatch * channels;
    const auto n = static_cast<std::size_t>(kPatch * run);
    // A patch in the filters' memory order: two runs of adjacent numbers.
    std::vector<double> covariance(n * n, 0.0), patch(n);
    double patches = 0.0;
    for (std::int64_t i = 0; i < images.count(); ++i) {
      const double* image = images.numbers.data() + i * images.shape.elements();
      for (std::int64_t h = 0; h + kPatch <= height; ++h) {
        for (std::int64_t w = 0; w + kPatch <= width; ++w, ++patches) {
          for (std::int64_t row = 0; row < kPatch; ++row) {
            std::copy_n(image + ((h + row) * width + w) * channels, run, patch.begin() + row * run);
          }
          for (std::size_t a = 0; a < n; ++a) {
            for (std::size_t b = a; b < n; ++b) covariance[a * n + b] += patch[a] * patch[b];
          }
        }
      }
    }
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = a; b < n; ++b) covariance[b * n + a] = covariance[a * n + b] /= patches;
    }
    const SymmetricEigen eigen = symmetric_eigen(std::move(covariance), n);
    change_values(*weight_, [&](std::vector<double>& weight) {
      for (std::size_t k = 0; k < n; ++k) {
        const double scale = 1.0 / std::sqrt(eigen.values[k] + kWhitenEps);
        for (std::size_t i = 0; i < n; ++i) {
          weight[k * n + i] = scale * eigen.vectors[k * n + i];
          weight[(n + k) * n + i] = -weight[k * n + i];
        }
      }
    });
  }

 private:
  static constexpr Window2d kWindow{.kernel = {kPatch, kPatch}};
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
};

std::unique_ptr<BatchNorm> airbench_norm() {
  return std::make_unique<BatchNorm>(1e-12, 0.4, false);  // a scale of 1
}
std::unique_ptr<Conv2d> airbench_convolution(std::int64_t channels) {
  return std::make_unique<Conv2d>(Conv2dOptions{.out_channels = channels,
                                                .window = {.kernel = {3, 3}, .padding = {1, 1}},
                                                .bias = false,
                                                .dirac = true});
}

/// conv → max-pool → norm → GELU → conv → norm → GELU. With three convolutions, the last two form a
/// residual, whose sum is the input of the last GELU.
std::unique_ptr<Layer> airbench_group(std::int64_t width, bool residual) {
  auto group = std::make_unique<Sequential>(), body = std::make_unique<Sequential>();
  const auto add = [width](Sequential& to, const std::string& number) {
    to.add("conv" + number, airbench_convolution(width));
    if (number == "1")
      to.add(std::make_unique<Pool2d>(Pooling::kMax, Window2d{.kernel = {2, 2}, .stride = {2, 2}}));
    to.add("norm" + number, airbench_norm());
  };
  add(*group, "1");
  group->add(Activation::kGelu);
  if (residual) {
    add(*body, "2");
    body->add(Activation::kGelu);
    add(*body, "3");
    group->add("", std::make_unique<Residual>(std::move(body)));
  } else {
    add(*group, "2");
  }
  group->add(Activation::kGelu);
  group->set_block();
  return group;
}

/// Multiplies every value by a constant.
class Scaled : public Layer {
 public:
  explicit Scaled(double factor) : factor_(factor) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::multiply(x, factor_, pass);
  }

 private:
  double factor_;
};

struct AirbenchPlan {
  std::array<std::int64_t, 3> widths;
  bool residual = false;
  double output_scale = 1.0 / 9.0;
};

/// The network of Jordan 2024 (arXiv 2404.00498), with the tensor names of its nn.Sequential.
std::unique_ptr<Layer> airbench(const AirbenchPlan& plan, std::int64_t classes) {
  auto model = std::make_unique<ImageModel>(25);
  model->add(std::make_unique<Whitening>());
  model->add(Activation::kGelu);
  for (const std::int64_t width : plan.widths) model->add(airbench_group(width, plan.residual));
  model->add(std::make_unique<Pool2d>(Pooling::kMax, Window2d{.kernel = {3, 3}, .stride = {3, 3}}));
  model->add(flatten_layer());
  model->add(std::make_unique<Linear>(classes, false));
  model->add(std::make_unique<Scaled>(plan.output_scale));
  return model;
}

}  // namespace

void builtin::add_airbench(ModelRegistry& registry) {
  registry.add(
      "airbench",
      [](ConfigSection& section, const ModelOutputs& site) {
        const bool large = section.choice("variant", "94", {"94", "96"},
                                          "94: widths 64, 256, 256, two convolutions a group; 96: "
                                          "128, 384, 512, three, the last two a residual") == "96";
        AirbenchPlan plan{{64, 256, 256}};
        if (large) plan = {{128, 384, 512}, true};
        section.read("output_scale", plan.output_scale, Range::positive(), "factor of the logits");
        return airbench(plan, site.num_classes);
      },
      "the CIFAR-10 net of arXiv 2404.00498, whose first filters are computed from the first 5000 "
      "training images and stay");
}

}  // namespace starling
