#include <doctest/doctest.h>

#include <map>

#include "layers/functions.h"
#include "layers/language_model.h"
#include "layers/norm_statistics.h"
#include "tests/layers/support.h"

using namespace starling;
using namespace starling::testing;

namespace {

/// Names in the order in which a traced pass on the meta backend reports them.
std::vector<std::string> ready_order(Model& model, std::int64_t batch) {
  const auto backend = make_meta_backend();
  model.allocate(*backend, DType::kFloat32);
  Tape tape(*backend);
  std::vector<std::string> order;
  tape.set_ready_observer([&](Parameter& parameter) { order.push_back(parameter.name); });
  Pass pass{*backend, &tape, true};
  const Variable logits = model.forward(
      Variable(Tensor(*backend, model.input_shape().with_batch(batch), DType::kFloat32)), pass);
  tape.backward(
      functions::cross_entropy(logits, Tensor(*backend, {batch}, DType::kInt32), 0.0, 1.0, pass));
  return order;
}

}  // namespace

TEST_CASE("layers/trace: the backward order on shapes alone") {
  const auto mlp = model_from(R"({"type": "mlp", "hidden": [4]})", {2, 2, 1});
  CHECK(ready_order(*mlp, 2) ==
        std::vector<std::string>{"3.weight", "3.bias", "1.weight", "1.bias"});

  for (const char* name : {"resnet20", "resnet18", "resnet50"}) {
    CAPTURE(name);
    const auto model = model_from(R"({"type": ")" + std::string(name) + R"("})", {32, 32, 3});
    const std::vector<std::string> order = ready_order(*model, 2);
    CHECK(order.size() == model->parameters().size());
    CHECK(order.front() == "fc.weight");
    CHECK(order.back() == "conv1.weight");
    std::map<std::string, int> seen;
    for (const std::string& parameter : order) CHECK(++seen[parameter] == 1);
    CHECK(ready_order(*model, 5) == order);
  }
}

TEST_CASE(
    "layers/trace: a traced pass gives its memory back, and evaluation needs far less of it") {
  const auto model = model_from(R"({"type": "resnet20"})", {32, 32, 3});
  const auto backend = make_meta_backend();
  model->allocate(*backend, DType::kFloat32);
  const std::size_t before = backend->memory_stats().in_use;
  const auto peak = [&](bool training) {
    Tape tape(*backend);
    Pass pass{*backend, training ? &tape : nullptr, training};
    std::size_t result = 0;
    {
      const Variable logits =
          model->forward(Variable(Tensor(*backend, {64, 32, 32, 3}, DType::kFloat32)), pass);
      result = backend->memory_stats().in_use - before;
      if (training)
        tape.backward(functions::cross_entropy(logits, Tensor(*backend, {64}, DType::kInt32), 0.0,
                                               1.0, pass));
    }
    return result;
  };
  const std::size_t training = peak(true), evaluation = peak(false);
  CHECK(backend->memory_stats().in_use == before);
  CHECK(evaluation < training / 100);
  // Kept of every convolution with batch norm: its output (for batch norm) and that of the ReLU,
  // nothing else of that size.
  const std::size_t activations =
      64 * 4 * 2 * (7 * 32 * 32 * 16 + 6 * 16 * 16 * 32 + 6 * 8 * 8 * 64);
  CHECK(static_cast<double>(training) < 1.10 * static_cast<double>(activations));
}

