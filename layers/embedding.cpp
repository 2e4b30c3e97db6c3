#include <memory>
#include <span>
#include <vector>

#include "layers/builtin.h"
#include "layers/functions.h"
#include "layers/layer.h"
#include "layers/window.h"

namespace starling {

namespace {

/// A row of a table for each token: int32 of any shape → that shape with `columns` behind it.
/// Tensor: weight (rows×columns), drawn from N(0, 1) as torch.nn.Embedding draws it.
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
}

}  // namespace starling
