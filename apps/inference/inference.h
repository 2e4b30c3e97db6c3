#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/inference/table.h"
#include "core/shape.h"

// Trained models in programs of one's own. It needs neither MPI nor the trainer:
//
//     auto model = starling::load_model("runs/quickstart");  // or a model.safetensors
//     std::vector<float> logits = model->logits(model->read_picture("cat.jpg"));
//     std::string name = model->classes()[starling::largest(logits)[0]];
//
// A language model goes on with a text:
//
//     auto text = starling::load_model("runs/gpt")->generate("Once upon a time", {.tokens = 100});

namespace starling {

struct InferenceOptions {
  int threads = 0;                 ///< of the CPU; 0: all that this process may use
  std::string device = "cpu";      ///< cpu, or cuda: the first GPU
  std::string precision = "fp32";  ///< of the arithmetic: fp32, fp64, bf16; fp16 on GPUs
  /// Shared libraries with layers or models that the file's model needs. Never taken from the file.
  std::vector<std::string> plugins;
};

/// How a text goes on.
struct GenerateOptions {
  std::int64_t tokens = 200;  ///< new ones, 1 or more
  /// What logits are divided by; 0: the largest logit's token is taken, of equal ones the first
  double temperature = 1.0;
  std::int64_t top_k = 0;  ///< only tokens with the k largest logits are drawn; 0: all
  /// Of those only the most probable that together have at least this probability, in (0, 1]
  double top_p = 1.0;
  std::uint64_t seed = 1;  ///< of the draws
  /// The text ends before the first of these that it has; `tokens` are those up to it
  std::vector<std::string> stop = {};
  /// Goes on behind a token that ends texts; else it is the last of `tokens`, and not in the text
  bool ignore_eos = false;
};

/// What a model has made of a prompt: new tokens alone.
struct Generated {
  /// Of the tokens, with U+FFFD in place of what is no UTF-8; empty where the model says no
  /// tokenizer
  std::string text;
  std::vector<std::int32_t> tokens;
  double tokens_per_second = 0.0;  ///< the prompt's pass included
};

/// Gets the text as it is made: whole characters, one piece after another.
using EachPiece = std::function<void(std::string_view piece)>;

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

  /// Whether it is a language model, built in or a plug-in's: {T} tokens in, a logit for each token
  /// of a vocabulary behind each of them out. It has generate() in place of logits().
  virtual bool is_language_model() const = 0;
  /// How the model goes on with a text, by the tokenizer that it was trained with; the same tokens
  /// on every machine with the same logits. A text longer than the model's context loses its oldest
  /// half when it is full, and again. What the tokenizer puts before a text (bos) is put before the
  /// prompt, and a token that ends texts (eos) is the last one. Error(kUsage) where the prompt is
  /// empty, an option is not allowed, or the model is of no text.
  virtual Generated generate(std::string_view prompt, const GenerateOptions& options = {},
                             const EachPiece& each = {}) = 0;
  /// The same with tokens, as they are.
  virtual Generated generate(std::span<const std::int32_t> prompt,
                             const GenerateOptions& options = {}, const EachPiece& each = {}) = 0;
};

/// Softmax of one sample's logits.
std::vector<double> probabilities(std::span<const float> logits);
/// The `count` largest numbers' indices, largest first; of equal ones the lower index.
std::vector<std::int64_t> largest(std::span<const float> logits, std::int64_t count = 1);

/// `path`: a run's folder, its model.safetensors, or a checkpoint's folder (model_source.h).
/// Error(kUsage) names file and tensor where it is no model of Starling's, or damaged.
std::unique_ptr<InferenceModel> load_model(const std::string& path,
                                           const InferenceOptions& options = {});

}  // namespace starling