TEST_CASE("layers/recompute: less is kept, and gradients have the same bits") {
  for (const std::string kind :
       {R"("gpt2", "dropout": 0.2)", R"("llama", "hidden": 64, "tie": true)"}) {
    CAPTURE(kind);
    const auto model =
        model_from(R"({"type": )" + kind +
                       R"(, "layers": 2, "heads": 2, "width": 16, "context": 32, "vocab": 40})",
                   {32});
    LanguageModel& text = *model->language_model();
    // `twice`: the head has another use, whose node comes first in the backward pass.
    const auto loss_of = [&](const Tensor& x, Pass& pass, bool twice) {
      const Variable hidden = text.hidden(Variable(x), pass);
      const Variable loss = functions::linear_cross_entropy(hidden, text.head(), x, 1.0, pass, 24);
      if (!twice) return loss;
      return functions::add(
          loss,
          functions::mean_loss(functions::linear(hidden, text.head(), nullptr, pass), 1.0, pass),
          pass);
    };
    std::vector<std::int32_t> numbers(64);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<std::int32_t>(i * i % 40);
    Tensor tokens(cpu(), {2, 32}, DType::kInt32);
    cpu().copy_from_host(numbers.data(), tokens);
    model->allocate(cpu(), DType::kFloat32);
    model->initialise(3);
    const auto gradients = [&](Recompute recompute, bool overwrites, bool twice) {
      for (const Parameter* parameter : model->parameters()) cpu().fill(parameter->grad, 1e30);
      Tape tape(cpu());
      Pass pass{.backend = cpu(),
                .tape = &tape,
                .training = true,
                .dropout_key = 5,
                .recompute = recompute,
                .overwrites = overwrites};
      tape.backward(loss_of(tokens, pass, twice));
      std::vector<double> all;
      for (const Parameter* parameter : model->parameters()) {
        for (const double value : numbers_of(parameter->grad)) all.push_back(value);
      }
      return all;
    };
    for (const bool twice : {false, true}) {
      const std::vector<double> kept = gradients(Recompute::kNone, false, twice);
      for (const Recompute recompute : {Recompute::kCheap, Recompute::kBlock})
        for (const bool overwrites : {false, true})
          CHECK(gradients(recompute, overwrites, twice) == kept);
    }

    const auto meta = make_meta_backend();
    model->allocate(*meta, DType::kFloat32);
    const std::size_t before = meta->memory_stats().in_use;
    const auto held = [&](Recompute recompute) {
      Tape tape(*meta);
      Pass pass{.backend = *meta, .tape = &tape, .training = true, .recompute = recompute};
      const Variable hidden = text.hidden(Variable(Tensor(*meta, {2, 32}, DType::kInt32)), pass);
      return static_cast<std::int64_t>(meta->memory_stats().in_use - before);
    };
    // Of each block the outputs of two norms, and what goes into the last product, which is of 64
    // numbers a token; and nothing of the last norm, whose output lives.
    const std::int64_t most = held(Recompute::kNone), block = held(Recompute::kBlock);
    CHECK(most - held(Recompute::kCheap) == 4 * 64 * 2 * (16 + 16 + 64));
    // The input of each block, of the last norm (with its statistics), and its output.
    CHECK(block <= 4 * 64 * (4 * 16 + 2) + 4 * 64 * (kind.starts_with("\"gpt2") ? 16 + 4 : 0));
  }
}

TEST_CASE("layers/functions: nothing is recorded, and no gradient computed, where none is wanted") {
  const auto model = model_from(
      R"({"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 2, "kernel_size": 2, "bias": true},
      {"type": "relu"}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]})",
      {3, 3, 1});
  model->allocate(cpu(), DType::kFloat64);
  model->initialise(1);
  model->parameters()[0]->trainable = false;  // conv weight frozen, its bias not
  cpu().fill(model->parameters()[0]->grad, 7.0);
  Tape tape(cpu());
  Pass pass{cpu(), &tape, true};
  std::vector<std::string> ready;
  tape.set_ready_observer([&](Parameter& parameter) { ready.push_back(parameter.name); });
  tape.backward(
      weighted_total(model->forward(Variable(noise_tensor(1, {2, 3, 3, 1})), pass), pass));
  CHECK(ready == std::vector<std::string>{"3.weight", "3.bias", "0.bias"});
  CHECK(numbers_of(model->parameters()[0]->grad) == std::vector<double>(8, 7.0));

  for (Parameter* parameter : model->parameters()) parameter->trainable = false;
  model->forward(Variable(noise_tensor(1, {2, 3, 3, 1})), pass);
  CHECK(tape.nodes() == 0);
}

