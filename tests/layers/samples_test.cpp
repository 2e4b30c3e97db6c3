// What authors write with functions alone: examples/plugin/samples.h, and gate.h.
#include "examples/plugin/samples.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "examples/plugin/gate.h"
#include "tests/layers/halves.h"
#include "tests/layers/support.h"

namespace starling::testing {
TEST_CASE("layers/samples: layers of functions have their gradients") {
  const auto check = [](std::unique_ptr<Layer> layer, const Shape& input) {
    Model model(std::move(layer), input);
    check_gradients(model, 3);
  };
  check(std::make_unique<mine::Gate>(), {3, 2, 8});
  check(std::make_unique<mine::Attend>(2), {5, 6});
  check(std::make_unique<mine::Changes>(), {4, 3});
  check(std::make_unique<tests::Halves>(std::make_unique<mine::LetIn>()), {8});
  CHECK(contains(error_of(ExitCode::kUsage,
                          [&] {
                            check(std::make_unique<mine::Attend>(4), {5, 6});
                          }),
                 "an input of 5×6, but T×C that the heads divide is needed"));
}

TEST_CASE("layers/samples: a loss of functions is the built-in one, in every precision") {
  const Tensor scores = noise_tensor(1, {6, 5}), labels = spread_labels(6, 5);
  const std::unique_ptr<const Loss> sample = std::make_unique<mine::Focal>();
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    CAPTURE(name_of(dtype));
    const auto run = [&](bool built_in) {
      Tape tape(cpu());
      Pass pass{.backend = cpu(), .tape = &tape, .training = true, .loss_scale = 8.0};
      const Variable x = tape.leaf(cast_to(scores, dtype));
      const Variable loss =
          built_in ? functions::target_loss(x, labels, {LossKind::kFocal, 2.0}, 0.5, pass)
                   : sample->value(x, labels, 0.5, pass);
      CHECK(loss.dtype() == (is_low_precision(dtype) ? DType::kFloat32 : dtype));
      std::vector<double> result = numbers_of(loss.value());
      tape.backward(loss);
      for (const double g : numbers_of(Tape::gradient(x))) result.push_back(g);
      return result;
    };
    const double tolerance = dtype == DType::kFloat64   ? 1e-14
                             : dtype == DType::kFloat32 ? 1e-6
                                                        : 1e-2;
    CHECK(relative_error(run(false), run(true)) < tolerance);
  }
}

}  // namespace starling::testing
