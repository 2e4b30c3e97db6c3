#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "layers/builtin.h"
#include "layers/conv2d.h"
#include "layers/functions.h"
#include "layers/sequential.h"
#include "layers/window.h"

// Layers that contain layers, apart from `sequential` and `residual`.
namespace starling {

namespace {

/// The product of the outputs of several branches, or their concatenation along a dimension,
/// numbered as in PyTorch (0 is the batch). Tensors: those of branch i under `i`.
class Combined : public Layer {
 public:
  /// `dim`: dimension to concatenate along; none: multiply.
  Combined(std::vector<std::unique_ptr<Sequential>> branches, std::optional<int> dim)
      : pending_(std::move(branches)), dim_(dim) {}

 protected:
  Shape build(const Shape& input) override {
    for (auto& branch : pending_)
      branches_.push_back(&add_child(std::to_string(branches_.size()), std::move(branch), input));
    pending_.clear();
    const int rank = branches_.front()->output_shape().rank();
    if (dim_ && *dim_ < 0) *dim_ += rank + 1;
    if (dim_ && (*dim_ < 1 || *dim_ > rank)) {
      bad_shape(branches_.front()->output_shape(),
                "branches that give the dimension of `dim` (0 is the batch, -1 the last)");
    }
    Shape result = branches_.front()->output_shape();
    for (std::size_t i = 1; i < branches_.size(); ++i) join(result, branches_[i]->output_shape());
    return result;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    std::vector<Variable> values;
    for (Sequential* branch : branches_) values.push_back(branch->forward(x, pass));
    if (dim_) return functions::concat(values, *dim_, pass);
    Variable product = values.front();
    for (std::size_t i = 1; i < values.size(); ++i)
      product = functions::multiply(product, values[i], pass);
    return product;
  }

 private:
  /// Extends `result` to the output shape with one more branch.
  void join(Shape& result, const Shape& other) const {
    bool fits = result.rank() == other.rank();
    for (int d = 0; fits && d < other.rank(); ++d) {
      if (dim_ == d + 1) {
        result[d] += other[d];
      } else if (!dim_ && result[d] == 1) {
        result[d] = other[d];
      } else {
        fits = result[d] == other[d] || (!dim_ && other[d] == 1);
      }
    }
    if (!fits) {
      fail(ExitCode::kUsage, "layer", {.key = name()}, "branches give {} and {}; needed: {}",
           result.text(), other.text(),
           dim_ ? "shapes that differ along `dim` alone" : "shapes that broadcast");
    }
  }

  std::vector<std::unique_ptr<Sequential>> pending_;  // until build()
  std::vector<Sequential*> branches_;
  std::optional<int> dim_;
};

/// Scales each channel of an image by a factor computed from all channels' means (Hu et al. 2018,
/// arXiv 1709.01507) by two layers with C / r numbers in between. Tensors: torchvision's
/// SqueezeExcitation's, fc1 and fc2.
class SqueezeExcite : public Layer {
 public:
  explicit SqueezeExcite(std::int64_t reduction) : reduction_(reduction) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 3) bad_shape(input, "an image H×W×C");
    const std::int64_t few = std::max<std::int64_t>(1, input[2] / reduction_);
    const auto pixelwise = [](std::int64_t channels) {
      Conv2dOptions options;
      options.out_channels = channels;
      return std::make_unique<Conv2d>(options);
    };
    down_ = &add_child("fc1", pixelwise(few), Shape{1, 1, input[2]});
    up_ = &add_child("fc2", pixelwise(input[2]), Shape{1, 1, few});
    return input;
  }
  Variable compute(const Variable& x, Pass& pass) override {
    namespace f = functions;
    const Variable few = f::relu(down_->forward(f::mean(x, {1, 2}, true, pass), pass), pass);
    return f::multiply(x, f::sigmoid(up_->forward(few, pass), pass), pass);
  }

 private:
  std::int64_t reduction_;
  Conv2d *down_ = nullptr, *up_ = nullptr;
};

std::vector<std::unique_ptr<Sequential>> read_branches(ConfigSection& section,
                                                       const std::string& what) {
  std::vector<std::unique_ptr<Sequential>> result;
  for (ConfigSection& branch : section.sections(
           "branches", true, "lists of layers, " + what + "; an empty list is the input", true,
           R"([[], [{"type": "sigmoid"}]])"))
    result.push_back(read_layers(branch, "", nullptr, "the layers of a branch"));
  return result;
}

}  // namespace

void builtin::add_composite(LayerRegistry& registry) {
  registry.add(
      "multiply",
      [](ConfigSection& section) {
        return std::make_unique<Combined>(read_branches(section, "whose outputs are multiplied"),
                                          std::nullopt);
      },
      "the product of several branches' outputs, which broadcast; with the input as one it is a "
      "gate");
  registry.add(
      "concat",
      [](ConfigSection& section) {
        auto branches = read_branches(section, "whose outputs are concatenated");
        const std::int64_t dim = section.integer(
            "dim", -1, Range::closed(-Shape::kMaxRank, Shape::kMaxRank),
            "dimension to concatenate along; 0 would be the batch, -1 is the last: an image's "
            "channels");
        return std::make_unique<Combined>(std::move(branches), static_cast<int>(dim));
      },
      "several branches' outputs, concatenated");
  registry.add(
      "checkpoint",
      [](ConfigSection& section) {
        auto layers = read_layers(section, "layers", R"([{"type": "relu"}])",
                                  "the layers, of which the forward pass keeps the input alone");
        layers->set_block(true);
        return layers;
      },
      "layers that the backward pass computes again, to the same bits: less memory for one more "
      "forward pass of theirs");
  registry.add(
      "squeeze_excite",
      [](ConfigSection& section) {
        return std::make_unique<SqueezeExcite>(section.integer(
            "reduction", 16, kSizeRange, "channels per feature between the two products"));
      },
      "scales an image's channels by what their means say (arXiv 1709.01507); tensors are "
      "torchvision's");
}

}  // namespace starling
