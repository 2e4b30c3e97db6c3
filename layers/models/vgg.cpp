#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/models/image_model.h"
#include "layers/sequential.h"
#include "layers/stateless.h"

namespace starling {

namespace {

/// Average pooling to 7×7.
class SeventhsPool : public Layer {
 protected:
  Shape build(const Shape& input) override {
    if (input[0] % 7 != 0 || input[1] % 7 != 0) {
      bad_shape(input,
                "an image whose sides 7 divides (of 224×224 pixels at the model's input, 448×448, "
                "…) or the classifier \"cifar\"");
    }
    const Window2d part{.kernel = {input[0] / 7, input[1] / 7},
                        .stride = {input[0] / 7, input[1] / 7}};
    pool_ = &add_child("", std::make_unique<Pool2d>(Pooling::kAverage, part), input);
    return pool_->output_shape();
  }
  Variable compute(const Variable& x, Pass& pass) override { return pool_->forward(x, pass); }

 private:
  Pool2d* pool_ = nullptr;
};

std::unique_ptr<Linear> vgg_linear(std::int64_t features) {
  return std::make_unique<Linear>(features, Linear::Given{Init::normal(0.01)});
}

std::unique_ptr<Sequential> vgg_features(bool batch_norm) {
  constexpr std::int64_t kPool = 0;
  auto layers = std::make_unique<Sequential>();
  for (const std::int64_t channels :
       {64L, kPool, 128L, kPool, 256L, 256L, kPool, 512L, 512L, kPool, 512L, 512L, kPool}) {
    if (channels == kPool) {
      layers->add(
          std::make_unique<Pool2d>(Pooling::kMax, Window2d{.kernel = {2, 2}, .stride = {2, 2}}));
      continue;
    }
    layers->add(std::make_unique<Conv2d>(
        Conv2dOptions{.out_channels = channels,
                      .window = {.kernel = {3, 3}, .padding = {1, 1}},
                      .init = Conv2dOptions::WeightInit::kKaimingNormalFanOut,
                      .zero_bias = true}));
    if (batch_norm) layers->add(std::make_unique<BatchNorm>());
    layers->add(Activation::kRelu);
  }
  return layers;
}

/// The network of 11 layers of Simonyan and Zisserman 2014 (arXiv 1409.1556, configuration A), with
/// torchvision's names and initialisation: 3×3 convolutions with ReLU, five max poolings, then the
/// classifier.
std::unique_ptr<Layer> vgg11(bool batch_norm, bool small_classifier, double dropout,
                             std::int64_t classes) {
  auto model = std::make_unique<ImageModel>(32);
  model->add("features", vgg_features(batch_norm));
  if (small_classifier) {
    model->add(global_avg_pool());
    model->add("classifier", vgg_linear(classes));
    return model;
  }
  model->add(std::make_unique<SeventhsPool>());
  model->add(flatten_layer());
  auto classifier = std::make_unique<Sequential>();
  for (int i = 0; i < 2; ++i) {
    classifier->add(vgg_linear(4096));
    classifier->add(Activation::kRelu);
    classifier->add(dropout_layer(dropout));
  }
  classifier->add(vgg_linear(classes));
  model->add("classifier", std::move(classifier));
  return model;
}

}  // namespace

void builtin::add_vgg(ModelRegistry& registry) {
  registry.add(
      "vgg11",
      [](ConfigSection& section, const ModelOutputs& site) {
        const bool batch_norm =
            section.boolean("batch_norm", false,
                            "batch norm after every convolution, as in torchvision's vgg11_bn");
        const bool small =
            section.choice("classifier", "imagenet", {"imagenet", "cifar"},
                           "imagenet: 7×7 means and three linear layers, two of 4096 features; "
                           "cifar: the mean over the "
                           "pixels and one linear layer, for small images") == "cifar";
        const double dropout = section.number("dropout", 0.5, Range::half_open(0, 1),
                                              "probability that one of the 4096 features becomes 0 "
                                              "in training; without effect on cifar");
        return vgg11(batch_norm, small, dropout, site.num_classes);
      },
      "the VGG net of 11 layers, as torchvision builds it");
}

}  // namespace starling
