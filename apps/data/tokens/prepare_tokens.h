#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/data/shards/prepare_images.h"
#include "apps/data/tokens/texts.h"

namespace starling {

/// Settings of `starling-prepare tokens`.
struct TokensOptions {
  std::vector<std::string> texts;  ///< files, or folders of files
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
/// Writes the texts' tokens to destination/train.bin and, the last of them, val.bin, with
/// meta.json, and tokenizer.json unless tokens are bytes. The result does not depend on the number
/// of threads. Existing files are replaced only when all is written. `watch` gets progress in MB,
/// and warnings about invalid UTF-8.
TokensReport prepare_tokens(const TokensOptions& options, const PrepareWatch& watch);

/// Whether a folder has token files written by starling-prepare.
bool has_tokens(const std::string& folder);
/// Compares the files with meta.json; watch.bad is called for each mismatch. Records are tokens.
CheckReport check_tokens(const std::string& folder, const PrepareWatch& watch);

/// Settings of `starling-prepare tokenizer`.
struct TokenizerOptions {
  std::vector<std::string> texts;
  std::string out, pattern = "gpt2", field = {};
  std::int64_t vocab = 4096;
  std::vector<std::string> special = {};
  int threads = 1;
};
/// Trains a tokenizer on the texts and writes it. `watch` gets progress in tokens; reports the
/// vocabulary.
TokensReport train_tokenizer(const TokenizerOptions& options, const PrepareWatch& watch);

}  // namespace starling
