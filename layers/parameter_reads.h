#pragma once

#include "core/autograd.h"

namespace starling {

/// Told of the parameters that a layer is about to read, which may still be on their way.
class ParameterReads : public PassExtension {
 public:
  /// Returns when the compute stream may read it.
  virtual void before(const Parameter& parameter) = 0;
};

}  // namespace starling
