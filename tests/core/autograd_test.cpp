#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "tests/core/host_backend.h"
#include "tests/support/errors.h"

using namespace starling;
using starling::test::fails;
using starling::test::HostBackend;

namespace {

float value(const Tensor& tensor) { return tensor.span<float>()[0]; }

/// A scalar graph: parameters, and the three functions x·p, a·b, a+b with their gradients written
/// out.
struct Graph {
  HostBackend backend;
  std::vector<std::unique_ptr<Parameter>> parameters;
  Tape tape{backend};
  std::vector<std::string> ready;

  Graph() {
    tape.set_ready_observer([this](Parameter& parameter) { ready.push_back(parameter.name); });
  }
  Tensor scalar(float number) {
    Tensor tensor(backend, Shape{}, DType::kFloat32);
    tensor.span<float>()[0] = number;
    return tensor;
  }
  Parameter& parameter(const std::string& name, float number, bool trainable = true) {
    auto p = std::make_unique<Parameter>();
    p->name = name;
    p->index = static_cast<int>(parameters.size());
    p->value = scalar(number);
    p->grad = scalar(1e30f);  // must be overwritten, not added to
    p->trainable = trainable;
    parameters.push_back(std::move(p));
    return *parameters.back();
  }
  Variable scale(const Variable& x, Parameter& p) {
    const Tensor saved = x.value();
    return tape.record(
        "scale", scalar(value(saved) * value(p.value)), {x}, {&p}, [this, saved, &p](Gradients& g) {
          if (g.wants(0)) g.set(0, scalar(value(g.output()) * value(p.value)));
          if (const auto target = g.parameter(0)) {
            float& grad = target.tensor.span<float>()[0];
            grad = (target.accumulate ? grad : 0.0f) + value(g.output()) * value(saved);
          }
        });
  }
  Variable add(const Variable& a, const Variable& b) {
    return tape.record("add", scalar(value(a.value()) + value(b.value())), {a, b}, {},
                       [](Gradients& g) {
                         g.set(0, g.output());
                         g.set(1, g.output());
                       });
  }
  Variable multiply(const Variable& a, const Variable& b) {
    return tape.record("multiply", scalar(value(a.value()) * value(b.value())), {a, b}, {},
                       [this, a, b](Gradients& g) {
                         if (g.wants(0)) g.set(0, scalar(value(g.output()) * value(b.value())));
                         if (g.wants(1)) g.set(1, scalar(value(g.output()) * value(a.value())));
                       });
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("core/autograd: a chain's gradients, and parameters ready in reverse order") {
  Graph graph;
  Parameter &a = graph.parameter("a", 2), &b = graph.parameter("b", 3),
            &c = graph.parameter("c", 5);
  const Variable x(graph.scalar(7));
  const Variable loss = graph.scale(graph.scale(graph.scale(x, a), b), c);
  CHECK(value(loss.value()) == 210);
  CHECK(graph.tape.nodes() == 3);
  graph.tape.backward(loss);
  CHECK(value(c.grad) == 42);
  CHECK(value(b.grad) == 70);
  CHECK(value(a.grad) == 105);
  CHECK(graph.ready == Names{"c", "b", "a"});
  CHECK(graph.tape.nodes() == 0);
}

TEST_CASE(
    "core/autograd: a shared parameter sums over its uses and is reported once, after its last "
    "use") {
  Graph graph;
  Parameter &shared = graph.parameter("shared", 2), &middle = graph.parameter("middle", 3);
  const Variable x(graph.scalar(5));
  // shared² · middle · x
  const Variable loss = graph.scale(graph.scale(graph.scale(x, shared), middle), shared);
  graph.tape.backward(loss);
  CHECK(value(shared.grad) == 2 * 2 * 3 * 5);
  CHECK(value(middle.grad) == 4 * 5);
  CHECK(graph.ready == Names{"middle", "shared"});
}

TEST_CASE("core/autograd: a function that looks at no gradient of its output is told so") {
  Graph graph;
  Parameter& p = graph.parameter("p", 3);
  const auto told = [&](const BackwardFunction& backward) {
    const Variable y = graph.tape.record("forgetful", graph.scalar(9), {}, {&p}, backward);
    try {
      graph.tape.backward(y, 0.5);
    } catch (const Error& error) {
      graph.tape.clear();
      return std::string(error.what());
    }
    return std::string();
  };
  const auto hands_on = [](Gradients& g) { g.parameter(0).tensor.span<float>()[0] = 1; };
  CHECK(told(hands_on).find("(backward of forgetful): [gradient] that of the output is not looked "
                            "at") != std::string::npos);
  CHECK(told([&](Gradients& g) {
          (void)g.has(0);  // which tells nothing of it
          hands_on(g);
        }) != "");
  CHECK(told([&](Gradients& g) {
          (void)g.output_is_one();
          hands_on(g);
        }) == "");
  CHECK(told([&](Gradients& g) {
          (void)g.take_terms();
          hands_on(g);
        }) == "");
  CHECK(told([](Gradients&) {}) == "");  // it hands nothing on
}

TEST_CASE("core/autograd: one node that lists a parameter twice") {
  Graph graph;
  Parameter& p = graph.parameter("p", 3);
  // y = p·p, as a node with two parameter places
  const Variable loss =
      graph.tape.record("square", graph.scalar(9), {}, {&p, &p}, [&](Gradients& g) {
        for (int j = 0; j < 2; ++j) {
          const auto target = g.parameter(j);
          float& grad = target.tensor.span<float>()[0];
          grad = (target.accumulate ? grad : 0.0f) + value(p.value) * value(g.output());
        }
      });
  graph.tape.backward(loss);
  CHECK(value(p.grad) == 6);
  CHECK(graph.ready == Names{"p"});
}

TEST_CASE("core/autograd: micro-batches accumulate, and only the last one reports") {
  Graph graph;
  Parameter &a = graph.parameter("a", 2), &b = graph.parameter("b", 3);
  for (int micro = 0; micro < 3; ++micro) {
    const Variable x(graph.scalar(static_cast<float>(micro + 1)));
    graph.tape.backward(graph.scale(graph.scale(x, a), b), 1.0, micro > 0, micro == 2);
    if (micro < 2) CHECK(graph.ready.empty());
  }
  CHECK(value(a.grad) == 3 * (1 + 2 + 3));
  CHECK(value(b.grad) == 2 * (1 + 2 + 3));
  CHECK(graph.ready == Names{"b", "a"});
  // The next group overwrites.
  graph.tape.backward(graph.scale(Variable(graph.scalar(10)), a));
  CHECK(value(a.grad) == 10);
}

TEST_CASE("core/autograd: a parameter that only some micro-batches of a group use") {
  Graph graph;
  Parameter &early = graph.parameter("early", 2), &late = graph.parameter("late", 3),
            &always = graph.parameter("always", 5);
  // what the first group left behind must not leak into the second
  for (int group = 0; group < 2; ++group) {
    graph.ready.clear();
    graph.tape.backward(graph.scale(graph.scale(Variable(graph.scalar(1)), early), always), 1.0,
                        false, false);
    graph.tape.backward(graph.scale(graph.scale(Variable(graph.scalar(1)), late), always), 1.0,
                        true, true);
    CHECK(value(early.grad) == 5);
    CHECK(value(late.grad) == 5);
    CHECK(value(always.grad) == 2 + 3);
    CHECK(graph.ready == Names{"always", "late", "early"});
  }
}

TEST_CASE("core/autograd: frozen parameters get nothing and report nothing") {
  Graph graph;
  Parameter &frozen = graph.parameter("frozen", 2, false), &live = graph.parameter("live", 3);
  const Variable below = graph.scale(Variable(graph.scalar(5)), frozen);
  CHECK_FALSE(below.requires_grad());
  CHECK(graph.tape.nodes() == 0);
  const Variable loss = graph.scale(graph.scale(below, live), frozen);
  CHECK(graph.tape.nodes() == 2);
  graph.tape.backward(loss);
  CHECK(value(live.grad) == 20);
  CHECK(value(frozen.grad) == 1e30f);
  CHECK(graph.ready == Names{"live"});
}

TEST_CASE(
    "core/autograd: branches sum, and a gradient shared by two inputs is never changed in place") {
  Graph graph;
  Parameter& p = graph.parameter("p", 3);
  const Variable x = graph.tape.leaf(graph.scalar(2)), y = graph.tape.leaf(graph.scalar(5));
  // loss = (x + y) + (p·x + x): both additions hand one tensor to two inputs; dx = 1 + p + 1, dy =
  // 1
  const Variable loss = graph.add(graph.add(x, y), graph.add(graph.scale(x, p), x));
  graph.tape.backward(loss);
  CHECK(value(Tape::gradient(x)) == 5);
  CHECK(value(Tape::gradient(y)) == 1);
  CHECK(value(p.grad) == 2);
}

TEST_CASE("core/autograd: the same value as both inputs") {
  Graph graph;
  const Variable x = graph.tape.leaf(graph.scalar(3));
  const Variable squared = graph.multiply(x, x);
  graph.tape.backward(graph.add(squared, squared));
  CHECK(value(Tape::gradient(x)) == 12);
  CHECK_FALSE(Tape::gradient(graph.tape.leaf(graph.scalar(1))));
}

TEST_CASE(
    "core/autograd: a node with several outputs gets the gradient of each, or is told of none") {
  Graph graph;
  Parameter& p = graph.parameter("p", 10);
  const Variable x = graph.tape.leaf(graph.scalar(2));
  // Outputs 2·x, 3·x and 5·x, the gradient of each added to what x gets.
  std::vector<std::vector<float>> seen;
  const auto several = [&] {
    return graph.tape.record(
        "several", {graph.scalar(4), graph.scalar(6), graph.scalar(10)}, {x}, {&p},
        [&](Gradients& g) {
          float sum = 0;
          seen.emplace_back();
          for (int i = 0; i < 3; ++i) {
            if (!g.has(i)) continue;
            seen.back().push_back(value(g.output(i)));
            sum += std::array{2.0f, 3.0f, 5.0f}[static_cast<std::size_t>(i)] * value(g.output(i));
          }
          g.set(0, graph.scalar(sum));
          g.parameter(0).tensor.span<float>()[0] = sum;
        });
  };
  const std::vector<Variable> y = several();
  REQUIRE(y.size() == 3);
  graph.tape.backward(graph.add(graph.multiply(y[0], y[2]), y[0]));
  CHECK(seen == std::vector<std::vector<float>>{{11, 4}});
  CHECK(value(Tape::gradient(x)) == 2 * 11 + 5 * 4);
  CHECK(value(p.grad) == 42);
  CHECK(graph.ready == Names{"p"});

  several();  // nobody reads them: the node is passed by
  graph.tape.backward(graph.scale(x, p));
  CHECK(seen.size() == 1);

  for (const int output : {1, 3}) {
    const auto of = graph.tape.record("of", {graph.scalar(1), graph.scalar(1)}, {x}, {},
                                      [&](Gradients& g) { g.set(0, g.output(output)); });
    CHECK(fails(
        ExitCode::kUsage,
        output == 1 ? "[gradient] output 1 has none" : "[gradient] output 3 is asked for, of 2",
        [&] { graph.tape.backward(of[0]); }));
    graph.tape.clear();
  }
}

TEST_CASE("core/autograd: optional inputs and parameters may be missing") {
  Graph graph;
  const Variable x = graph.tape.leaf(graph.scalar(2));
  const Variable y =
      graph.tape.record("bare", graph.scalar(2), {x, {}}, {nullptr}, [](Gradients& g) {
        CHECK_FALSE(g.wants(1));
        CHECK_FALSE(g.parameter(0));
        g.set(1, g.output());
        g.set(0, g.output());
      });
  graph.tape.backward(y);
  CHECK(value(Tape::gradient(x)) == 1);
  CHECK(graph.tape.stopped_at().empty());
}

TEST_CASE("core/autograd: max_terms leaves that many terms unsummed") {
  for (const int max_terms : {1, 2, 3}) {
    Graph graph;
    const Variable x = graph.tape.leaf(graph.scalar(2));
    std::size_t seen = 0;
    float sum = 0;
    const Variable copy = graph.tape.record(
        "copy", graph.scalar(2), {x}, {},
        [&](Gradients& g) {
          const std::vector<Tensor> terms = g.take_terms();
          seen = terms.size();
          for (const Tensor& term : terms) sum += value(term);
          g.set(0, graph.scalar(sum));
        },
        max_terms);
    Parameter &a = graph.parameter("a", 10), &b = graph.parameter("b", 100),
              &c = graph.parameter("c", 1000);
    graph.backend.additions = 0;
    graph.tape.backward(
        graph.add(graph.add(graph.scale(copy, a), graph.scale(copy, b)), graph.scale(copy, c)));
    CHECK(seen == static_cast<std::size_t>(max_terms));
    CHECK(graph.backend.additions == 3 - max_terms);
    CHECK(sum == 1110);
    CHECK(value(Tape::gradient(x)) == 1110);
  }
}

TEST_CASE("core/autograd: what the loss does not depend on is skipped and not reported") {
  Graph graph;
  Parameter &used = graph.parameter("used", 2), &unused = graph.parameter("unused", 3);
  const Variable x(graph.scalar(5));
  const Variable kept = graph.scale(x, used);
  graph.scale(kept, unused);
  graph.tape.backward(kept);
  CHECK(value(used.grad) == 5);
  CHECK(value(unused.grad) == 1e30f);
  CHECK(graph.ready == Names{"used"});
  // A parameter whose last use is skipped but which got a gradient before is reported.
  graph.ready.clear();
  graph.scale(x, used);
  graph.tape.backward(graph.scale(x, used));
  CHECK(graph.ready == Names{"used"});
}

TEST_CASE("core/autograd: memory falls as the backward pass goes") {
  const auto backend = make_meta_backend();
  constexpr int kNodes = 8;
  const Shape shape{1000};
  const std::size_t bytes = 4000;
  std::vector<Parameter> parameters(kNodes);
  std::vector<std::size_t> in_use;
  Tape tape(*backend);
  tape.set_ready_observer([&](Parameter&) { in_use.push_back(backend->memory_stats().in_use); });
  const std::size_t before = backend->memory_stats().in_use;
  {
    Variable x(Tensor(*backend, shape, DType::kFloat32));
    for (int i = 0; i < kNodes; ++i) {
      Parameter& p = parameters[static_cast<std::size_t>(i)];
      p.name = std::to_string(i);
      p.index = i;
      p.grad = Tensor(*backend, Shape{1}, DType::kFloat32);
      const Tensor saved = x.value();
      x = tape.record("layer", Tensor(*backend, shape, DType::kFloat32), {x}, {&p},
                      [saved](Gradients& g) {
                        (void)g.output();
                        g.parameter(0);
                        if (g.wants(0)) g.set(0, Tensor(g.backend(), saved.shape(), saved.dtype()));
                      });
    }
    x = tape.record("sum", Tensor(*backend, Shape{}, DType::kFloat32), {x}, {},
                    [shape](Gradients& g) {
                      (void)g.output();
                      g.set(0, Tensor(g.backend(), shape, DType::kFloat32));
                    });
    // the last output is not saved by anyone
    CHECK(backend->memory_stats().in_use == before + kNodes * bytes + kNodes * 4 + 4);
    tape.backward(x);
  }
  REQUIRE(in_use.size() == kNodes);
  for (std::size_t i = 0; i + 2 < in_use.size(); ++i) CHECK(in_use[i] == in_use[i + 1] + bytes);
  // What a node saved is gone before the observer is told. The loss and the gradient that the pass
  // starts from, which the tape keeps, stay.
  CHECK(in_use.back() == before + kNodes * 4 + 4 + 4);
  parameters.clear();
  CHECK(backend->memory_stats().in_use == before + 4);
}

TEST_CASE("core/autograd: what can be made again is made once for all nodes that want it") {
  Graph graph;
  Parameter &p = graph.parameter("p", 2), &q = graph.parameter("q", 5);
  int made = 0;
  const auto counted = [&] {
    ++made;
    return graph.scalar(7);
  };
  Variable x = graph.scale(Variable(graph.scalar(3)), p);
  x.set_recompute(counted);
  const auto user = [&](const Variable& from) {
    const Saved saved(from);
    return graph.tape.record("user", graph.scalar(1), {from}, {&q}, [&, saved](Gradients& g) {
      (void)g.output();
      const Tensor numbers = saved.take();
      g.set(0, graph.scalar(value(numbers)));
      if (const auto target = g.parameter(0))
        target.tensor.span<float>()[0] =
            (target.accumulate ? value(target.tensor) : 0.0f) + value(numbers);
    });
  };
  const Variable copy = x;
  graph.tape.backward(graph.add(user(x), user(copy)));
  CHECK(made == 1);
  CHECK(value(q.grad) == 14);
  CHECK(value(p.grad) == 3 * 14);
  // Plain values are kept.
  const Saved plain{Variable(graph.scalar(4))};
  CHECK(value(plain.take()) == 4);
  CHECK_FALSE(Saved().take());
}

TEST_CASE(
    "core/autograd: a gradient written ahead of the backward pass stays, and makes way for a node "
    "that comes before its own") {
  for (const bool other_first : {false, true}) {
    CAPTURE(other_first);
    Graph graph;
    Parameter& p = graph.parameter("p", 2);
    const Variable x(graph.scalar(3));
    const auto ahead = [&] {
      const std::shared_ptr<Tensor> early = graph.tape.early_gradient(p);
      REQUIRE(early);
      CHECK(early->raw() == p.grad.raw());
      CHECK_FALSE(graph.tape.early_gradient(p));  // it is taken
      early->span<float>()[0] = 100;
      return graph.tape.record("ahead", graph.scalar(0), {}, {&p}, [early](Gradients& g) {
        (void)g.output();
        const auto target = g.parameter(0, early);
        const float sum = value(*early) + (target.accumulate ? value(target.tensor) : 0.0f);
        target.tensor.span<float>()[0] = sum;
      });
    };
    const Variable before = other_first ? ahead() : graph.scale(x, p);
    const Variable after = other_first ? graph.scale(x, p) : ahead();
    graph.tape.backward(graph.add(before, after));
    CHECK(value(p.grad) == 103);
    CHECK(graph.ready == Names{"p"});
    graph.tape.clear();
    CHECK(graph.tape.early_gradient(p));
  }
}

TEST_CASE("core/autograd: a gradient without memory is given some when it is begun") {
  Graph graph;
  Parameter& p = graph.parameter("p", 2);
  p.grad = {};
  int given = 0;
  graph.tape.set_gradient_memory([&](Parameter& parameter) {
    ++given;
    parameter.grad = graph.scalar(1e30f);
  });
  const Variable x(graph.scalar(3));
  graph.tape.backward(graph.add(graph.scale(x, p), graph.scale(x, p)));
  CHECK(given == 1);
  CHECK(value(p.grad) == 6);
}

TEST_CASE("core/autograd: misuse is an internal error that says what happened") {
  Graph graph;
  const Variable plain(graph.scalar(1));
  CHECK(fails(ExitCode::kInternal, "no trainable parameter", [&] { graph.tape.backward(plain); }));
  const Variable wide = graph.tape.leaf(Tensor(graph.backend, Shape{2}, DType::kFloat32));
  CHECK(fails(ExitCode::kInternal, "from a scalar", [&] { graph.tape.backward(wide); }));
  Parameter lost;
  lost.name = "fc.weight";
  CHECK(fails(ExitCode::kInternal, "fc.weight",
              [&] { graph.tape.record("x", graph.scalar(1), {}, {&lost}, nullptr); }));
  Parameter& bare = graph.parameter("bare", 1);
  bare.grad = {};
  const Variable loss = graph.scale(plain, bare);
  CHECK(fails(ExitCode::kInternal, "bare has no gradient memory",
              [&] { graph.tape.backward(loss); }));
}

TEST_CASE("core/autograd: a pass that throws or is cleared leaves no trace in the next") {
  Graph graph;
  Parameter& p = graph.parameter("p", 2);
  const Variable x(graph.scalar(3));
  graph.scale(x, p);
  graph.tape.clear();
  CHECK(graph.tape.nodes() == 0);
  graph.tape.backward(graph.scale(x, p));
  CHECK(value(p.grad) == 3);
  CHECK(graph.ready == Names{"p"});

  const Variable thrower =
      graph.tape.record("bad", graph.scalar(1), {graph.scale(x, p)}, {},
                        [](Gradients&) { fail(ExitCode::kInternal, "test", "thrown on purpose"); });
  CHECK_THROWS_AS(graph.tape.backward(thrower), Error);
  graph.tape.clear();
  graph.ready.clear();
  graph.tape.backward(graph.scale(x, p));
  CHECK(graph.ready == Names{"p"});
}

TEST_CASE("core/autograd: a pass without a tape records nothing") {
  Graph graph;
  Parameter& p = graph.parameter("p", 2);
  Pass pass{graph.backend};
  CHECK_FALSE(pass.record("x", graph.scalar(1), {}, {&p}, nullptr).requires_grad());
  pass.tape = &graph.tape;
  CHECK(pass.record("x", graph.scalar(1), {}, {&p}, nullptr).requires_grad());
}
