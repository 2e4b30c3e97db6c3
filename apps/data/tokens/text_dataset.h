#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/text/tokenizer.h"
#include "core/error.h"

namespace starling {

/// Calls `work`; names the key in its errors.
template <class Work>
auto of_key(const char* key, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    if (parts.where.key.empty()) parts.where.key = key;
    throw Error(error.code(), std::move(parts));
  }
}

/// Base of data sets of texts as tokens: their files, limits, tensors and tokenizer.
class TextDataset : public Dataset {
 public:
  DatasetInfo info() const override { return info_; }
  bool countable() const override { return true; }
  void use_only_tests() override { only_tests_ = true; }

 protected:
  using Paths = std::vector<std::string>;
  using FilesOf = std::function<Paths(const Paths&)>;

  TextDataset() { info_.task = "language_model"; }
  /// Reads `path` and `val_path`, each a text or a list of texts; `sample`: the value of `path` in
  /// sample configs, `missing`: what it should be.
  void read_paths(ConfigSection& section, const char* path_doc, const char* sample,
                  const char* val_path_doc, const char* missing);
  /// Samples have "tokens" and "targets", and with positions_ "positions".
  void set_vocab(std::int64_t vocab);
  /// Training files need not be read: only tests are wanted, and they have their own files.
  bool train_is_left_out() const { return only_tests_ && !val_paths_.empty(); }
  /// The files of val_path; none without it. Errors name the key.
  Paths test_files(const FilesOf& files_of) const;
  /// The files of `path` without `tests`, which must not be trained on; counts these in left_out_.
  /// Error(kUsage) if a file is named in both, or nothing is left of a folder.
  Paths training_files(const Paths& tests, const FilesOf& files_of);
  /// Makes model files record the tokenizer.
  void describe_tokenizer();
  /// The tokenizer that a model file keeps; null: none. Error(kUsage) if it is another than
  /// tokenizer_.
  std::shared_ptr<const Tokenizer> tokenizer_of_model(const SafetensorsFile& file,
                                                      const std::string& source) const;

  Paths paths_, val_paths_;
  bool positions_ = false;  ///< attention and positions stay within parts of a sample
  bool only_tests_ = false;
  std::int64_t length_ = 1;  ///< tokens of a sample
  std::int64_t limit_ = 0, test_limit_ = 0;
  std::int64_t left_out_ = 0;  ///< test files found in training folders, which are skipped
  DatasetInfo info_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

/// Samples that lie in rows one behind the other.
struct Rows {
  std::vector<std::int64_t> members;    ///< of all rows
  std::vector<std::int64_t> begins{0};  ///< of a row's members, and after the last their number
  std::int64_t size() const { return std::ssize(begins) - 1; }
  std::span<const std::int64_t> of(std::int64_t row) const {
    const auto at = static_cast<std::size_t>(row);
    return std::span(members).subspan(static_cast<std::size_t>(begins[at]),
                                      static_cast<std::size_t>(begins[at + 1] - begins[at]));
  }
};

/// Puts samples into rows of `room` tokens, in their order each into the first that has room (first
/// fit), of the kOpenRows that were opened last. `length`: tokens of a sample, at most `room`.
Rows pack(std::span<const std::int64_t> order,
          const std::function<std::int64_t(std::int64_t sample)>& length, std::int64_t room);
inline constexpr std::size_t kOpenRows = 128;

}  // namespace starling
