// What a plug-in's parts may get wrong, each with one mistake that the config chooses: all of it is
// told where it was made.
#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include <starling/algorithm.h>
#include <starling/data.h>
#include <starling/layer.h>
#include <starling/operation.h>
#include <starling/schedule.h>
#include <starling/task.h>

#include "apps/training/config/plugins.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

std::string mistake_of(ConfigSection& section) { return section.text("mistake", "none", ""); }

/// y = x. Of its passes one, 3 · 2 ranks + rank 1 = 7, makes something else.
class BadLayer final : public Layer {
 public:
  explicit BadLayer(std::string mistake) : mistake_(std::move(mistake)) {}

 protected:
  Shape build(const Shape& input) override { return input; }
  Variable compute(const Variable& x, Pass& pass) override {
    const bool now = pass.dropout_counter >> 24 == 7;
    if (mistake_ == "throws") throw std::out_of_range("too far");
    const auto changed = [](const Tensor& numbers, double factor) {
      Tensor result(numbers.backend(), numbers.shape(), numbers.dtype());
      numbers.backend().weighted_sum(
          {.in = {numbers}, .weight = {factor}, .terms = 1, .out = result});
      return result;
    };
    const double infinite = std::numeric_limits<double>::infinity();
    return pass.record(
        "bad", changed(x.value(), now && mistake_ == "output" ? infinite : 1.0), {x}, {},
        [=, mistake = mistake_](Gradients& gradients) {
          if (mistake == "silent") return;
          gradients.set(0, changed(gradients.output(), mistake == "half"              ? 0.5
                                                       : now && mistake == "gradient" ? infinite
                                                                                      : 1.0));
        });
  }

 private:
  std::string mistake_;
};

class BadSampler final : public Sampler {
 public:
  explicit BadSampler(std::string mistake) : mistake_(std::move(mistake)) {}
  std::vector<std::int64_t> epoch(const EpochInputs& inputs) const override {
    if (mistake_ == "throws") throw std::runtime_error("no order");
    std::vector<std::int64_t> own;
    for (std::int64_t i = mistake_ == "alike" ? 0 : inputs.rank; i < inputs.samples;
         i += inputs.ranks)
      own.push_back(i);
    if (mistake_ == "beyond") own[3] = inputs.samples;
    if (mistake_ == "below") own[3] = -1;
    if (mistake_ == "twice") own[3] = own[2];
    if (mistake_ == "few") own.resize(5);
    return own;
  }

 private:
  std::string mistake_;
};

class BadSchedule final : public Schedule {
 public:
  explicit BadSchedule(std::string mistake) : mistake_(std::move(mistake)) {}
  double lr(std::int64_t t) const override {
    if (mistake_ == "middle" && t == 3) return std::numeric_limits<double>::quiet_NaN();
    return mistake_ == "end" && t > 5 ? -0.5 : 0.1;
  }

 private:
  std::string mistake_;
};

/// Σ of the outputs, which records its way back itself.
class BadLoss final : public Loss {
 public:
  explicit BadLoss(std::string mistake) : mistake_(std::move(mistake)) {}
  Variable value(const Variable& outputs, const Tensor&, double, Pass& pass) const override {
    if (mistake_ == "throws") throw std::runtime_error("no loss");
    const Tensor sum(pass.backend, mistake_ == "several" ? Shape{2} : Shape{1}, outputs.dtype());
    pass.backend.fill(sum, 0.0);
    pass.backend.reduce({outputs.value(), sum.slice(0, Shape{1})});
    return pass.record("bad", sum, {outputs}, {},
                       [this, x = outputs.value()](Gradients& gradients) {
                         const Tensor dx(gradients.backend(), x.shape(), x.dtype());
                         gradients.backend().fill(dx, 1.0);
                         if (mistake_ != "forgets") {
                           const Tensor dy = gradients.output();
                           gradients.backend().map({MapFunction::kMultiply, dx, dy, dx});
                         }
                         gradients.set(0, dx);
                       });
  }

 private:
  std::string mistake_;
};

