#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "layers/batch_norm.h"
#include "layers/builtin.h"
#include "layers/chain.h"
#include "layers/conv2d.h"
#include "layers/linear.h"
#include "layers/sequential.h"
#include "layers/stateless.h"

namespace starling {

namespace {

/// The network of 11 layers of Simonyan and Zisserman 2014 (arXiv 1409.1556, configuration A), with
/// torchvision's names and initialisation: 3×3 convolutions with ReLU, five max poolings, then the
/// classifier.
class Vgg : public Chain {
 public:
  Vgg(bool batch_norm, bool small_classifier, double dropout, std::int64_t classes)
      : batch_norm_(batch_norm),
        small_classifier_(small_classifier),
        dropout_(dropout),
        classes_(classes) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    if (input[0] < 32 || input[1] < 32) bad_shape(input, "an image of 32×32 pixels or more");
    const Shape shape = add_chain("features", std::make_unique<Sequential>(features()), input);
    const Shape pooled = add_chain("", pooling(input, shape), shape);
    if (small_classifier_) return add_chain("classifier", linear(classes_), pooled);
    const Shape flat = add_chain("", std::make_unique<Flatten>(), pooled);
    std::vector<std::unique_ptr<Layer>> layers;
    for (int i = 0; i < 2; ++i) {
      layers.push_back(linear(4096));
      layers.push_back(std::make_unique<ActivationLayer>(Activation::kRelu));
      layers.push_back(std::make_unique<DropoutLayer>(dropout_));
    }
    layers.push_back(linear(classes_));
    return add_chain("classifier", std::make_unique<Sequential>(std::move(layers)), flat);
  }

 private:
  std::vector<std::unique_ptr<Layer>> features() const {
    constexpr std::int64_t kPool = 0;
    std::vector<std::unique_ptr<Layer>> layers;
    for (const std::int64_t channels :
         {64L, kPool, 128L, kPool, 256L, 256L, kPool, 512L, 512L, kPool, 512L, 512L, kPool}) {
      if (channels == kPool) {
        layers.push_back(
            std::make_unique<Pool2d>(Pooling::kMax, Window2d{.kernel = {2, 2}, .stride = {2, 2}}));
        continue;
      }
      layers.push_back(std::make_unique<Conv2d>(
          Conv2dOptions{.out_channels = channels,
                        .window = {.kernel = {3, 3}, .padding = {1, 1}},
                        .init = Conv2dOptions::WeightInit::kKaimingNormalFanOut,
                        .zero_bias = true}));
      if (batch_norm_) layers.push_back(std::make_unique<BatchNorm>());
      layers.push_back(std::make_unique<ActivationLayer>(Activation::kRelu));
    }
    return layers;
  }
  /// The mean of all pixels, or of 7×7 equal parts of them.
  std::unique_ptr<Layer> pooling(const Shape& input, const Shape& shape) const {
    if (small_classifier_) return std::make_unique<GlobalAvgPool>();
    if (shape[0] % 7 != 0 || shape[1] % 7 != 0) {
      bad_shape(input,
                "an image whose 32nd part divides into 7×7 (224×224 pixels, 448×448, …) or the "
                "classifier \"cifar\"");
    }
    const std::int64_t rows = shape[0] / 7, columns = shape[1] / 7;
    return std::make_unique<Pool2d>(Pooling::kAverage,
                                    Window2d{.kernel = {rows, columns}, .stride = {rows, columns}});
  }
  static std::unique_ptr<Linear> linear(std::int64_t features) {
    return std::make_unique<Linear>(features, true, Linear::WeightInit::kSmallNormal, true);
  }

  bool batch_norm_, small_classifier_;
  double dropout_;
  std::int64_t classes_;
};

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
        return std::make_unique<Vgg>(batch_norm, small, dropout, site.num_classes);
      },
      "the VGG net of 11 layers, as torchvision builds it");
}

}  // namespace starling
