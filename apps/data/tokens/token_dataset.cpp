// Data sets of token windows, whose targets are the same window one token further: from text files,
// and from token files as nanoGPT, llm.c and starling-prepare write them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/builtin.h"
#include "apps/data/drawn_tests.h"
#include "apps/data/tokens/text_dataset.h"
#include "apps/data/tokens/texts.h"
#include "apps/data/tokens/token_files.h"
#include "apps/data/workers.h"
#include "apps/inference/companions.h"
#include "apps/inference/description.h"
#include "apps/text/tokenizer.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {
namespace {

/// A crc32 that is fast to compute: of all bytes of a small file, of samples of a large one (fewer
/// if there are many `files`), and of its size.
std::uint32_t quick_checksum(const MappedFile& file, std::uint32_t before, std::size_t files = 1) {
  constexpr std::size_t kWhole = std::size_t{64} << 20, kPieces = 1024, kPiece = kWhole / kPieces;
  const auto bytes = file.bytes();
  const std::uint64_t size = bytes.size();
  std::uint32_t sum = checksum_of(bytes_of(size), before);
  const std::size_t pieces =
      std::max<std::size_t>(2 * kPieces / std::max<std::size_t>(files, 2), 1);
  const std::size_t step = std::max(bytes.size() / pieces, kPiece);
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    const std::size_t count = std::min(kPiece, bytes.size() - at);
    file.bring(at, count);
    sum = checksum_of(bytes.subspan(at, count), sum);
  }
  return sum;
}

/// Base of both data sets: N tokens give ⌊(N - 1) / T⌋ samples; sample i has tokens i T to (i + 1)
/// T.
class Windows : public TextDataset {
 public:
  Windows() { info_.all_count = true; }