class Loud final : public Metric {
 public:
  std::int64_t sums() const override { return 1; }
  void add(const Task&, const TaskOutput&, const Tensor&, Pass&) const override {}
  std::vector<MetricValue> values(std::span<const double>, double) const override {
    return {{"accuracy", 0.0}};
  }
};

/// Updates nothing.
class Idle final : public Algorithm {
 public:
  Idle(const AlgorithmSite& site, bool throws) : Algorithm(site), throws_(throws) {}
  void begin(const StepInfo&) override {}
  void bucket_ready(int) override {
    if (throws_) throw 7;
  }
  void backward_done() override {}
  void finish() override {}
  void resume(std::int64_t) override {}

 private:
  bool throws_;
};

AlgorithmPlan bad_plan(ConfigSection& section) {
  const std::string mistake = mistake_of(section);
  if (mistake == "empty") return {};
  return {.states = {{mistake == "nameless" ? "" : "a"}, {mistake == "alike" ? "a" : "b"}},
          .make = [mistake](const AlgorithmSite& site) -> std::unique_ptr<Algorithm> {
            if (mistake == "null") return nullptr;
            return std::make_unique<Idle>(site, mistake == "throws");
          }};
}

Program bad_program() {
  register_builtins();
  static const bool once = [] {
    const PluginScope registering("./libbad.so");
    layers().add("bad", [](ConfigSection& section) {
      return std::make_unique<BadLayer>(mistake_of(section));
    });
    samplers().add("bad", [](ConfigSection& section) {
      return std::make_unique<BadSampler>(mistake_of(section));
    });
    schedules().add("bad", [](ConfigSection& section, const ScheduleInputs&) {
      return std::make_unique<BadSchedule>(mistake_of(section));
    });
    losses().add("bad", [](ConfigSection& section) {
      return std::make_unique<BadLoss>(mistake_of(section));
    });
    metrics().add("bad", [](std::int64_t) { return std::make_unique<Loud>(); });
    algorithms().add("bad", bad_plan);
    return true;
  }();
  static_cast<void>(once);
  return {};
}

std::string bad_config() {
  return test::short_config(
      R"({"type": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "out_features": 8}, {"type": "bad"},
    {"type": "linear", "out_features": 10}]})",
      R"("batch_size": 4, "steps": 8, "optimizer": {"lr": 0.01}, "sync": {"transport": "mpi"},)");
}

