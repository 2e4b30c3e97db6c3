#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layers/key_value_cache.h"
#include "layers/layer.h"

namespace starling {

/// A causal language model: int32 tokens {T} to logits {T, vocab} of each next token. Consists of a
/// body, from {T} to hidden states {T, width} after the last norm, and a head, a matrix that hidden
/// states are multiplied by. With tied weights the head is the body's token table.
///
/// Sequences may have any length up to the context:
///
///     const Variable h = model.hidden(tokens, pass);  // [N,T,width]
///     const Variable loss = functions::linear_cross_entropy(h, model.head(), targets, 1, pass);
///
/// For generation, which computes new tokens only:
///
///     KeyValueCache cache;  // if model.cached()
///     Variable h = model.hidden(prompt, cache, pass);  // [1,T,width]
///     h = model.hidden(token, cache, pass);            // [1,1,width], and so on
class LanguageModel : public Layer {
 public:
  struct Settings {
    std::int64_t vocab = 0, context = 0;
    bool tie = false;
    double head_deviation = 0.02;            ///< of lm_head.weight's initial values, if not tied
    std::vector<std::string> left_out = {};  ///< see FileNames
    /// The body supports KeyValueCache
    bool cached = false;
  };
  /// `body`: a layer whose first parameter is the table of tokens [vocab, width]; its tensors are
  /// named `name`.….
  LanguageModel(const Settings& settings, std::string name, std::unique_ptr<Layer> body)
      : settings_(settings), body_name_(std::move(name)), pending_(std::move(body)) {}

  /// [N,T,width] after the last norm. Error(kUsage) if T exceeds the context.
  Variable hidden(const Variable& tokens, Pass& pass);
  /// For tokens that follow those in the cache, to which they are added. Error(kUsage) if together
  /// they exceed the context, or the pass has a tape. Requires cached().
  Variable hidden(const Variable& tokens, KeyValueCache& cache, Pass& pass);
  /// [vocab, width]
  Parameter& head() { return *head_; }
  std::int64_t vocab() const { return settings_.vocab; }
  /// Whether hidden() supports a cache; otherwise generation recomputes the whole text for every
  /// token.
  bool cached() const { return settings_.cached; }
  /// The most tokens of a sequence.
  std::int64_t context() const { return settings_.context; }
  FileNames file_names() const override;

 protected:
  Shape build(const Shape& input) override;
  Variable compute(const Variable& tokens, Pass& pass) override;

 private:
  void check_length(const Shape& tokens, std::int64_t before) const;

  Settings settings_;
  std::string body_name_;
  std::unique_ptr<Layer> pending_;  // until build()
  Layer* body_ = nullptr;
  Parameter* head_ = nullptr;
};

}  // namespace starling
