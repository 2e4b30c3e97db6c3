#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/data/shards/prepare_images.h"
#include "apps/data/tokens/texts.h"

namespace starling {

/// Settings of `starling-prepare tokens`.
struct TokensOptions {
  std::vector<std::string> texts;  ///< files, and folders of files
  std::string destination;
  std::string tokenizer = "bytes", pattern = {};  ///< see Tokenizer::read
  std::string field = {}, separator = {};         ///< see each_texts(), encode_texts()
  double val_fraction = 0.1;
  int threads = 1;
};
struct TokensReport {
  std::int64_t vocab = 0, train_tokens = 0, val_tokens = 0;
  TextCount count = {};
  bool stopped = false;
};
/// Writes the tokens of the texts, one after another: destination/train.bin and val.bin (the last
/// of them), meta.json, and tokenizer.json where tokens are no bytes. The bytes are the same for
/// any number of threads. What was there stays until all is made. `watch` counts MB, and hears of
/// texts that are no UTF-8.
TokensReport prepare_tokens(const TokensOptions& options, const PrepareWatch& watch);

struct TokensCheck {
  std::int64_t tokens = 0, faults = 0;
  bool stopped = false;
};
/// Whether a folder holds token files that starling-prepare has written.
bool has_tokens(const std::string& folder);
/// Compares them with meta.json; watch.bad hears of each fault.
TokensCheck check_tokens(const std::string& folder, const PrepareWatch& watch);

/// Settings of `starling-prepare tokenizer`.
struct TokenizerOptions {
  std::vector<std::string> texts;
  std::string out, pattern = "gpt2", field = {};
  std::int64_t vocab = 4096;
  std::vector<std::string> special = {};
  int threads = 1;
};
struct TokenizerReport {
  std::int64_t vocab = 0;
  bool stopped = false;
};
/// Trains a tokenizer of the texts and writes it. `watch` counts tokens.
TokenizerReport train_tokenizer(const TokenizerOptions& options, const PrepareWatch& watch);

}  // namespace starling
