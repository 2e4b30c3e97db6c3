#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "apps/training/tasks/confusion.h"
#include "tests/apps/program.h"

namespace starling::test {

/// Counts by class, a row of `classes` predicted ones and one for those without a number each.
inline Confusions confusions_of(std::int64_t classes, const std::vector<int>& table) {
  Confusions result{.classes = classes};
  for (std::int64_t i = 0; i < std::ssize(table); ++i) {
    if (const int count = table[static_cast<std::size_t>(i)]; count > 0)
      result.counts[{i / (classes + 1), i % (classes + 1)}] = count;
  }
  return result;
}

/// t.csv, a table of 120 rows in three classes of 96, 16 and 8, with an empty line in it; n.csv, of
/// numbers; and run.json, a run on the first.
inline void make_table(const Program& program) {
  std::string table = "x,y,kind,number\n";
  for (int r = 0; r < 120; ++r) {
    const char* kind = r % 15 == 5 ? "tiny" : r % 15 == 3 || r % 15 == 9 ? "small" : "a, big";
    const int centre = r % 15 == 5 ? 4 : r % 15 == 3 || r % 15 == 9 ? 2 : 0;
    table += fmt::format("{},{},\"{}\",{}\n{}", (r * 37 % 120) * 0.02 + centre, r * 53 % 120, kind,
                         r, r == 50 ? "\n" : "");
  }
  program.write("t.csv", table);
  program.write("n.csv",
                "x,number\n1,2\n2,3\n3,5\n4,8\n5,9\n6,11\n7,15\n8,16\n9,17\n10,18\n11,21\n12,22\n");
  program.write("run.json", R"({
    "data": {"type": "csv", "path": "t.csv", "target": "kind", "val_fraction": 0.25},
    "task": {"type": "classification"}, "model": {"type": "mlp", "hidden": [8]},
    "batch_size": 6, "steps": 20, "optimizer": {"type": "adamw", "lr": 0.02}, "threads": 1,
    "log_every": 1, "tensorboard": false, "evaluate": {"every_steps": 2},
    "checkpoint": {"every_epochs": 0}, "sync": {"transport": "mpi"}})");
}

}  // namespace starling::test
