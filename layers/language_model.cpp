#include "layers/language_model.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "layers/functions.h"
#include "layers/linear.h"

namespace starling {

Shape LanguageModel::build(const Shape& input) {
  if (input.rank() != 1) bad_shape(input, "a sequence of tokens {T}");
  body_ = &add_child(body_name_, std::move(pending_), input);
  if (settings_.tie) {
    head_ = body_->parameters().front();
  } else {
    const Linear::Given given{.weight = Init::normal(settings_.head_deviation), .has_bias = false};
    head_ = &add_child("lm_head", std::make_unique<Linear>(settings_.vocab, given),
                       body_->output_shape())
                 .weight();
  }
  return input.with_last(settings_.vocab);
}

void LanguageModel::check_length(const Shape& tokens, std::int64_t before) const {
  if (before + tokens.back() <= settings_.context) return;
  bad_shape(tokens, fmt::format("a sequence of at most {} tokens, the context,{}",
                                settings_.context - before,
                                before > 0 ? fmt::format(" behind {} before it", before) : ""));
}

Variable LanguageModel::hidden(const Variable& tokens, Pass& pass) {
  check_length(tokens.shape(), 0);
  return body_->forward(tokens, pass);
}

Variable LanguageModel::hidden(const Variable& tokens, KeyValueCache& cache, Pass& pass) {
  require(!pass.tape, "language model", "a cache of keys and values has no gradients");
  check_length(tokens.shape(), cache.tokens());
  Pass with = pass;
  with.extensions.push_back(&cache);
  cache.advance(0);  // in case the last pass failed
  Variable result = body_->forward(tokens, with);
  cache.advance(tokens.shape().back());
  return result;
}

Variable LanguageModel::compute(const Variable& tokens, Pass& pass) {
  return functions::linear(hidden(tokens, pass), *head_, nullptr, pass);
}

FileNames LanguageModel::file_names() const {
  FileNames names{.optional_prefix = body_name_ + ".", .left_out = settings_.left_out};
  if (settings_.tie) names.copies.emplace_back("lm_head.weight", head_->name);
  return names;
}

LanguageModel* Model::language_model() const { return dynamic_cast<LanguageModel*>(root_.get()); }

}  // namespace starling
