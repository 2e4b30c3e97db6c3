#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/pattern.h"
#include "apps/text/tokenizer.h"

namespace starling {

/// Error(kUsage) for special tokens of which no file of Hugging Face's could keep both what they
/// are and what else it has: one that is given twice, empty, no UTF-8, a byte, or written in the
/// letters that stand for other bytes.
void check_special_tokens(const std::vector<std::string>& special);

/// Makes a tokenizer of byte-level BPE from texts: again and again the two tokens that stand next
/// to each other most often become one; of equally frequent ones those of the lowest numbers, as in
/// Hugging Face's BpeTrainer. The same texts give the same tokenizer on any number of threads.
class BpeTrainer {
 public:
  /// `pattern`: a name of known_pattern().
  explicit BpeTrainer(const std::string& pattern);

  /// Counts a text's words.
  void add(std::string_view text, const Tokenizer::Loop& loop);
  /// Special tokens have the first numbers, the 256 bytes follow, then what pairs become. Fewer
  /// than `vocab` tokens where no pair comes twice any more. goes_on(tokens so far) now and then;
  /// false ends it, and null is returned.
  std::shared_ptr<const Tokenizer> train(std::int64_t vocab,
                                         const std::vector<std::string>& special,
                                         const std::function<bool(std::int64_t)>& goes_on) const;

 private:
  std::string pattern_;
  Division division_;
  TextMap<std::int64_t> counts_;  ///< by word
};

}  // namespace starling
