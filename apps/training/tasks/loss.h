#pragma once

#include <memory>
#include <vector>

#include "core/autograd.h"
#include "core/config.h"
#include "core/registry.h"

namespace starling {

/// A loss function.
class Loss {
 public:
  virtual ~Loss() = default;
  /// The mean over the batch times `scale`: a scalar with a gradient, in fp32 if `outputs` is in
  /// low precision. Error(kUsage) for unsuitable targets, which is detected by tracing before
  /// training.
  virtual Variable value(const Variable& outputs, const Tensor& targets, double scale,
                         Pass& pass) const = 0;
  /// Whether targets of scores may be probabilities of classes, [rows, classes], as for mixed
  /// images.
  virtual bool takes_shares() const { return false; }
  /// Whether it is the plain cross entropy of scores and class indices, which can be fused with the
  /// final matrix product.
  virtual bool is_cross_entropy() const { return false; }
  /// Whether class indices may be functions::kIgnoreIndex: such rows are ignored once ignore() was
  /// called, before the first value().
  virtual bool takes_ignored() const { return false; }
  virtual void ignore() {}
  /// Whether classes may have weights (`loss.class_weights`). They are set, one for each output,
  /// before the first value().
  virtual bool takes_class_weights() const { return false; }
  virtual void set_class_weights(const std::vector<double>& weights) { (void)weights; }
};

/// Losses by `loss.type`; a registered function reads the keys of its type.
using LossRegistry = Registry<std::unique_ptr<Loss>, ConfigSection&>;
LossRegistry& losses();
void register_builtin_losses();

}  // namespace starling
