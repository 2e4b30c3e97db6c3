// Windows of tokens, each with the same one token further for its targets: of texts, and of files
// of tokens as nanoGPT, llm.c and starling-prepare write them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/description.h"
#include "apps/text/tokenizer.h"
#include "apps/trainer/data/builtin.h"
#include "apps/trainer/data/workers.h"
#include "apps/trainer/tokens/texts.h"
#include "apps/trainer/tokens/token_files.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {
namespace {

/// Windows are vectors of token numbers already; a model file keeps what the numbers mean.
struct TextCollate final : Collate {
  std::shared_ptr<const Tokenizer> tokenizer;
  void describe(const DatasetInfo&, ModelDescription& description) const override {
    description.tokenizer = tokenizer->text();
  }
};

/// A crc32 of a file that is soon made: of all of a small one, of pieces of a large one, and of its
/// size.
std::uint32_t quick_checksum(const MappedFile& file, std::uint32_t before) {
  constexpr std::size_t kWhole = std::size_t{64} << 20, kPieces = 1024, kPiece = kWhole / kPieces;
  const auto bytes = file.bytes();
  const std::uint64_t size = bytes.size();
  std::uint32_t sum = checksum_of(bytes_of(size), before);
  const std::size_t step = std::max(bytes.size() / kPieces, kPiece);
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    const std::size_t count = std::min(kPiece, bytes.size() - at);
    file.bring(at, count);
    sum = checksum_of(bytes.subspan(at, count), sum);
  }
  return sum;
}

/// What both data sets have: N tokens give ⌊(N - 1) / T⌋ samples, i of them tokens i T to
/// (i + 1) T.
class Windows : public Dataset {
 public:
  Windows() {
    info_.task = "language_model";
    info_.all_count = true;
  }

  DatasetInfo info() const override { return info_; }
  bool countable() const override { return true; }

  void use_model(const SafetensorsFile& file, const std::string& source) override {
    if (!tokenizer_ || file.metadata.count(kConfigMetadata) == 0) return;
    const std::string text = description_of(file, source).tokenizer;
    if (text.empty()) return;
    const auto other = Tokenizer::parse(text, source + ": metadata starling.tokenizer");
    if (other->vocab() != tokenizer_->vocab() || !agree(*other, *tokenizer_))
      fail(ExitCode::kUsage, "data", {.key = "data.tokenizer"},
           "has {} tokens that are not those ({}) that the model of {} was trained with; needed: "
           "its tokenizer",
           tokenizer_->vocab(), other->vocab(), source);
  }
  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    thread_local std::vector<std::int32_t> window;
    window.resize(static_cast<std::size_t>(length_ + 1));
    fetch(begin_of(split, index), window);
    const std::size_t bytes = static_cast<std::size_t>(length_) * sizeof(std::int32_t);
    std::memcpy(out[0], window.data(), bytes);
    std::memcpy(out[1], window.data() + 1, bytes);
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
  /// Tokens that lie in one piece of memory.
  struct Part {
    std::string name;
    TokenSpan tokens;
    const MappedFile* file = nullptr;  ///< that they lie in; null: memory of our own
    std::int64_t first = 0;            ///< how many tokens the parts before it have

    /// The byte of its file at which a token of it lies.
    std::size_t byte(std::int64_t at) const {
      return static_cast<std::size_t>(tokens.data - file->bytes().data() + at * tokens.width);
    }
    std::size_t bytes(std::int64_t count) const {
      return static_cast<std::size_t>(count * tokens.width);
    }
  };

