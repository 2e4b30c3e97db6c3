#pragma once

#include <memory>
#include <vector>

#include "core/autograd.h"
#include "core/config.h"
#include "core/registry.h"

namespace starling {

/// A loss: the scalar that training makes small.
class Loss {
 public:
  virtual ~Loss() = default;
  /// The mean over the batch times `scale`: a scalar with a gradient, in fp32 where `outputs` is in
  /// low precision. Targets that do not suit are Error(kUsage); a trace on shapes finds them before
  /// training.
  virtual Variable value(const Variable& outputs, const Tensor& targets, double scale,
                         Pass& pass) const = 0;
  /// Whether the targets of rows of scores may be a share of each class, [rows, classes], as of
  /// images that are mixed.
  virtual bool takes_shares() const { return false; }
  /// Whether it is the plain cross entropy of scores and classes, so that the product which makes
  /// scores of hidden states can be part of it.
  virtual bool is_cross_entropy() const { return false; }
  /// Whether classes may be functions::kIgnoreIndex: their rows count for nothing once ignore() has
  /// been called, before the first value().
  virtual bool takes_ignored() const { return false; }
  virtual void ignore() {}
  /// Whether classes may have weights (`loss.class_weights`), and these, one for each output:
  /// before the first value().
  virtual bool takes_class_weights() const { return false; }
  virtual void set_class_weights(const std::vector<double>& weights) { (void)weights; }
};

/// Losses by `loss.type`; a maker reads the keys of its type.
using LossRegistry = Registry<std::unique_ptr<Loss>, ConfigSection&>;
LossRegistry& losses();
void register_builtin_losses();

}  // namespace starling