  void use_model(const SafetensorsFile& file, const std::string& source) override {
    const auto theirs = tokenizer_of_model(file, source);
    if (theirs && !tokenizer_) set_tokenizer(theirs);
  }
  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    thread_local std::vector<std::int32_t> window;
    window.resize(static_cast<std::size_t>(length_ + 1));
    fetch(begin_of(split, index), window);
    const std::size_t bytes = static_cast<std::size_t>(length_) * sizeof(std::int32_t);
    std::memcpy(out[0], window.data(), bytes);
    std::memcpy(out[1], window.data() + 1, bytes);
    if (!positions_) return;
    std::int32_t position = -1;
    for (std::size_t t = 0; t + 1 < window.size(); ++t) {
      const bool begins = t > 0 && std::ranges::count(ends_, window[t - 1]) > 0;
      position = begins ? 0 : position + 1;
      std::memcpy(out[2] + t * sizeof position, &position, sizeof position);
    }
  }
  void will_read(Split split, std::span<const std::int64_t> indices) const override {
    for (const std::int64_t index : indices) {
      each_part(begin_of(split, index), length_ + 1,
                [](const Part& part, std::int64_t at, std::int64_t count) {
                  if (part.file) part.file->will_read(part.byte(at), part.bytes(count));
                });
    }
  }
  std::string name(Split split, std::int64_t index) const override {
    const std::int64_t begin = begin_of(split, index);
    const Part& part = parts_[part_of(begin)];
    return fmt::format("{}: tokens {} to {}", part.name, begin - part.first,
                       begin - part.first + length_ - 1);
  }

 protected:
  /// A contiguous range of tokens.
  struct Part {
    std::string name;
    TokenSpan tokens;
    const MappedFile* file = nullptr;  ///< that contains them; null: other memory
    std::int64_t first = 0;            ///< the number of tokens in the parts before

    /// The offset of a token in its file.
    std::size_t byte(std::int64_t at) const {
      return static_cast<std::size_t>(tokens.data - file->bytes().data() + at * tokens.width);
    }
    std::size_t bytes(std::int64_t count) const {
      return static_cast<std::size_t>(count * tokens.width);
    }
  };

  /// Reads the keys that both data sets have. `files_of` expands paths, with errors for missing
  /// files.
  void read_keys(ConfigSection& section, const char* path_doc, const char* sample_path,
                 const char* val_path_doc, Paths (*files_of)(const Paths&)) {
    read_paths(section, path_doc, sample_path, val_path_doc, "files or folders");
    try {
      length_ = section.required_integer("sequence_length", Range::closed(1, 1 << 24),
                                         "tokens of a sample, at most the model's context");
    } catch (const Error&) {  // report a wrong file name before other errors
      (void)of_key("data.path", [&] { return files_of(paths_); });
      (void)test_files(files_of);
      throw;
    }
    section.read("documents", positions_,
                 "attention and positions stay between two tokens that end a text: `separator`, or "
                 "the tokenizer's eos");
    read_limits(section, limit_, test_limit_);
  }
  std::int64_t vocab() const { return info_.tensors[0].classes; }
  void add_part(std::string name, const TokenSpan& tokens, const MappedFile* file) {
    if (tokens.count == 0) return;
    const std::int64_t first = tokens_in_parts();
    parts_.push_back({std::move(name), tokens, file, first});
  }
  std::int64_t tokens_in_parts() const {
    return parts_.empty() ? 0 : parts_.back().first + parts_.back().tokens.count;
  }
  /// Called when all parts are known: the first tokens are for training, the rest for tests.
  /// `more`: further lines of info().contents.
  void finish_parts(std::int64_t train_tokens, const std::string& more) {
    const std::int64_t test_tokens = tokens_in_parts() - train_tokens;
    const auto samples = [&](std::int64_t tokens, std::int64_t limit, const char* what,
                             const std::string& where) {
      if (tokens <= length_) {
        fail(
            ExitCode::kUsage, "data", {.file = where, .key = "data.sequence_length"},
            "is {}, for which {} must have {} tokens or more, and {} {}; use shorter sequences, or "
            "a longer text",
            length_, what, length_ + 1, tokens, tokens == 1 ? "is there" : "are there");
      }
      const std::int64_t all = (tokens - 1) / length_;
      return limit > 0 ? std::min(limit, all) : all;
    };
    train_tokens_ = train_tokens;
    info_.train_samples =
        train_is_left_out() ? 0 : samples(train_tokens, limit_, "training", paths_[0]);
    info_.test_samples = test_tokens == 0 && val_paths_.empty()
                             ? 0
                             : samples(test_tokens, test_limit_, "tests",
                                       (val_paths_.empty() ? paths_ : val_paths_)[0]);
    info_.contents = fmt::format(
        "tokens: {}{} for tests, of a vocabulary of {}{}{}{}\n",
        train_is_left_out() ? "" : fmt::format("{} for training + ", train_tokens), test_tokens,
        vocab(), tokenizer_ ? "" : "; no tokenizer", more,
        left_out_ == 0 ? ""
                       : fmt::format("; {} of val_path {} left out of training",
                                     counted(left_out_, "file"), left_out_ == 1 ? "is" : "are"));
    if (!tokenizer_) return;
    describe_tokenizer();
    std::vector<std::int32_t> targets(static_cast<std::size_t>(length_));
    for (std::int64_t i = 0; i < info_.test_samples; ++i) {
      fetch(begin_of(Split::kTest, i) + 1, targets);
      for (const std::int32_t token : targets)
        *info_.test_bytes += static_cast<double>(tokenizer_->bytes_of(token).size());
    }
  }
  /// With `documents`, the token that ends them; -1: the tokenizer's.
  void set_end(std::int32_t separator) {
    if (!positions_) return;
    ends_ = {separator};
    if (separator < 0 && tokenizer_) ends_ = text_bounds({.tokenizer = tokenizer_->text()}).ends;
    if (ends_.empty() || ends_[0] < 0)
      fail(ExitCode::kUsage, "data", {.key = "data.documents"},
           "is true, but no token is known that ends a text; needed: data.tokenizer with one such "
           "as <|endoftext|>, or for text data.separator");
  }
  /// The number of known tokens; a model may have more than the tokenizer.
  std::int64_t known() const { return tokenizer_ ? tokenizer_->vocab() : vocab(); }
  const char* whose() const { return tokenizer_ ? "the tokenizer" : "data.vocab"; }
  bool is_open() const { return !parts_.empty(); }
  void set_tokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
    tokenizer_ = std::move(tokenizer);
    info_.test_bytes = 0.0;
    for (std::int32_t token = 0; !has_gaps_ && token < tokenizer_->vocab(); ++token)
      has_gaps_ = tokenizer_->bytes_of(token).empty();
  }

 private:
  std::int64_t begin_of(Split split, std::int64_t index) const {
    return (split == Split::kTrain ? 0 : train_tokens_) + index * length_;
  }
  std::size_t part_of(std::int64_t token) const {
    const auto after =
        std::upper_bound(parts_.begin(), parts_.end(), token,
                         [](std::int64_t at, const Part& part) { return at < part.first; });
    return static_cast<std::size_t>(after - parts_.begin()) - 1;
  }
  /// Calls use(part, first token, count) for the parts that contain these tokens.
  template <class Use>
  void each_part(std::int64_t begin, std::int64_t count, const Use& use) const {
    for (std::size_t p = part_of(begin); count > 0; ++p) {
      const std::int64_t at = begin - parts_[p].first,
                         here = std::min(count, parts_[p].tokens.count - at);
      if (here > 0) use(parts_[p], at, here);
      begin += here;
      count -= here;
    }
  }
  void fetch(std::int64_t begin, std::span<std::int32_t> out) const {
    std::int32_t* to = out.data();
    each_part(begin, std::ssize(out), [&](const Part& part, std::int64_t at, std::int64_t count) {
      if (part.file) part.file->bring(part.byte(at), part.bytes(count));
      std::int64_t wrong = part.tokens.read(at, count, known(), to);
      for (std::int64_t i = 0; has_gaps_ && wrong < 0 && i < count; ++i)
        wrong = tokenizer_->bytes_of(to[i]).empty() ? i : -1;
      if (wrong >= 0)
        refuse_token(part.name, at + wrong, part.tokens[at + wrong], known(), whose());
      to += count;
    });
  }

  std::vector<std::int32_t> ends_;  ///< of documents
  std::vector<Part> parts_;
  std::int64_t train_tokens_ = 0;
  bool has_gaps_ = false;  ///< some token numbers are unused
};