  /// The keys that both have.
  void read_keys(ConfigSection& section) {
    length_ = section.required_integer("sequence_length", Range::closed(1, 1 << 24),
                                       "tokens of a sample, at most the model's context");
    limit_ = section.integer("limit", 0, Range::at_least(0),
                             "use only the first samples of the training set (0: all)");
    test_limit_ = section.integer("test_limit", 0, Range::at_least(0),
                                  "use only the first samples of the test set (0: all)");
  }
  void set_vocab(std::int64_t vocab) {
    info_.tensors = {{"tokens", Shape{length_}, DType::kInt32, vocab},
                     {"targets", Shape{length_}, DType::kInt32, vocab}};
  }
  std::int64_t vocab() const { return info_.tensors[0].classes; }
  void add_part(std::string name, const TokenSpan& tokens, const MappedFile* file) {
    const std::int64_t first = tokens_in_parts();
    parts_.push_back({std::move(name), tokens, file, first});
  }
  /// For a plan without files.
  void assume_tokens(std::int64_t count) { info_.train_samples = (count - 1) / length_; }
  std::int64_t tokens_in_parts() const {
    return parts_.empty() ? 0 : parts_.back().first + parts_.back().tokens.count;
  }
  /// Once all parts are there: the first tokens are for training, the others for tests.
  void finish_parts(std::int64_t train_tokens, const std::string& where) {
    const std::int64_t test_tokens = tokens_in_parts() - train_tokens;
    const auto samples = [&](std::int64_t tokens, std::int64_t limit, const char* what) {
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
    info_.train_samples = samples(train_tokens, limit_, "training");
    info_.test_samples = test_tokens == 0 ? 0 : samples(test_tokens, test_limit_, "tests");
    info_.contents =
        fmt::format("tokens: {} for training + {} for tests, of a vocabulary of {}{}\n",
                    train_tokens, test_tokens, vocab(), tokenizer_ ? "" : "; no tokenizer");
    if (!tokenizer_) return;
    auto collate = std::make_shared<TextCollate>();
    collate->tokenizer = tokenizer_;
    info_.collated_by = std::move(collate);
    std::vector<std::int32_t> targets(static_cast<std::size_t>(length_));
    for (std::int64_t i = 0; i < info_.test_samples; ++i) {
      fetch(begin_of(Split::kTest, i) + 1, targets);
      for (const std::int32_t token : targets)
        *info_.test_bytes += static_cast<double>(tokenizer_->bytes_of(token).size());
    }
  }
  void add_checksum(const std::string& what, std::uint32_t checksum) {
    info_.checksums[what] = checksum;
  }
  bool is_open() const { return !parts_.empty(); }
  void set_tokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
    tokenizer_ = std::move(tokenizer);
    info_.test_bytes = 0.0;
  }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }

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
  /// use(part, first token, count) for the parts that these tokens lie in.
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
    each_part(begin, static_cast<std::int64_t>(out.size()),
              [&](const Part& part, std::int64_t at, std::int64_t count) {
                if (part.file) part.file->bring(part.byte(at), part.bytes(count));
                const std::int64_t wrong = part.tokens.read(at, count, vocab(), to);
                if (wrong >= 0)
                  refuse_token(part.name, at + wrong, part.tokens[at + wrong], vocab());
                to += count;
              });
  }

  std::int64_t length_ = 1, limit_ = 0, test_limit_ = 0;
  DatasetInfo info_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<Part> parts_;
  std::int64_t train_tokens_ = 0;
};

/// Files of tokens.
class Tokens final : public Windows {
 public:
  explicit Tokens(ConfigSection& section) {
    folder_ = section.required_text("path", "folder with train.bin and val.bin");
    read_keys(section);
    std::int64_t vocab = section.integer(
        "vocab", 0, Range::closed(0, 1 << 30),
        "how many tokens there are; 0: as meta.json beside the files or the tokenizer says");
    std::string tokenizer = section.text(
        "tokenizer", "", "that made the tokens: `bytes` or a file; empty: as meta.json says");
    set_vocab(vocab);
    if (section.describing()) section.resolve("vocab", 50257);
    if (section.describing()) return;
    meta_ = TokenMeta::find(folder_);
    if (tokenizer.empty() && meta_)
      tokenizer = meta_->tokenizer == "bytes" ? "bytes" : folder_ + "/" + meta_->tokenizer;
    if (!tokenizer.empty()) set_tokenizer(Tokenizer::read(tokenizer));
    if (meta_ && !meta_->checksums[meta_->tokenizer].empty() && tokenizer.starts_with(folder_)) {
      const MappedFile file(tokenizer);
      if (checksum(file.bytes().data(), file.bytes().size()) != meta_->checksums[meta_->tokenizer])
        fail(ExitCode::kUsage, "data", {.file = tokenizer},
             "is not what {}/meta.json tells of; call starling-prepare tokens again", folder_);
    }
    const std::int64_t known = this->tokenizer() ? this->tokenizer()->vocab() : 0;
    if (meta_ && known != meta_->vocab) {
      fail(ExitCode::kUsage, "data", {.file = folder_ + "/meta.json", .key = "vocab"},
           "is {}, {} has {} tokens; needed: the tokenizer that the files were made with",
           meta_->vocab, tokenizer, known);
    }
    if (vocab == 0) vocab = known;
    if (vocab == 0)
      section.error("vocab",
                    "is needed, as there is no {}/meta.json; as many tokens as the files' "
                    "tokenizer has, 50257 for GPT-2's",
                    folder_);
    if (vocab < known)
      section.error("vocab", "is {}, {} has {} tokens; allowed: as many or more", vocab, tokenizer,
                    known);
    section.resolve("vocab", vocab);
    set_vocab(vocab);
    constexpr std::int64_t kAssumed = 1'000'000'000;
    if (!Tokens::countable()) assume_tokens(kAssumed);
  }

