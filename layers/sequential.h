#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/operations/pointwise.h"
#include "layers/layer.h"

namespace starling {

class BatchNorm;
class Linear;
class Residual;

/// A list of layers, which most models are. A batch_norm or a residual followed by a relu or relu6,
/// and a linear followed by a relu, run as one operation with the same results (in low precision
/// ReLU6 masks its gradient by the value before rounding); tensor names are unaffected.
class Sequential : public Layer {
 public:
  Sequential() = default;
  /// Appends a layer; an empty name puts its tensors under this layer's own. Without a name
  /// argument it is named by its index, 0, 1, …, as in torch.nn.Sequential.
  void add(std::string name, std::unique_ptr<Layer> layer) {
    pending_.push_back({std::move(name), std::move(layer)});
  }
  void add(std::unique_ptr<Layer> layer) { add(std::to_string(pending_.size()), std::move(layer)); }
  void add(Activation active);

  /// All layers, then `+ shortcut(x)` (null: + x), then `active` (kNone, kRelu or kRelu6). If the
  /// last layer is a batch norm, its operation includes the sum and the activation.
  Variable forward_residual(const Variable& x, Sequential* shortcut, Activation active, Pass& pass);

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  /// One operation: a layer, and the activation after it if they are fused.
  struct Step {
    Layer* layer = nullptr;
    BatchNorm* batch_norm = nullptr;  ///< the layer, if it is one that fuses
    Residual* residual = nullptr;
    Linear* linear = nullptr;
    Activation active = Activation::kNone;
    bool takes(Activation next) const;
    Variable run(const Variable& x, Pass& pass) const;
  };
  Variable run(const Variable& x, std::size_t count, Pass& pass) const;

  struct Named {
    std::string name;
    std::unique_ptr<Layer> layer;
  };
  std::vector<Named> pending_;  // until build()
  std::vector<Step> steps_;
};

/// body(x) + shortcut(x); without a shortcut, body(x) + x.
class Residual : public Layer {
 public:
  /// `body_name`, `shortcut_name`: names of the two within this layer.
  explicit Residual(std::unique_ptr<Sequential> body, std::string body_name = {},
                    std::unique_ptr<Sequential> shortcut = {}, std::string shortcut_name = {})
      : pending_body_(std::move(body)),
        pending_shortcut_(std::move(shortcut)),
        body_name_(std::move(body_name)),
        shortcut_name_(std::move(shortcut_name)) {
    set_block();
  }
  Variable forward_fused(const Variable& x, Activation active, Pass& pass);

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  std::unique_ptr<Sequential> pending_body_, pending_shortcut_;  // until build()
  std::string body_name_, shortcut_name_;
  Sequential* body_ = nullptr;
  Sequential* shortcut_ = nullptr;
};

/// Reads a list of layers under `key`. `sample`: the value shown in the documentation of a required
/// list; null: the list is optional.
std::unique_ptr<Sequential> read_layers(ConfigSection& section, const std::string& key,
                                        const char* sample, const std::string& doc);

}  // namespace starling
