#pragma once

#include <memory>

namespace starling {

class Backend;
class BatchMaker;
class Dataset;
struct BatchMakerSettings;
struct DatasetInfo;
struct ModelDescription;

/// How a data set's samples become a batch's named tensors, and what of it a model file keeps. This
/// one leaves the samples' tensors one after another, each as the data set declares it.
class Collate {
 public:
  virtual ~Collate() = default;
  /// Samples, in rates.
  virtual const char* unit() const { return "samples"; }
  virtual std::unique_ptr<BatchMaker> maker(const Dataset& dataset,
                                            const BatchMakerSettings& settings,
                                            Backend& backend) const;
  /// What other programs need to make inputs as training does.
  virtual void describe(const DatasetInfo&, ModelDescription&) const {}
};

}  // namespace starling