  bool countable() const override { return file_exists(folder_ + "/train.bin"); }
  void open() override {
    if (is_open()) return;
    const auto add = [&](const char* name, std::int64_t meta_tokens) {
      const std::string path = folder_ + "/" + name;
      const TokenFile& file = *files_.emplace_back(
          std::make_unique<TokenFile>(path, vocab(), meta_ ? meta_->width : 0));
      if (meta_ && file.tokens().count != meta_tokens)
        fail(ExitCode::kUsage, "data", {.file = path},
             "has {} tokens, {}/meta.json says {}; call starling-prepare tokens again",
             file.tokens().count, folder_, meta_tokens);
      constexpr std::int64_t kCheckedFirst = std::int64_t{1} << 25;  // the others as they are read
      file.check(vocab(), kCheckedFirst);
      add_checksum(std::string("tokens of ") + name, quick_checksum(file.map(), 0));
      add_part(path, file.tokens(), &file.map());
    };
    add("train.bin", meta_ ? meta_->train_tokens : 0);
    const std::int64_t train_tokens = tokens_in_parts();
    if (file_exists(folder_ + "/val.bin")) {
      add("val.bin", meta_ ? meta_->val_tokens : 0);
    } else if (meta_ && meta_->val_tokens > 0) {
      fail(ExitCode::kUsage, "data", {.file = folder_ + "/val.bin"},
           "is missing; call starling-prepare tokens again");
    }
    finish_parts(train_tokens, folder_);
  }

 private:
  std::string folder_;
  std::optional<TokenMeta> meta_;
  std::vector<std::unique_ptr<TokenFile>> files_;
};

/// Text files, one after another with nothing between.
class Text final : public Windows {
 public:
  explicit Text(ConfigSection& section) {
    const nlohmann::json path = section.raw("path", "text or list of texts",
                                            "files, or folders of files, of text; required");
    read_keys(section);
    const std::string tokenizer = section.text(
        "tokenizer", "bytes", "`bytes`, or a tokenizer's file, such as tokenizer.json");
    val_fraction_ = section.number("val_fraction", 0.1, Range::half_open(0.0, 1.0),
                                   "share of the tokens, at the end, that is for tests");
    set_vocab(256);
    if (section.describing()) section.resolve("path", "text.txt");
    if (section.describing()) return;
    if (path.is_null()) section.missing("path", "files or folders of text");
    for (const nlohmann::json& item : path.is_array() ? path : nlohmann::json::array({path})) {
      if (!item.is_string() || item.get<std::string>().empty())
        section.error("path", "has {}; needed: the name of a file or folder, or a list of such",
                      shown(item.dump()));
      paths_.push_back(item.get<std::string>());
    }
    set_tokenizer(Tokenizer::read(tokenizer));
    set_vocab(this->tokenizer()->vocab());
  }

  void open() override {
    if (is_open()) return;
    std::uint32_t checksum = 0;
    const bool bytes = tokenizer()->text() == "bytes";
    Workers workers(bytes ? 1 : usable_cores());
    for (const std::string& path : text_files(paths_)) {
      auto file = std::make_unique<TextFile>(
          path, bytes ? MappedFile::Pages::kNamed : MappedFile::Pages::kInOrder);
      checksum = quick_checksum(file->map(), checksum);
      const std::string_view text = file->text();
      if (bytes) {  // read where they are
        add_part(path, {file->map().bytes().data(), 1, static_cast<std::int64_t>(text.size())},
                 &file->map());
        files_.push_back(std::move(file));
        continue;
      }
      if (const std::string note = file->note_on_encoding(); !note.empty())
        log::info("warning: {}", note);  // told by one rank
      std::vector<std::uint8_t>& made = tokens_.emplace_back();
      const int width = vocab() > 65536 ? 4 : 2;
      tokenizer()->encode(text, loop_of(workers),
                          [&](std::span<const std::int32_t> tokens, std::size_t) {
                            for (const std::int32_t token : tokens) {
                              for (int byte = 0; byte < width; ++byte)
                                made.push_back(static_cast<std::uint8_t>(token >> 8 * byte));
                            }
                          });
      add_part(path, {made.data(), width, static_cast<std::int64_t>(made.size()) / width}, nullptr);
    }
    add_checksum("text", checksum);
    const std::string meaning = tokenizer()->text();
    add_checksum("tokenizer", checksum_of({reinterpret_cast<const std::uint8_t*>(meaning.data()),
                                           meaning.size()}));
    const auto tokens = static_cast<double>(tokens_in_parts());
    finish_parts(static_cast<std::int64_t>(tokens * (1.0 - val_fraction_)), paths_.front());
  }

 private:
  std::vector<std::string> paths_;
  double val_fraction_ = 0.0;
  std::vector<std::unique_ptr<TextFile>> files_;
  std::deque<std::vector<std::uint8_t>> tokens_;  ///< of each file, where these are made
};

}  // namespace

void register_text(DatasetRegistry& registry) {
  registry.add(
      "text", [](ConfigSection& section, std::uint64_t) { return std::make_unique<Text>(section); },
      "windows of the tokens of text files");
  registry.add(
      "tokens",
      [](ConfigSection& section, std::uint64_t) { return std::make_unique<Tokens>(section); },
      "windows of files of tokens, as starling-prepare tokens, nanoGPT and llm.c write them");
}

}  // namespace starling
