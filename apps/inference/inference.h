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

// An API for using trained models in other programs, without MPI and the trainer:
//
//     auto model = starling::load_model("runs/quickstart");  // or a model.safetensors
//     std::vector<float> logits = model->logits(model->read_picture("cat.jpg"));
//     std::string name = model->classes()[starling::largest(logits)[0]];
//
// A language model continues a text:
//
//     auto text = starling::load_model("runs/gpt")->generate("Once upon a time", {.tokens = 100});

namespace starling {

struct ChatMessage;

struct InferenceOptions {
  int threads = 0;                 ///< CPU threads; 0: all cores that this process may use
  std::string device = "cpu";      ///< cpu, or cuda: the first GPU
  std::string precision = "fp32";  ///< of the arithmetic: fp32, fp64, bf16; fp16 on GPUs
  /// Plug-ins (shared libraries) with the model's layers. Never taken from the file.
  std::vector<std::string> plugins;
};

/// Options for generating text.
struct GenerateOptions {
  std::int64_t tokens = 200;  ///< number of new tokens, at least 1
  /// Divides logits; 0: greedy, taking the first of equal logits
  double temperature = 1.0;
  std::int64_t top_k = 0;  ///< draw only from the k largest logits; 0: all
  /// Of those, draw from the most probable ones with at least this total probability, in (0, 1]
  double top_p = 1.0;
  std::uint64_t seed = 1;  ///< of random draws
  /// End the text before the first occurrence of any of these
  std::vector<std::string> stop = {};
  /// Continue after an end-of-text token; otherwise it is the last of `tokens`, and not in the text
  bool ignore_eos = false;
};

/// The continuation of a prompt, without the prompt.
struct Generated {
  /// The decoded tokens, with U+FFFD for invalid UTF-8; empty if the model has no tokenizer
  std::string text;
  std::vector<std::int32_t> tokens;
  double tokens_per_second = 0.0;  ///< including the prompt's pass
};

/// How likely a text is after another.
struct TextScore {
  double logprob = 0.0;     ///< natural logarithm of its probability
  std::int64_t tokens = 0;  ///< its
  bool greedy = true;       ///< each is the likeliest at its place; of equal ones the first
};
/// How likely a whole text is.
struct TextPerplexity {
  double loss = 0.0, perplexity = 0.0;  ///< mean of -log p of a token; e to it
  double bits_per_byte = 0.0;
  std::int64_t tokens = 0, bytes = 0;  ///< that were counted
};

/// Called with the text while it is generated, in pieces of whole characters.
using EachPiece = std::function<void(std::string_view piece)>;

/// A trained model. Not thread-safe.
class InferenceModel {
 public:
  virtual ~InferenceModel() = default;

  /// One sample: {height, width, channels} for images.
  virtual const Shape& input() const = 0;
  /// Shape of a sample's logits: {number of classes} for classifiers.
  virtual const Shape& output() const = 0;
  /// Names of classes, one for each output: numbers if the data set had no names, and for outputs
  /// beyond its classes.
  virtual const std::vector<std::string>& classes() const = 0;
  virtual std::int64_t parameter_count() const = 0;
  /// The resolved config of the run that trained it, JSON.
  virtual const std::string& config() const = 0;

  /// Logits of a batch, sample by sample. `batch` has whole samples, row-major: images as height ×
  /// width × channels, normalised as in training. Error(kUsage) for another size.
  virtual std::vector<float> logits(std::span<const float> batch) = 0;
  /// Logits of images as bytes (0 to 255), which it normalises as in training.
  virtual std::vector<float> logits(std::span<const std::uint8_t> images) = 0;
  /// Scores of images as bytes: the mean over the views of the run's tests (evaluate.tta); without
  /// those, logits().
  virtual std::vector<float> scores(std::span<const std::uint8_t> images) = 0;
  /// Probabilities from one sample's logits, according to the training loss: softmax, or the
  /// sigmoid of each for bce_with_logits.
  virtual std::vector<double> probabilities(std::span<const float> logits) const = 0;
  /// Reads a JPEG or PNG file, and resizes and crops it like test images in training. Error(kUsage)
  /// with the file.
  virtual std::vector<std::uint8_t> read_picture(const std::string& file) const = 0;
  /// The columns of an input; null if inputs are not rows of a table.
  virtual const TableColumns* columns() const = 0;
  /// Reads a CSV file's rows for logits(): columns by name, normalised as in training.
  /// Error(kUsage) with file, row and column.
  virtual TableRows read_table(const std::string& file) const = 0;

  /// Whether it is a language model, built in or a plug-in's: for {T} tokens it gives the logits of
  /// the next token at each position. It supports generate() instead of logits().
  virtual bool is_language_model() const = 0;
  /// Continues a text, with the tokenizer that the model was trained with. Deterministic for given
  /// logits. Whenever the model's context is full, its older half is dropped. Adds the tokenizer's
  /// bos token before the prompt, and stops after an eos token. Error(kUsage) for an empty prompt,
  /// an invalid option, or another kind of model.
  virtual Generated generate(std::string_view prompt, const GenerateOptions& options = {},
                             const EachPiece& each = {}) = 0;
  /// The same for tokens, without adding any.
  virtual Generated generate(std::span<const std::int32_t> prompt,
                             const GenerateOptions& options = {}, const EachPiece& each = {}) = 0;

  /// The assistant's next message of a conversation, written as a chat template (apps/text/chat.h)
  /// has it, at whose marker it ends. `chat_template`: its name; auto: that of the data that the
  /// model was trained on, or the one next to the model. Error(kUsage) where neither is known, or
  /// the tokenizer lacks a marker.
  virtual Generated chat(std::span<const ChatMessage> messages, const std::string& chat_template,
                         const GenerateOptions& options = {}, const EachPiece& each = {}) = 0;

  /// The log-likelihood of a continuation, as lm-evaluation-harness computes it: both texts are cut
  /// into tokens together, blanks at the context's end go with the continuation, and nothing stands
  /// before the context. An empty context is the token that begins texts, else the one that ends
  /// them. Of a context that is too long the last tokens count. Error(kUsage) for a continuation of
  /// more tokens than the model's context.
  virtual TextScore score(std::string_view context, std::string_view continuation) = 0;
  /// The mean log-likelihood of a text's tokens, each counted once. A token sees at most the
  /// model's context, in windows that begin `stride` tokens apart; 0: a context apart, which is
  /// fastest. The tokenizer's bos token stands before the text; without one the first token does
  /// not count.
  virtual TextPerplexity perplexity(std::string_view text, std::int64_t stride = 0) = 0;
};

/// Softmax of one sample's logits.
std::vector<double> probabilities(std::span<const float> logits);
/// Indices of the `count` largest values in descending order; of equal ones the lower index first.
std::vector<std::int64_t> largest(std::span<const float> logits, std::int64_t count = 1);

/// `path`: a run's folder, its model.safetensors, or a checkpoint's folder (model_source.h).
/// Error(kUsage) with file and tensor if it is not a model of Starling, or damaged.
std::unique_ptr<InferenceModel> load_model(const std::string& path,
                                           const InferenceOptions& options = {});

}  // namespace starling
