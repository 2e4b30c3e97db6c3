#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "layers/functions.h"
#include "tests/layers/support.h"
#include "tests/support/errors.h"

using namespace starling;
using namespace starling::testing;

namespace {

Tensor tokens_of(const std::vector<std::int32_t>& tokens, const Shape& shape) {
  return labels_of(tokens).reshaped(shape);
}

Parameter table_of(const Shape& shape) {
  Parameter table{.name = "table", .shape = shape};
  table.index = 0;
  table.value = noise_tensor(3, shape);
  table.grad = Tensor(cpu(), shape, DType::kFloat64);
  return table;
}

const Shape kShape{2, 3};
const std::vector<std::int32_t> kFirst{4, 0, 4, 4, 2, 0};

}  // namespace

TEST_CASE("layers/embedding: rows by number, one column more than the tokens have dimensions") {
  Parameter table = table_of({5, 4});
  Pass pass{cpu()};
  const Variable y = functions::embedding(tokens_of(kFirst, kShape), table, pass);
  CHECK(y.shape() == Shape{2, 3, 4});
  const std::vector<double> rows = numbers_of(table.value), found = numbers_of(y.value());
  for (std::size_t i = 0; i < found.size(); ++i)
    CHECK(found[i] == rows[static_cast<std::size_t>(kFirst[i / 4]) * 4 + i % 4]);
}

TEST_CASE(
    "layers/embedding: a table that is not trained gets no gradient, and a token outside it is the "
    "data's fault") {
  Parameter table = table_of({5, 4});
  table.trainable = false;
  Tape tape(cpu());
  Pass pass{cpu(), &tape, true};
  CHECK(!functions::embedding(tokens_of(kFirst, kShape), table, pass).requires_grad());
  CHECK(tape.nodes() == 0);
  for (const std::int32_t token : {-1, 5}) {
    const std::string text = test::error_text([&] {
      functions::embedding(tokens_of({0, token}, {2}), table, pass);
    });
    CHECK(text.find(std::to_string(token) + " at position 1") != std::string::npos);
    CHECK(text.find("5 rows") != std::string::npos);
  }
}
