#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/folder.h"

namespace starling::test {

/// How a program ended, and what it said.
struct Ended {
  int status = 0;
  std::string out, err;
};

/// Whether a line of the text matches the extended regular expression, as grep -E has it.
bool matches(const std::string& text, const std::string& pattern);

/// starling-train from arguments to exit status in this process, its ranks being threads, in a
/// working folder of its own: what needs no process is tested so, in milliseconds. Not here:
/// signals, lost ranks and flight records. A rank that fails by itself ends the others' waits with
/// sync.transport mpi alone.
class Program {
 public:
  Program();
  ~Program();

  using Arguments = std::vector<std::string>;
  /// One rank for each list of arguments.
  Ended train(const std::vector<Arguments>& of_ranks) const;
  /// `command`: words, such as "run.json --dry-run"; `settings`: what follows --set.
  Ended train(int ranks, const std::string& command, const Arguments& settings = {}) const;
  /// Runs the program, which ends with this status; a line of what it says matches the pattern, and
  /// an error is one line.
  Ended check(const std::string& name, int ranks, int status, const std::string& pattern,
              const std::string& command, const Arguments& settings = {}) const;
  /// A line of `story` is such a check, or what is done or looked at between two:
  ///   status ranks | name | pattern | command | setting | setting …
  ///   let name = setting | setting …          for which $name stands as a setting
  ///   same a b, differ a b, losses a b        two runs' models, and losses
  ///   alike file file, has path…, lacks path…, line file pattern, said lines, unsaid text (by the
  ///                                           last command)
  ///   copy from to, forget folder step…, write file text, cut file bytes, flip file tensor,
  ///   remove path…, folder path, pipe path
  /// `command`: of all checks, which have no such column then; `prefixes`: what their first
  /// settings begin with. Returns the last one's end.
  Ended play(const std::string& story, const std::string& command = "",
             const std::vector<std::string>& prefixes = {}) const;

  std::string write(const std::string& name, const std::string& content) const {
    return folder_.write(name, content);
  }
  std::string read(const std::string& name) const { return folder_.read(name); }
  /// The summary.json of an output folder.
  nlohmann::json summary(const std::string& folder) const;
  /// The lines of its metrics.jsonl that have this key.
  std::vector<nlohmann::json> metrics(const std::string& folder, const std::string& key) const;
  /// The repository: the tests' working folder is tests/.
  std::string root() const { return std::filesystem::path(before_).parent_path().string(); }

 private:
  Folder folder_;
  std::string before_;  ///< the working folder to come back to
};

/// The JSON that a program printed last: the numbers of a test.
nlohmann::json last_line(const Ended& ended);
/// Whether the tensors of two .safetensors files have the same bits. Their metadata say by what
/// config they were trained.
bool same_model(const std::string& a, const std::string& b);
/// The training losses of an output folder, as "step loss" lines.
std::string losses(const std::string& folder);

/// The text of a short run on made-up images, with a loss a step; `keys` are more lines.
std::string short_config(const std::string& model, const std::string& keys);

}  // namespace starling::test
