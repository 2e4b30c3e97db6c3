// Conversations of JSON lines, as tokens of a chat template: a sample is a conversation, or with
// `pack` a row of several.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/builtin.h"
#include "apps/data/drawn_tests.h"
#include "apps/data/tokens/chat_files.h"
#include "apps/data/tokens/text_dataset.h"
#include "apps/data/tokens/texts.h"
#include "apps/data/workers.h"
#include "apps/inference/companions.h"
#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "apps/inference/model_source.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/host.h"
#include "core/random.h"
#include "core/text.h"
#include "layers/functions.h"

namespace starling {
namespace {

enum class Long : std::uint8_t { kCut, kDrop, kError };

/// What became of conversations of more tokens than a sample has.
struct LongCount {
  std::int64_t cut = 0, messages = 0;  ///< conversations, and the messages that left them
  std::int64_t dropped = 0;

  std::string text(std::int64_t length) const {
    if (cut + dropped == 0) return {};
    return fmt::format("of more than {} tokens: {}{}{}\n", length,
                       cut == 0
                           ? ""
                           : fmt::format("{} cut, of which {} left", counted(cut, "conversation"),
                                         counted(messages, "message")),
                       cut > 0 && dropped > 0 ? "; " : "",
                       dropped == 0 ? "" : counted(dropped, "conversation") + " left out");
  }
  LongCount& operator+=(const LongCount& other) {
    cut += other.cut, messages += other.messages, dropped += other.dropped;
    return *this;
  }
};

class Chat final : public TextDataset {
 public:
  Chat(ConfigSection& section, std::uint64_t seed) : seed_(seed) {
    read_paths(section,
               "files of JSON lines, or folders of such (*.jsonl), as they are or packed (.gz, "
               ".zst); required",
               R"("chat.jsonl")",
               "the test set, as `path` has it; left out of training where it lies in a folder of "
               "`path`",
               "files or folders of JSON lines");
    tokenizer_path_ = section.text(
        "tokenizer", "",
        "a tokenizer's file, such as tokenizer.json, or the folder that it is in; default: that of "
        "the model that training starts from");
    std::vector<std::string> known = ChatTemplate::names();
    known.insert(known.begin(), "auto");
    template_ =
        section.choice("template", "auto", known,
                       "how a conversation is written as tokens; auto: as the chat template "
                       "beside the tokenizer has it, chatml or llama3");
    all_ = section.choice("loss_on", "answers", {"answers", "all"},
                          "answers: an assistant's contents and the markers behind them are "
                          "trained on; all: every token") == "all";
    section.read("long", long_,
                 {{"cut", Long::kCut}, {"drop", Long::kDrop}, {"error", Long::kError}},
                 "a conversation of more tokens than a sample: cut: its oldest messages leave, the "
                 "system's stay; drop: it is left out; error: it is refused");
    section.read("pack", positions_,
                 "samples are rows of conversations, as many as fit; attention and positions stay "
                 "in a conversation");
    val_fraction_ = read_val_fraction(section, !val_paths_.empty(), 0.05,
                                      "share of the conversations that is for tests, drawn from "
                                      "the config's seed and their roles and contents");
    length_ = section.required_integer("sequence_length", Range::closed(2, 1 << 24),
                                       "tokens of a sample, at most the model's context", 16);
    read_limits(section, limit_, test_limit_, "only the first conversations");
    shuffles_ = !section.changed("shuffle");
    set_vocab(256);
    section.finish();  // before files are opened
    if (!tokenizer_path_.empty()) {
      tokenizer_path_ = tokenizer_file(tokenizer_path_);
      use_tokenizer(Tokenizer::read(tokenizer_path_), chat_source_beside(tokenizer_path_),
                    tokenizer_path_);
      section.resolve("template", chat_->name());
    }
  }

  void use_test_share(const TestShare& share) override { given_share_ = share; }
  void use_model(const SafetensorsFile& file, const std::string& source) override {
    const auto theirs = tokenizer_of_model(file, source);
    if (theirs && !tokenizer_)
      use_tokenizer(theirs, chat_source_of(description_of(file, source), source), source);
  }
  void use_initial_model(const std::string& file, bool) override {
    if (tokenizer_) return;
    const SafetensorsFile metadata = read_model_metadata(file);
    if (const auto theirs = tokenizer_of_model(metadata, file))
      return use_tokenizer(theirs, chat_source_of(description_of(metadata, file), file), file);
    if (const std::string beside = tokenizer_beside(file); !beside.empty())
      use_tokenizer(Tokenizer::read(beside), chat_source_beside(beside), beside);
  }
  void use_task(const std::string&) override {
    if (tokenizer_) return;
    fail(ExitCode::kUsage, "data", {.key = "data.tokenizer"},
         "is needed, as no initial model has a tokenizer; needed: its file, such as "
         "tokenizer.json, or the model's folder");
  }