TEST_CASE("plugin parts: each mistake is told by who made it, where and when") {
  const Program program = bad_program();
  program.write("bad.json", bad_config());
  // Of another version, and of nobody knows which. Neither is opened.
  program.write(
      "libother.so",
      "\x7f"
      "ELF \x01starling: what this file was compiled with\n0123\nlibstdc++\n0.0.9\nabc\nGCC 1.2\n");
  program.write("libnone.so",
                "\x7f"
                "ELF");
  program.play(R"table(
0 2 | without mistakes | done
2 1 | other headers | libother.so was compiled with other headers.*starling 0\.0\.9 \(commit abc, headers 0123\), GCC 1\.2.*; build it again | plugins=["./libother.so"]
2 1 | nothing said | libnone.so does not say what it was compiled with.*starling_add_plugin | plugins=["./libnone.so"]
1 1 | a layer that throws | \[layer\] 2: std::out_of_range: too far | model.layers.2.mistake=throws
2 1 | no gradient goes on | 1\.weight.* gets no gradient, and layer 2 \(backward of bad\) hands none on | model.layers.2.mistake=silent
2 2 | a sample beyond | \[sampler\] bad of \./libbad\.so, epoch 0 of rank [01]: place 3 has sample 1024; the training samples are 0 to 1023 | data.sampler={"type": "bad", "mistake": "beyond"}
2 2 | a sample below | place 3 has sample -1 | data.sampler={"type": "bad", "mistake": "below"}
2 2 | a sample twice | place 3 has sample [45] again | data.sampler={"type": "bad", "mistake": "twice"}
2 2 | the same for all | epoch 0: ranks 0 and 1 both have sample 0; | data.sampler={"type": "bad", "mistake": "alike"}
2 2 | too few | 5 samples; the batches need 512 | data.sampler={"type": "bad", "mistake": "few"}
1 2 | a sampler that throws | \[sampler\] bad of \./libbad\.so, epoch 0 of rank [01]: std::runtime_error: no order | data.sampler={"type": "bad", "mistake": "throws"}
2 1 | no rate | \[schedule\] bad of \./libbad\.so: the rate of update 3 is nan; | schedule={"type": "bad", "mistake": "middle"}
2 1 | a negative rate | \[schedule\] bad of \./libbad\.so: the rate of update 6 is -0.5; | schedule={"type": "bad", "mistake": "end"}
2 1 | a loss that forgets the output's gradient | \[layer\] loss bad of \./libbad\.so \(backward of bad\): \[gradient\] that of the output is not looked at; by it, Gradients::output\(\), what is handed on is to be multiplied | loss={"type": "bad", "mistake": "forgets"}
2 1 | a loss of two numbers | \[loss\] bad of \./libbad\.so: its value is 2; it must be one number | loss={"type": "bad", "mistake": "several"}
1 1 | a loss that throws | \[loss\] bad of \./libbad\.so: std::runtime_error: no loss | loss={"type": "bad", "mistake": "throws"}
2 1 | two metrics of one name | task\.metrics: classification and bad of \./libbad\.so both give a number named 'accuracy' | task.metrics=["classification", "bad"]
2 1 | a plan without make | sync\.algorithm\.type: bad of \./libbad\.so gives a plan without `make` | sync.algorithm={"type": "bad", "mistake": "empty"}
2 1 | an algorithm that is null | the plan of bad of \./libbad\.so makes null | sync.algorithm={"type": "bad", "mistake": "null"}
2 1 | states without names | sync\.algorithm\.type: bad of \./libbad\.so keeps states of which two are named '', or one has no name | sync.algorithm={"type": "bad", "mistake": "nameless"}
2 1 | states of one name | two are named 'a' | sync.algorithm={"type": "bad", "mistake": "alike"}
1 1 | an algorithm that throws | \[algorithm\] step 0, bucket 0: an exception of type int | sync.algorithm={"type": "bad", "mistake": "throws"}
2 2 | nothing is updated | \[algorithm\] bad: after 8 steps bucket 0 is as it was, though its parameter [13]\.[a-z]+ has a gradient | sync.algorithm=bad
0 2 | which is right at a rate of 0 | done | sync.algorithm=bad | optimizer.lr=0
)table",
               "bad.json");
}

TEST_CASE(
    "plugin parts: check_numbers names the first that is not finite, and --check-gradients the "
    "gradient that is off") {
  const Program program = bad_program();
  program.write("bad.json", bad_config());
  program.play(R"table(
0 2 | all are finite | done | check_numbers=true
4 2 | an output | \[numbers\] 2: its output in step 4 on rank 1 has 32 of 32 numbers that are not finite, the first (-?inf|-?nan) at 0; | check_numbers=true | model.layers.2.mistake=output
4 2 | a gradient | \[numbers\] 2: its gradient of its input in step 4 on rank 1 has 32 | check_numbers=true | model.layers.2.mistake=gradient
4 1 | a parameter | \[numbers\] 1\.weight: the parameter in step 2 on rank 0 has | check_numbers=true | optimizer.lr=1e300
4 1 | unwatched, the loss alone tells | training diverged: the loss of step | optimizer.lr=1e300
)table",
               "bad.json");
  program.play(R"table(
0 2 | right gradients | 3 +right +input [0-9.e-]+, 3\.weight [0-9.e-]+, 3\.bias
0 1 | the loss too | loss +right +input
4 1 | half of one | \[gradients\] 2: the gradient of its input is off by 0?\.?[0-9e+-]+ of its norm; .* to 1e-05 | model.layers.2.mistake=half
)table",
               "bad.json --check-gradients");
}

}  // namespace
}  // namespace starling