class Tokens final : public Windows {
 public:
  Tokens(ConfigSection& section, std::uint64_t) {
    read_keys(section,
              "a folder with train.bin and val.bin, or with others (*.bin), a file, a pattern of "
              "files, or a list of such; required",
              R"("tokens")",
              "the test set, as `path` has it: all of its files, which are left out of training "
              "where they lie in a folder of `path`",
              token_files);
    std::int64_t vocab = section.integer(
        "vocab", 0, Range::closed(0, 1 << 30),
        "how many tokens there are; 0: as meta.json beside the files or the tokenizer says");
    std::string tokenizer =
        section.text("tokenizer", "",
                     "what the numbers mean, for bits per byte and text: `bytes` or a tokenizer's "
                     "file; default: as meta.json says");
    set_vocab(256);
    section.finish();  // before files are opened
    const std::string folder = folder_of(paths_[0]);
    auto meta = meta_of(folder);
    if (tokenizer.empty() && meta) tokenizer = tokenizer_of(*meta, folder);
    if (!tokenizer.empty()) set_tokenizer(Tokenizer::read(tokenizer));
    if (meta && !meta->checksums[meta->tokenizer].empty() && tokenizer.starts_with(folder)) {
      const MappedFile file(tokenizer);
      if (checksum(file.bytes().data(), file.bytes().size()) != meta->checksums[meta->tokenizer])
        fail(ExitCode::kUsage, "data", {.file = tokenizer},
             "is not what {}/meta.json tells of; call starling-prepare tokens again", folder);
    }
    const std::int64_t own = tokenizer_ ? known() : 0;
    if (meta && own != meta->vocab) {
      fail(ExitCode::kUsage, "data", {.file = folder + "/meta.json", .key = "vocab"},
           "is {}, {} has {} tokens; needed: the tokenizer that the files were made with",
           meta->vocab, tokenizer, own);
    }
    if (vocab == 0) vocab = own;
    if (vocab == 0)  // report missing files first
      (void)of_key("data.path", [&] { return token_files(paths_); });
    if (vocab == 0)
      section.error("vocab",
                    "is needed, as there is no {}/meta.json; as many tokens as the files' "
                    "tokenizer has, 50257 for GPT-2's",
                    folder);
    if (vocab < own)
      section.error("vocab", "is {}, {} has {} tokens; allowed: as many or more", vocab, tokenizer,
                    own);
    section.resolve("vocab", vocab);
    set_vocab(vocab);
    set_end(-1);
    constexpr std::int64_t kAssumed = 1'000'000'000;
    if (!Tokens::countable()) info_.train_samples = (kAssumed - 1) / length_;  // for a dry run
  }

