// Runs that end at a test, as tests no longer become better.
#include "apps/training/state/early_stopping.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/apps/class_table.h"
#include "tests/apps/program.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

using test::make_table;
using test::Program;

}  // namespace

TEST_CASE("early stopping: so many tests in a row without a better one") {
  EarlyStopping falling({{.metric = "test_loss", .rises = false}, 2, 0.1});
  const auto test = [](EarlyStopping& early, double value, std::int64_t step) {
    return early.ends({{"accuracy", 0.5, true}, {"loss", value}}, step);
  };
  CHECK_FALSE(test(falling, 1.0, 1));
  CHECK_FALSE(test(falling, 0.95, 2));  // not by enough
  CHECK(falling.may_end());
  CHECK_FALSE(test(falling, 0.85, 3));  // counts from the best, not from the one before
  CHECK(falling.best_step() == 3);
  CHECK_FALSE(test(falling, std::nan(""), 4));
  EarlyStopping again({{.metric = "test_loss", .rises = false}, 2, 0.1});
  again.read(falling.text(), "test");
  CHECK(again.text() == falling.text());
  CHECK_FALSE(test(falling, 0.8, 5));  // what is no number was no test
  CHECK(test(falling, 0.8, 6));
  CHECK(falling.ended());
  CHECK_FALSE(test(again, 0.7, 5));
  EarlyStopping rising({{.metric = "test_loss", .rises = true}, 1, 0.0});
  rising.read(falling.text(), "test");
  CHECK(rising.ended());
  EarlyStopping other({{.metric = "test_accuracy", .rises = true}, 1, 0.0});
  other.read(falling.text(), "test");
  CHECK(other.best_step() == -1);
  CHECK_FALSE(test(other, 0.0, 6));
  CHECK(test(other, 0.0, 7));  // as good is no better
  CHECK(test::fails(ExitCode::kUsage, "early_stopping", [&] { other.read("{", "file"); }));
}

TEST_CASE("early stopping: all ranks end at the same test, and a resume counts on") {
  const Program program;
  make_table(program);
  // At a rate of 0 no test is better than the first.
  program.play(R"table(
let early = early_stopping={"patience": 3} | optimizer.lr=0 | unused_parameters=allow
0 2 | an end | stopped early after step 8 of 20: 3 tests in a row without a better test_accuracy; the best was 0\.[0-9]+, after step 2 | run.json --output run | $early | ema={"decay": 0.5}
has run/model.safetensors run/model.ema.safetensors run/checkpoints/step-8/DONE
lacks run/checkpoints/step-20
line run/summary.json "planned_steps": 20
line run/summary.json "steps": 8
0 2 | of an ended run nothing is left | stopped early after step 8 | run.json --output run --resume latest | $early | ema={"decay": 0.5}
0 2 | a part | done | run.json --output part | $early | steps=6
0 2 | counts on | stopped early after step 8 | run.json --output part --resume latest | $early
same run part
0 2 | with more patience | stopped early after step 12 | run.json --output part --resume latest | $early | early_stopping.patience=5
0 2 | without it | done | run.json --output part --resume latest | optimizer.lr=0 | unused_parameters=allow
unsaid stopped early
has part/checkpoints/step-20/DONE
0 3 | with other ranks | stopped early after step 8 | run.json --resume run --elastic | $early | ema={"decay": 0.5}
0 2 | a loss that falls is better | done | run.json --output falls | early_stopping={"metric": "test_loss", "patience": 20}
0 2 | a better one the other way round | stopped early after step [0-9]+ of 20: 1 test in a row without a better test_loss \(by more than 10\) | run.json --output worse | early_stopping={"metric": "test_loss", "mode": "max", "min_delta": 10}
)table");
  make_table(program);
  program.play(R"table(
2 1 | a metric that tests do not have | early_stopping\.metric: unknown value 'test_acuracy'; did you mean 'test_accuracy' | early_stopping={"metric": "test_acuracy"}
2 1 | no tests | early_stopping: goes by tests, of which there is one at the end alone | early_stopping={} | evaluate.every_steps=0 | evaluate.every_epochs=0
2 1 | a best model of no tests | checkpoint\.best: goes by tests, and the data set has no test samples | checkpoint.best=true | data.val_fraction=0
0 1 | by default the first share | "metric": "test_accuracy" | early_stopping={}
0 1 | of numbers the first | "metric": "test_loss" | early_stopping={} | data.path=n.csv | data.target=number | task.type=regression
)table",
               "run.json --dry-run --json");
}

}  // namespace starling
