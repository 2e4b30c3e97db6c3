#pragma once

#include <memory>

namespace starling {

class Backend;
class BatchMaker;
class Dataset;
struct BatchMakerSettings;
struct DatasetInfo;
struct ModelDescription;

/// How a data set's samples become a batch's named tensors, and what a model file records about
/// that. This base class stacks the samples' tensors as the data set declares them.
class Collate {
 public:
  virtual ~Collate() = default;
  /// The unit of throughput figures.
  virtual const char* unit() const { return "samples"; }
  virtual std::unique_ptr<BatchMaker> maker(const Dataset& dataset,
                                            const BatchMakerSettings& settings,
                                            Backend& backend) const;
  /// Records what other programs need to prepare inputs as training does.
  virtual void describe(const DatasetInfo&, ModelDescription&) const {}
};

}  // namespace starling
