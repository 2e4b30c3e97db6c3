// A unit test of a layer of one's own, without a config, data or MPI: numbers that follow from the
// formula, and a gradient beside a difference.
#include "gate.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include <starling/testing.h>

namespace {

int faults = 0;

void check(bool right, const char* what) {
  if (right) return;
  std::printf("FAILED: %s\n", what);
  ++faults;
}

}  // namespace

int main() {
  using namespace starling;
  const auto backend = open_backend(DeviceType::kCpu, 1);
  Model model(std::make_unique<mine::Gate>(), Shape{2, 2, 4});
  model.allocate(*backend, DType::kFloat64);
  model.initialise(1);
  for (const Parameter* parameter : model.parameters()) backend->fill(parameter->grad, 0.0);

  const Shape batch{1, 2, 2, 4};
  std::vector<double> numbers(16);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.1 * static_cast<double>(i) - 0.7;
  // Σ gate(x), with its gradient where there is a tape.
  const auto sum = [&](const std::vector<double>& x, Tape* tape, std::vector<double>* dx) {
    Tensor input(*backend, batch, DType::kFloat64);
    backend->copy_from_host(x.data(), input);
    Pass pass{.backend = *backend, .tape = tape, .training = true};
    const Variable leaf = tape ? tape->leaf(input) : Variable(input);
    const Variable total = functions::sum(model.forward(leaf, pass), {0, 1, 2, 3}, false, pass);
    double result = 0.0;
    backend->copy_to_host(total.value(), &result);
    if (tape) {
      tape->backward(total);
      backend->copy_to_host(Tape::gradient(leaf), dx->data());
    }
    return result;
  };

  // Zeros stay zeros, whatever the gate says of them.
  check(sum(std::vector<double>(16, 0.0), nullptr, nullptr) == 0.0, "zeros stay");
  Tape tape(*backend);
  std::vector<double> dx(16);
  sum(numbers, &tape, &dx);
  constexpr double kStep = 1e-6;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::vector<double> up = numbers, down = numbers;
    up[i] += kStep;
    down[i] -= kStep;
    const double slope = (sum(up, nullptr, nullptr) - sum(down, nullptr, nullptr)) / (2 * kStep);
    check(std::abs(slope - dx[i]) < 1e-6, "a gradient is the slope");
  }
  if (faults == 0) std::puts("all is right");
  return faults == 0 ? 0 : 1;
}