TEST_CASE(
    "layers/batch_norm: over the batches of all ranks, of which there is one, it is a batch norm, "
    "with what follows it") {
  struct OneRank final : RankSums {
    int ranks() const override { return 1; }
    void sum(const Tensor&) override { ++sums; }
    int sums = 0;
  } one;
  const std::string norm = R"({"type": "batch_norm"})";
  for (const std::string kind : {"relu", "relu6", "silu"}) {
    CAPTURE(kind);
    const std::string active = R"({"type": ")" + kind + R"("})";
    const auto model =
        model_from(R"({"type": "sequential", "layers": [)" + norm + "," + active +
                       R"(, {"type": "residual", "layers": [)" + norm + "]}," + active +
                       R"(, {"type": "global_avg_pool"}, {"type": "linear", "out_features": 10}]})",
                   {4, 4, 3});
    model->allocate(cpu(), DType::kFloat64);
    const auto run = [&](RankSums* over) {
      model->initialise(4);
      for (const Parameter* parameter : model->parameters()) {
        if (parameter->shape.rank() == 1 && parameter->name.ends_with("weight"))
          cpu().fill(parameter->value, 5.0);
      }
      Tape tape(cpu());
      Pass pass{.backend = cpu(), .tape = &tape, .training = true, .extensions = {over}};
      const Variable x = tape.leaf(noise_tensor(1, {3, 4, 4, 3}));
      const Variable y = model->forward(x, pass);
      std::vector<double> result = numbers_of(y.value());
      tape.backward(weighted_total(y, pass));
      for (const double value : numbers_of(Tape::gradient(x))) result.push_back(value);
      for (const Parameter* parameter : model->parameters()) {
        for (const double value : numbers_of(parameter->grad)) result.push_back(value);
      }
      return result;
    };
    const auto plain = run(nullptr), over_ranks = run(&one);
    REQUIRE(plain.size() == over_ranks.size());
    for (std::size_t i = 0; i < plain.size(); ++i)
      CHECK(over_ranks[i] == doctest::Approx(plain[i]).epsilon(1e-9));
  }
  CHECK(one.sums == 3 * 2 * 2);
}

TEST_CASE("layers/dropout: masks follow key and counter, and vanish in evaluation") {
  const Tensor ones = tensor_of(std::vector<double>(400, 1.0), {1, 400});
  const auto run = [&](std::uint64_t key, std::uint64_t counter, bool training = true) {
    Pass pass{cpu(), nullptr, training, key, counter};
    const auto y = numbers_of(functions::dropout(Variable(ones), 0.3, pass).value());
    CHECK(pass.dropout_counter == counter + (training ? 1 : 0));
    return y;
  };
  const auto mask = run(1, 5);
  CHECK(mask != numbers_of(ones));
  for (const double value : mask) CHECK((value == 0.0 || value == doctest::Approx(1 / 0.7)));
  CHECK(run(1, 5) == mask);
  CHECK(run(1, 6) != mask);
  CHECK(run(2, 5) != mask);
  CHECK(run(1, 5, false) == numbers_of(ones));
}

TEST_CASE("layers/flatten: no copy where none is needed") {
  Pass pass{cpu()};
  const Tensor grey = noise_tensor(1, {2, 3, 3, 1});
  CHECK(functions::flatten(Variable(grey), pass).value().raw() == grey.raw());
}

TEST_CASE("layers/pass: what is added is not kept for the backward pass, what is multiplied is") {
  const auto kept =
      [](Variable (*function)(const functions::Operand&, const functions::Operand&, Pass&)) {
        Tape tape(cpu());
        Pass pass{cpu(), &tape, true};
        const Variable x = tape.leaf(noise_tensor(1, {64, 64}));
        const std::size_t before = cpu().memory_stats().in_use;
        Variable z;
        {
          const Variable y(noise_tensor(2, {64, 64}));
          z = function(x, y, pass);
          (void)z.value();
        }
        return (cpu().memory_stats().in_use - before) / (64 * 64 * sizeof(double));
      };
  CHECK(kept(functions::add) == 1);
  CHECK(kept(functions::multiply) == 2);
}
