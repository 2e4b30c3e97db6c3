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

/// Layers one after the other, named 0, 1, … as torch.nn.Sequential names them. A batch_norm or a
/// residual followed by a relu or relu6, and a linear followed by a relu, run as one operation: the
/// same numbers (in low precision ReLU6 masks its gradient by what comes before rounding), and the
/// names stay.
class Sequential : public Layer {
 public:
  explicit Sequential(std::vector<std::unique_ptr<Layer>> layers) : pending_(std::move(layers)) {}

  /// All layers, then `+ shortcut(x)`, then `active`, which is kNone, kRelu or kRelu6; a null
  /// shortcut adds x itself. A batch norm at the end takes the sum and the activation into its own
  /// operation.
  Variable forward_residual(const Variable& x, Sequential* shortcut, Activation active, Pass& pass);

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  /// One operation: a layer, with the activation that follows it.
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

  std::vector<std::unique_ptr<Layer>> pending_;  // until build()
  std::vector<Step> steps_;
};

/// layers(x) + shortcut(x); without shortcut layers, layers(x) + x. Tensors: layers.0.weight, …,
/// shortcut.0.weight, …
class Residual : public Layer {
 public:
  Residual(std::unique_ptr<Sequential> body, std::unique_ptr<Sequential> shortcut)
      : pending_body_(std::move(body)), pending_shortcut_(std::move(shortcut)) {}
  Variable forward_fused(const Variable& x, Activation active, Pass& pass);

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& x, Pass& pass) override;

 private:
  std::unique_ptr<Sequential> pending_body_, pending_shortcut_;  // until build()
  Sequential* body_ = nullptr;
  Sequential* shortcut_ = nullptr;
};

/// Reads a list of layers under `key` of a config section. In describe mode the list is declared
/// and comes back empty.
std::vector<std::unique_ptr<Layer>> read_layers(ConfigSection& section, const std::string& key,
                                                bool required, const std::string& doc);

}  // namespace starling