  bool countable() const override {
    try {
      return !token_files(paths_).empty();
    } catch (const Error&) {
      return false;
    }
  }
  void open() override {
    if (is_open()) return;
    Paths training, tests = test_files(token_files);
    if (!train_is_left_out()) {
      training = training_files(tests, [&](const Paths& paths) {
        Paths files = token_files(paths);
        const auto named = std::stable_partition(
            files.begin(), files.end(),
            [](const std::string& file) { return !is_named_for_tests(file); });
        if (val_paths_.empty()) tests.insert(tests.end(), named, files.end());
        files.erase(named, files.end());
        return files;
      });
      if (training.empty())
        fail(ExitCode::kUsage, "data", {.key = "data.path"},
             "{} has files for tests alone, by their names; needed: train.bin, or others (*.bin)",
             shown(paths_[0], 200));
    }
    add(training, training.size() + tests.size());
    const std::int64_t train_tokens = tokens_in_parts();
    add(tests, training.size() + tests.size());
    finish_parts(train_tokens, files_.size() <= 2 ? "" : fmt::format("; {} files", files_.size()));
  }

 private:
  static std::string folder_of(const std::string& path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) return path;
    const std::string parent = std::filesystem::path(path).parent_path().string();
    return parent.empty() ? "." : parent;
  }
  /// The meta.json of a file's folder, which describes train.bin and val.bin only.
  static std::optional<TokenMeta> meta_of(const std::string& folder) {
    const bool theirs = file_exists(folder + "/train.bin") || file_exists(folder + "/val.bin");
    return theirs ? TokenMeta::find(folder) : std::nullopt;
  }
  static std::string tokenizer_of(const TokenMeta& meta, const std::string& folder) {
    return meta.tokenizer == "bytes" ? "bytes" : folder + "/" + meta.tokenizer;
  }
  /// Adds the files' tokens, after checking the first ones of each; the more files (`count` in
  /// total), the fewer tokens of each are checked.
  void add(const std::vector<std::string>& paths, std::size_t count) {
    std::uint32_t sum = 0;
    for (const std::string& path : paths) {
      const std::string folder = folder_of(path),
                        name = std::filesystem::path(path).filename().string();
      const std::optional<TokenMeta> meta =
          name == "train.bin" || name == "val.bin" ? meta_of(folder) : std::nullopt;
      if (meta) check_meaning(*meta, folder);
      const TokenFile& file =
          *files_.emplace_back(std::make_unique<TokenFile>(path, vocab(), meta ? meta->width : 0));
      const std::int64_t told = !meta                 ? 0
                                : name == "train.bin" ? meta->train_tokens
                                                      : meta->val_tokens;
      if (meta && file.tokens().count != told)
        fail(ExitCode::kUsage, "data", {.file = path},
             "has {} tokens, {}/meta.json says {}; call starling-prepare tokens again",
             file.tokens().count, folder, told);
      if (meta && name == "train.bin" && meta->val_tokens > 0 && !file_exists(folder + "/val.bin"))
        fail(ExitCode::kUsage, "data", {.file = folder + "/val.bin"},
             "is missing; call starling-prepare tokens again");
      // The rest is checked when it is read
      constexpr std::size_t kCheckedFirst = std::size_t{1} << 25;
      file.check(known(),
                 static_cast<std::int64_t>(kCheckedFirst / std::max<std::size_t>(count / 2, 1)),
                 whose());
      sum = quick_checksum(file.map(), sum, count);
      add_part(path, file.tokens(), &file.map());
    }
    if (paths.size() == 1)
      info_.checksums["tokens of " + std::filesystem::path(paths[0]).filename().string()] = sum;
    else if (!paths.empty())
      info_.checksums["tokens of " + paths.front() + " and others"] = sum;
  }
  /// Error(kUsage) if the files were made by another tokenizer.
  void check_meaning(const TokenMeta& meta, const std::string& folder) const {
    if (!tokenizer_) return;
    const auto other = Tokenizer::read(tokenizer_of(meta, folder));
    if (other->vocab() != known() || !agree(*other, *tokenizer_))
      fail(ExitCode::kUsage, "data", {.file = folder + "/meta.json", .key = "tokenizer"},
           "has {} tokens that are not those ({}) of the training set; needed: files by the same",
           other->vocab(), known());
  }

  std::vector<std::unique_ptr<TokenFile>> files_;
};

