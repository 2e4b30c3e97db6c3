#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layers/builtin.h"
#include "layers/functions.h"
#include "layers/layer.h"
#include "layers/window.h"

namespace starling {

namespace {

/// Table lookup: int32 tokens of any shape → the same shape with a last dimension of `columns`.
/// Tensor: weight (rows×columns), initialised from N(0, 1) as in torch.nn.Embedding.
class Embedding : public Layer {
 public:
  Embedding(std::int64_t rows, std::int64_t columns) : rows_(rows), columns_(columns) {}

 protected:
  Shape build(const Shape& input) override {
    table_ = &add_parameter("weight", {rows_, columns_}, Init::normal(1.0));
    return input.with_last(columns_);
  }
  Variable compute(const Variable& x, Pass& pass) override {
    return functions::embedding(x.value(), *table_, pass);
  }

 private:
  std::int64_t rows_, columns_;
  Parameter* table_ = nullptr;
};

/// Replaces the inputs from `first` on, a one-hot category of a table, by the category's row of an
/// embedding table. Tensor: weight (columns×inputs), initialised as embedding's.
class EmbedInputs : public Layer {
 public:
  EmbedInputs(std::int64_t first, std::int64_t inputs, std::int64_t columns)
      : first_(first), inputs_(inputs), columns_(columns) {}

 protected:
  Shape build(const Shape& input) override {
    if (input.rank() != 1 || input[0] < first_ + inputs_)
      bad_shape(input, "a vector of " + std::to_string(first_ + inputs_) + " numbers or more");
    behind_ = input[0] - first_ - inputs_;
    table_ = &add_parameter("weight", {columns_, inputs_}, Init::normal(1.0));
    return {first_ + columns_ + behind_};
  }
  Variable compute(const Variable& x, Pass& pass) override {
    const std::int64_t end = first_ + inputs_;
    std::vector<Variable> parts;
    if (first_ > 0) parts.push_back(functions::slice(x, -1, 0, first_, pass));
    parts.push_back(
        functions::linear(functions::slice(x, -1, first_, end, pass), *table_, nullptr, pass));
    if (behind_ > 0) parts.push_back(functions::slice(x, -1, end, end + behind_, pass));
    return parts.size() == 1 ? parts[0] : functions::concat(parts, -1, pass);
  }

 private:
  std::int64_t first_, inputs_, columns_, behind_ = 0;
  Parameter* table_ = nullptr;
};

}  // namespace

void builtin::add_embedding(LayerRegistry& registry) {
  registry.add(
      "embedding",
      [](ConfigSection& section) {
        const std::int64_t rows = section.required_integer(
            "num_embeddings", kSizeRange, "rows of the table; tokens are 0 to one less");
        const std::int64_t columns =
            section.required_integer("embedding_dim", kSizeRange, "numbers of a row");
        return std::make_unique<Embedding>(rows, columns);
      },
      "a learned vector for each token; takes whole numbers");
  registry.add(
      "embed_inputs",
      [](ConfigSection& section) {
        const std::int64_t first = section.required_integer("first", Range::closed(0, 1 << 24),
                                                            "the first input, counted from 0");
        const std::int64_t inputs =
            section.required_integer("inputs", kSizeRange, "how many inputs, one for a category");
        const std::int64_t columns =
            section.required_integer("embedding_dim", kSizeRange, "numbers in their place");
        return std::make_unique<EmbedInputs>(first, inputs, columns);
      },
      "a learned vector for each category of a table's column, instead of its inputs");
}

}  // namespace starling