  void open() override {
    if (!tokens_.empty()) return;
    use_task("");
    Workers workers(usable_cores());
    const Paths tests = test_files(chat_files);
    const Paths training = train_is_left_out() ? Paths() : training_files(tests, chat_files);
    for (const std::string& file : training) add(file, workers);
    const std::size_t of_path = conversations_.size();
    for (const std::string& file : tests) add(file, workers);
    if (!training.empty() && of_path == 0) refuse_none(training[0]);
    if (!tests.empty() && conversations_.size() == of_path) refuse_none(tests[0]);
    add_checksums();
    split(of_path);
  }

  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length_)), positions = tokens,
                                                                         targets = tokens;
    std::fill(targets.begin(), targets.end(), functions::kIgnoreIndex);
    std::size_t at = 0;
    for (const std::int64_t member : rows(split).of(index)) {
      const std::span<const Token> own = tokens_of(member);
      for (std::size_t t = 0; t < own.size(); ++t, ++at) {
        tokens[at] = own[t].number();
        positions[at] = static_cast<std::int32_t>(t);
        if (t + 1 < own.size() && own[t + 1].counts()) targets[at] = own[t + 1].number();
      }
    }
    const std::size_t bytes = tokens.size() * sizeof(std::int32_t);
    std::memcpy(out[0], tokens.data(), bytes);
    std::memcpy(out[1], targets.data(), bytes);
    if (positions_) std::memcpy(out[2], positions.data(), bytes);
  }
  std::int64_t counted_targets(std::int64_t index) const override {
    std::int64_t count = 0;
    for (const std::int64_t member : train_.of(index)) count += at(member).targets;
    return count;
  }
  std::string name(Split split, std::int64_t index) const override {
    const std::span<const std::int64_t> members = rows(split).of(index);
    const Conversation& first = at(members[0]);
    return fmt::format(
        "{}:{}{}", files_[static_cast<std::size_t>(first.file)], first.line,
        members.size() == 1 ? "" : fmt::format(" and {} more", std::ssize(members) - 1));
  }

 private:
  /// A token's number, and whether it is trained on.
  class Token {
   public:
    Token(std::int32_t number, bool counts)
        : bits_(static_cast<std::uint32_t>(number) << 1 | static_cast<std::uint32_t>(counts)) {}
    std::int32_t number() const { return static_cast<std::int32_t>(bits_ >> 1); }
    bool counts() const { return (bits_ & 1) != 0; }

   private:
    std::uint32_t bits_;
  };
  struct Conversation {
    std::int64_t line = 0, begin = 0;  ///< in its file; in tokens_
    std::int32_t file = 0, length = 0, targets = 0;
    std::string draw;  ///< by what it says: what draw_tests() goes by
  };

  void use_tokenizer(std::shared_ptr<const Tokenizer> tokenizer, const ChatSource& source,
                     const std::string& place) {
    tokenizer_ = std::move(tokenizer);
    chat_.emplace(chat_template(template_, tokenizer_, source, place, "data.template", note_));
    set_vocab(tokenizer_->vocab());
    describe_tokenizer();
  }
  const Rows& rows(Split split) const { return split == Split::kTrain ? train_ : test_; }
  const Conversation& at(std::int64_t number) const {
    return conversations_[static_cast<std::size_t>(number)];
  }
  std::span<const Token> tokens_of(std::int64_t number) const {
    const Conversation& own = at(number);
    return std::span(tokens_).subspan(static_cast<std::size_t>(own.begin),
                                      static_cast<std::size_t>(own.length));
  }
  [[noreturn]] static void refuse_none(const std::string& file) {
    fail(ExitCode::kUsage, "data", {.file = shown(file, 200)},
         "has no conversation to use, nor have others; needed: JSON lines, of at most "
         "data.sequence_length tokens");
  }

  /// A conversation's tokens, cut to length_; nothing if it is left out.
  std::optional<ChatTokens> encoded(std::vector<ChatMessage> messages, const std::string& file,
                                    std::int64_t line, LongCount& count) const {
    const auto refuse = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
      fail(ExitCode::kUsage, "data",
           {.file = shown(file, 200), .key = fmt::format("line {}", line)}, format,
           std::forward<Args>(args)...);
    };
    ChatTokens all = chat_->encode(messages);
    if (targets_of(all) == 0)
      refuse("has no {}, so there is nothing to train on; needed: a message of the assistant's",
             all_ ? "text" : "answer");
    const auto fits = [&](const ChatTokens& tokens) {
      return std::ssize(tokens.tokens) <= length_;
    };
    if (fits(all)) return all;
    if (long_ == Long::kError)
      refuse("has {} tokens; needed: at most data.sequence_length {}, or \"long\": \"cut\"",
             all.tokens.size(), length_);
    ++count.dropped;
    if (long_ == Long::kDrop) return std::nullopt;
    // The fewest of the oldest messages that must leave
    const auto without = [&](std::int64_t oldest) {
      std::vector<ChatMessage> rest;
      for (const ChatMessage& message : messages)
        if (message.role == ChatMessage::Role::kSystem || oldest-- <= 0) rest.push_back(message);
      return rest;
    };
    std::int64_t few = 0, enough = std::count_if(messages.begin(), messages.end(), [](auto&m) {
                            return m.role != ChatMessage::Role::kSystem;
                          });
    while (few + 1 < enough) {
      const std::int64_t middle = (few + enough) / 2;
      (fits(chat_->encode(without(middle))) ? enough : few) = middle;
    }
    const std::vector<ChatMessage> kept = without(enough);
    const auto asks = [](const ChatMessage& message) {
      return message.role == ChatMessage::Role::kUser;
    };
    // An answer is not trained on without any question
    if (std::ranges::none_of(kept, asks) && std::ranges::any_of(messages, asks))
      return std::nullopt;
    ChatTokens rest = chat_->encode(kept);
    if (!fits(rest) || targets_of(rest) == 0) return std::nullopt;
    --count.dropped;
    ++count.cut;
    count.messages += enough;
    return rest;
  }
  std::int64_t targets_of(const ChatTokens& tokens) const {
    if (tokens.tokens.empty()) return 0;
    return all_ ? std::ssize(tokens.tokens) - 1
                : std::count(tokens.answer.begin() + 1, tokens.answer.end(), true);
  }

  void add(const std::string& file, Workers& workers) {
    files_.push_back(file);
    struct Result {
      std::optional<ChatTokens> tokens;
      std::string draw;
      LongCount count;
    };
    each_lines(file, [&](std::span<const TextLine> lines) {
      std::vector<Result> results(lines.size());
      constexpr std::size_t kAtOnce = 32;
      const auto groups = static_cast<std::int64_t>((lines.size() + kAtOnce - 1) / kAtOnce);
      workers.run(groups, [&](std::int64_t group, int) {
        const std::size_t first = static_cast<std::size_t>(group) * kAtOnce;
        for (std::size_t k = first; k < std::min(first + kAtOnce, lines.size()); ++k) {
          std::vector<ChatMessage> messages = parse_chat(lines[k].text, file, lines[k].number);
          std::string said;
          for (const ChatMessage& message : messages)
            said += fmt::format("{}{}:{}", name_of(message.role), message.content.size(),
                                message.content);
          results[k].draw = checksum(said);
          results[k].tokens = encoded(std::move(messages), file, lines[k].number, results[k].count);
        }
      });
      for (std::size_t k = 0; k < lines.size(); ++k) {
        count_ += results[k].count;
        if (!results[k].tokens) continue;
        const ChatTokens& found = *results[k].tokens;
        conversations_.push_back({.line = lines[k].number,
                                  .begin = std::ssize(tokens_),
                                  .file = static_cast<std::int32_t>(files_.size() - 1),
                                  .length = static_cast<std::int32_t>(found.tokens.size()),
                                  .targets = static_cast<std::int32_t>(targets_of(found)),
                                  .draw = std::move(results[k].draw)});
        for (std::size_t t = 0; t < found.tokens.size(); ++t)
          tokens_.emplace_back(found.tokens[t], all_ || found.answer[t]);
      }
    });
  }

  void add_checksums() {
    std::uint32_t sum = checksum_of(
        {reinterpret_cast<const std::uint8_t*>(tokens_.data()), tokens_.size() * sizeof(Token)});
    for (const Conversation& one : conversations_) sum = checksum_of(bytes_of(one.length), sum);
    info_.checksums["tokens of the conversations"] = sum;
  }

  void split(std::size_t of_path) {
    DrawnTests drawn;
    const auto all = std::ssize(conversations_);
    if (val_fraction_ > 0.0) {
      drawn = draw_tests(
          {.samples = all,
           .label = [](std::int64_t) { return 0; },
           .name = [&](std::int64_t number) { return at(number).draw; },
           .seed = seed_,
           .fraction = val_fraction_,
           .kept = given_share_,
           .limit = test_limit_,
           .who = "chat",
           .noun = "conversation",
           .where = paths_[0],
           .too_small = fmt::format("{} is no whole one", counted(all, "conversation"))});
      info_.test_share = drawn.share;
    } else {
      drawn = own_tests(static_cast<std::int64_t>(of_path), all);
    }
    const auto limit = [](std::vector<std::int64_t>& numbers, std::int64_t most) {
      if (most > 0 && most < std::ssize(numbers)) numbers.resize(static_cast<std::size_t>(most));
    };
    limit(drawn.train, limit_);
    limit(drawn.test, test_limit_);
    info_.contents = contents(drawn.train, drawn.test);
    // Neighbours in a file, which may be alike, should not share a row
    if (positions_ && shuffles_) {
      std::vector<std::int64_t> order;
      for (const std::int64_t k :
           random_permutation(seed_, RandomStream::kPermutation, 0, std::ssize(drawn.train)))
        order.push_back(drawn.train[static_cast<std::size_t>(k)]);
      drawn.train = std::move(order);
    }
    train_ = rows_of(drawn.train);
    test_ = rows_of(drawn.test);
    info_.train_samples = train_.size();
    info_.test_samples = test_.size();
    if (positions_ && train_.size() > 0) {
      std::int64_t tokens = 0;
      for (const std::int64_t member : train_.members) tokens += at(member).length;
      info_.contents += fmt::format(
          "packed: {} in {}, {:.1f} % of whose places they take\n",
          counted(std::ssize(train_.members), "conversation"), counted(train_.size(), "row"),
          100.0 * static_cast<double>(tokens) / static_cast<double>(train_.size() * length_));
    }
    info_.test_bytes = 0.0;
    for (const std::int64_t member : test_.members) {
      const std::span<const Token> own = tokens_of(member);
      for (std::size_t t = 1; t < own.size(); ++t)
        if (own[t].counts())
          *info_.test_bytes += static_cast<double>(tokenizer_->bytes_of(own[t].number()).size());
    }
  }
  Rows rows_of(const std::vector<std::int64_t>& order) const {
    return pack(
        order,
        [&](std::int64_t number) { return positions_ ? std::int64_t{at(number).length} : length_; },
        length_);
  }
  std::string contents(const std::vector<std::int64_t>& training,
                       const std::vector<std::int64_t>& tests) const {
    std::int64_t tokens = 0, targets = 0;
    for (const auto* const numbers : {&training, &tests}) {
      for (const std::int64_t number : *numbers)
        tokens += at(number).length, targets += at(number).targets;
    }
    return fmt::format(
        "conversations: {}{} for tests as {}, {} tokens of which {} are trained on{}\n{}{}",
        training.empty() ? "" : fmt::format("{} for training + ", training.size()), tests.size(),
        chat_->name(), tokens, targets,
        left_out_ == 0
            ? ""
            : fmt::format("; {} of val_path left out of training", counted(left_out_, "file")),
        count_.text(length_), note_.empty() ? "" : note_ + "\n");
  }

  std::uint64_t seed_;
  std::string tokenizer_path_, template_;
  bool all_ = false, shuffles_ = true;
  Long long_ = Long::kCut;
  double val_fraction_ = 0.0;
  std::optional<TestShare> given_share_;
  std::optional<ChatTemplate> chat_;
  std::string note_;  ///< on what the tokenizer's own template would do
  LongCount count_;
  std::vector<std::string> files_;
  std::vector<Conversation> conversations_;
  std::vector<Token> tokens_;  ///< of all conversations
  Rows train_, test_;
};

}  // namespace

void register_chat(DatasetRegistry& registry) {
  add_dataset<Chat>(registry, "chat", "conversations of JSON lines, as tokens of a chat template");
}

}  // namespace starling
