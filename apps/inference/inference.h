#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/inference/table.h"
#include "core/shape.h"

// Trained models in programs of one's own. It needs neither MPI nor the trainer:
//
//     auto model = starling::load_model("runs/quickstart");  // or a model.safetensors
//     std::vector<float> logits = model->logits(model->read_picture("cat.jpg"));
//     std::string name = model->classes()[starling::largest(logits)[0]];

namespace starling {

struct InferenceOptions {
  int threads = 0;                 ///< of the CPU; 0: all that this process may use
  std::string device = "cpu";      ///< cpu, or cuda: the first GPU
  std::string precision = "fp32";  ///< of the arithmetic: fp32, fp64, bf16; fp16 on GPUs
  /// Shared libraries with layers or models that the file's model needs. Never taken from the file.
  std::vector<std::string> plugins;
};

/// A model as it was trained, with its parameters: batches in, logits out. One thread at a time
/// uses it.
class InferenceModel {
 public:
  virtual ~InferenceModel() = default;

  /// One sample: {height, width, channels} for images.
  virtual const Shape& input() const = 0;
  /// Shape of a sample's logits: {number of classes} for classifiers.
  virtual const Shape& output() const = 0;
  /// The classes' names, one for each output: numbers where the data set had no names, and for
  /// outputs beyond its classes.
  virtual const std::vector<std::string>& classes() const = 0;
  virtual std::int64_t parameter_count() const = 0;
  /// The resolved config of the run that trained it, JSON.
  virtual const std::string& config() const = 0;

  /// Logits of a batch, one sample after another. `batch` holds whole samples, row-major: images as
  /// height × width × channels, normalised as in training. Error(kUsage) where it does not.
  virtual std::vector<float> logits(std::span<const float> batch) = 0;
  /// Logits of images as bytes (0 to 255), which are normalised as in training.
  virtual std::vector<float> logits(std::span<const std::uint8_t> images) = 0;
  /// Scores of images as bytes: the mean over the views that the run's tests show of an image
  /// (evaluate.tta); without those the same as logits().
  virtual std::vector<float> scores(std::span<const std::uint8_t> images) = 0;
  /// Probabilities that one sample's logits stand for, by the loss that the model was trained with:
  /// softmax, or the sigmoid of each after bce_with_logits.
  virtual std::vector<double> probabilities(std::span<const float> logits) const = 0;
  /// A picture file, JPEG or PNG, as images take it: resized and cut as test images were in
  /// training. Error(kUsage) names the file.
  virtual std::vector<std::uint8_t> read_picture(const std::string& file) const = 0;
  /// The columns that an input is made of; null: it is no row of a table.
  virtual const TableColumns* columns() const = 0;
  /// A CSV file's rows, for logits(): columns by name, normalised as in training. Error(kUsage)
  /// names file, row and column.
  virtual TableRows read_table(const std::string& file) const = 0;
};

/// Softmax of one sample's logits.
std::vector<double> probabilities(std::span<const float> logits);
/// The `count` largest numbers' indices, largest first; of equal ones the lower index.
std::vector<std::int64_t> largest(std::span<const float> logits, std::int64_t count = 1);

/// `path`: a run's folder, or its model.safetensors. Error(kUsage) names file and tensor where it
/// is no model of Starling's, or damaged.
std::unique_ptr<InferenceModel> load_model(const std::string& path,
                                           const InferenceOptions& options = {});

}  // namespace starling