/// Text files, concatenated, optionally with a separator.
class Text final : public Windows {
 public:
  Text(ConfigSection& section, std::uint64_t) {
    read_keys(section,
              "files, folders of files or patterns of files, of text, as they are or packed (.gz, "
              ".zst); required",
              R"("text.txt")",
              "the test set: files, or folders of files, all of them; left out of training where "
              "they lie in a folder of `path`",
              [](const Paths& paths) { return text_files(paths); });
    const std::string tokenizer = section.text(
        "tokenizer", "bytes", "`bytes`, or a tokenizer's file, such as tokenizer.json");
    section.read(
        "field", field_,
        "files are JSON lines, and this field of each line is a text; default: a file is a text");
    const std::string separator = section.text(
        "separator", "", "a token behind each text, such as <|endoftext|>; default: none");
    val_fraction_ = read_val_fraction(section, !val_paths_.empty(), 0.1,
                                      "share of the tokens, at the end, that is for tests");
    set_vocab(256);
    section.finish();  // before files are opened
    if (tokenizer != "bytes") others_.push_back(tokenizer);
    set_tokenizer(Tokenizer::read(tokenizer));
    set_vocab(tokenizer_->vocab());
    if (!separator.empty()) separator_ = separator_token(*tokenizer_, separator);
    separator_byte_ = static_cast<std::uint8_t>(separator_);
    set_end(separator_);
  }

  void open() override {
    if (is_open()) return;
    Workers workers(tokenizer_->text() == "bytes" && field_.empty() ? 1 : usable_cores());
    TextCount count;
    const auto files_of = [&](const Paths& paths) { return text_files(paths, others_); };
    const Paths tests = test_files(files_of);
    if (!train_is_left_out()) add(training_files(tests, files_of), "text", workers, count);
    std::int64_t train_tokens = tokens_in_parts();
    if (val_paths_.empty()) {
      train_tokens =
          static_cast<std::int64_t>(static_cast<double>(train_tokens) * (1.0 - val_fraction_));
    } else {
      add(tests, "text of val_path", workers, count);
    }
    const std::string meaning = tokenizer_->text();
    info_.checksums["tokenizer"] = checksum_of(text_bytes(meaning));
    finish_parts(train_tokens, count.text());
  }

 private:
  void add(const Paths& files, const char* what, Workers& workers, TextCount& count) {
    // Settings that change the tokens are part of the checksum, like the files
    std::uint32_t sum = 0;
    if (!field_.empty()) sum = checksum_of(text_bytes(field_));
    if (separator_ >= 0) sum = checksum_of(bytes_of(separator_), sum);
    const std::int64_t before = tokens_in_parts();
    for (const std::string& path : files) {
      const bool bytes = tokenizer_->text() == "bytes" && field_.empty();
      auto file = std::make_unique<MappedFile>(
          path, bytes ? MappedFile::Pages::kNamed : MappedFile::Pages::kInOrder);
      sum = quick_checksum(*file, sum);
      if (bytes && !PackedFile(path).packed()) {  // uncompressed bytes are used in the mapped file
        const auto size = std::ssize(file->bytes());
        ++count.texts;
        count.empty += size == 0;
        add_part(path, {file->bytes().data(), 1, size}, file.get());
        if (size > 0 && separator_ >= 0) add_part(path, {&separator_byte_, 1, 1}, nullptr);
        files_.push_back(std::move(file));
        continue;
      }
      file.reset();
      std::vector<std::uint8_t>& made = tokens_.emplace_back();
      const int width = vocab() > 65536 ? 4 : vocab() > 256 ? 2 : 1;
      const auto keep = [&](std::span<const std::int32_t> tokens, std::size_t) {
        append_tokens(tokens, width, made);
      };
      each_texts(
          path, field_, workers, count,
          [](const std::string& note) { log::info("warning: {}", note); },  // logged by one rank
          [&](Texts texts) { encode_texts(*tokenizer_, texts, separator_, workers, keep); });
      add_part(path, {made.data(), width, std::ssize(made) / width}, nullptr);
    }
    if (tokens_in_parts() == before) refuse_empty(files);
    info_.checksums[what] = sum;
  }

  std::string field_;
  std::int32_t separator_ = -1;  ///< a token after each text; -1: none
  std::uint8_t separator_byte_ = 0;
  std::vector<std::string> others_;
  double val_fraction_ = 0.0;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::deque<std::vector<std::uint8_t>> tokens_;  ///< of each file that is not mapped
};

}  // namespace

void register_text(DatasetRegistry& registry) {
  add_dataset<Text>(registry, "text", "windows of the tokens of text files");
  add_dataset<Tokens>(
      registry, "tokens",
      "windows of files of tokens, as starling-prepare tokens, nanoGPT and llm.c write them");
}

}  // namespace starling
