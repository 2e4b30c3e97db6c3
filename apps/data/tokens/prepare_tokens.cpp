#include "apps/data/tokens/prepare_tokens.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "apps/data/tokens/texts.h"
#include "apps/data/tokens/token_files.h"
#include "apps/text/tokenizer.h"
#include "apps/text/train.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

struct Stopped {};

std::int64_t megabytes(std::int64_t bytes) { return (bytes + 999'999) / 1'000'000; }

/// Calls `use` for the texts of all files in order; `watch` gets warnings.
template <class Use>
void each_text(const std::vector<std::string>& files, const std::string& field, Workers& workers,
               const PrepareWatch& watch, TextCount& count, const Use& use) {
  const auto note = [&](const std::string& line) {
    if (watch.bad) watch.bad(Error(ExitCode::kUsage, {.component = "prepare", .what = line}));
  };
  for (const std::string& path : files) each_texts(path, field, workers, count, note, use);
  if (count.texts == count.empty) refuse_empty(files);
}

std::int64_t bytes_of_files(const std::vector<std::string>& files) {
  std::int64_t bytes = 0;
  for (const std::string& path : files) {
    const RegularFile file(path);
    if (!file.fault().empty())
      fail(ExitCode::kUsage, "data", "cannot open {}: {}", shown(path, 200), file.fault());
    bytes += static_cast<std::int64_t>(file.bytes());
  }
  return bytes;
}

std::string checksum_of_file(const std::string& path) {
  const auto bytes = MappedFile(path, MappedFile::Pages::kInOrder);
  return checksum(bytes.bytes().data(), bytes.bytes().size());
}

}  // namespace

TokensReport prepare_tokens(const TokensOptions& options, const PrepareWatch& watch) {
  const auto tokenizer = Tokenizer::read(options.tokenizer, options.pattern);
  const auto path = [&](const char* name) { return options.destination + "/" + name; };
  const std::vector<std::string> files =
      text_files(options.texts, {path("train.bin"), path("val.bin"), path("meta.json"),
                                 path("tokenizer.json"), options.tokenizer});
  const std::int32_t separator =
      options.separator.empty() ? -1 : separator_token(*tokenizer, options.separator);
  const std::int64_t bytes = bytes_of_files(files);
  TokensReport report{.vocab = tokenizer->vocab()};
  std::error_code error;
  fs::create_directories(options.destination, error);
  if (error)
    fail(ExitCode::kOutput, "prepare", "cannot make the folder {}: {}",
         shown(options.destination, 200), error.message());
  if (watch.begins) watch.begins(megabytes(bytes), 0);

  TokenMeta meta{.vocab = report.vocab, .width = report.vocab > 65536 ? 4 : 2};
  AtomicFile train(path("train.bin"));
  Workers workers(options.threads);
  std::vector<std::uint8_t> numbers;
  std::int64_t written = 0, done = 0;  // tokens written; bytes of text processed, approximately
  try {
    each_text(files, options.field, workers, watch, report.count, [&](Texts texts) {
      encode_texts(*tokenizer, texts, separator, workers,
                   [&](std::span<const std::int32_t> tokens, std::size_t of_text) {
                     numbers.clear();
                     append_tokens(tokens, meta.width, numbers);
                     train.write(numbers.data(), numbers.size());
                     written += std::ssize(tokens);
                     done += static_cast<std::int64_t>(of_text);
                     if (watch.goes_on) watch.goes_on(megabytes(std::min(done, bytes)));
                     if (watch.stop && watch.stop()) throw Stopped();
                   });
    });
  } catch (const Stopped&) {
    report.stopped = true;
    return report;
  }
  meta.train_tokens = report.train_tokens =
      static_cast<std::int64_t>(static_cast<double>(written) * (1.0 - options.val_fraction));
  meta.val_tokens = report.val_tokens = written - report.train_tokens;
  if (meta.train_tokens < 2 || meta.val_tokens == 1)
    fail(ExitCode::kUsage, "prepare", {.file = shown(files[0], 200)},
         "the texts have {}, of which --val-fraction {} leaves {} and {}; needed: 2 or more",
         counted(written, "token"), options.val_fraction, meta.train_tokens, meta.val_tokens);
  fs::remove(path("meta.json"), error);  // it describes the files that are replaced now
  std::vector<std::string> names{"train.bin"};
  if (meta.val_tokens > 0) {
    AtomicFile val(path("val.bin"));
    train.move_end(static_cast<std::uint64_t>(meta.train_tokens * meta.width), val);
    val.commit();
    names.emplace_back("val.bin");
  } else {
    fs::remove(path("val.bin"), error);
  }
  train.commit();
  meta.tokenizer = tokenizer->text() == "bytes" ? "bytes" : "tokenizer.json";
  if (meta.tokenizer != "bytes") {
    const std::string text = tokenizer->huggingface();
    write_file_atomically(path("tokenizer.json"), text.data(), text.size());
    names.push_back(meta.tokenizer);
  }
  for (const std::string& name : names) meta.checksums[name] = checksum_of_file(path(name.c_str()));
  const std::string told = meta.text();
  write_file_atomically(path("meta.json"), told.data(), told.size());
  return report;
}

bool has_tokens(const std::string& folder) { return file_exists(folder + "/train.bin"); }

CheckReport check_tokens(const std::string& folder, const PrepareWatch& watch) {
  CheckReport report;
  const auto meta = TokenMeta::find(folder);
  if (!meta)
    fail(ExitCode::kUsage, "check",
         "{} has token files and no meta.json; needed: what starling-prepare tokens has written",
         shown(folder, 200));
  for (const auto& [name, tokens] :
       {std::pair{"train.bin", meta->train_tokens}, {"val.bin", meta->val_tokens}}) {
    if (tokens > 0 && meta->checksums.count(name) == 0)
      fail(ExitCode::kUsage, "check", {.file = folder + "/meta.json", .key = "checksums"},
           "has none of {}; call starling-prepare tokens again", name);
  }
  std::int64_t bytes = 0;
  std::error_code error;
  for (const auto& [name, checksum] : meta->checksums) {
    const auto size = fs::file_size(folder + "/" + name, error);
    if (!error) bytes += static_cast<std::int64_t>(size);
  }
  if (watch.begins) watch.begins(megabytes(bytes), 0);
  const auto check = [&](const auto& work) {
    try {
      work();
    } catch (const Error& fault) {
      ++report.faults;
      if (watch.bad) watch.bad(fault);
    }
  };
  std::int64_t done = 0;
  for (const auto& [name, checksum] : meta->checksums) {
    const std::string path = folder + "/" + name;
    check([&, &name = name, &checksum = checksum] {
      if (const std::string found = checksum_of_file(path); found != checksum)
        fail(ExitCode::kUsage, "check", {.file = path},
             "its checksum is {}, meta.json says {}; call starling-prepare tokens again", found,
             checksum);
      if (name == meta->tokenizer) {
        const std::int64_t vocab = Tokenizer::read(path)->vocab();
        if (vocab != meta->vocab)
          fail(ExitCode::kUsage, "check", {.file = path}, "has {} tokens, meta.json says {}", vocab,
               meta->vocab);
        return;
      }
      const TokenFile file(path, meta->vocab, meta->width);
      const std::int64_t count = name == "train.bin" ? meta->train_tokens : meta->val_tokens;
      if (file.tokens().count != count)
        fail(ExitCode::kUsage, "check", {.file = path}, "has {} tokens, meta.json says {}",
             file.tokens().count, count);
      file.check(meta->vocab, count, "meta.json");
      report.records += count;
      done += std::ssize(file.map().bytes());
    });
    if (watch.goes_on) watch.goes_on(megabytes(done));
    if ((report.stopped = watch.stop && watch.stop())) break;
  }
  return report;
}

TokensReport train_tokenizer(const TokenizerOptions& options, const PrepareWatch& watch) {
  const std::int64_t least = 256 + std::ssize(options.special);
  if (options.vocab < least)
    fail(ExitCode::kUsage, "prepare",
         "--vocab {} is less than the 256 bytes and {}; needed: {} or more", options.vocab,
         counted(least - 256, "special token"), least);
  BpeTrainer trainer(options.pattern);
  check_special_tokens(options.special);
  const std::vector<std::string> files = text_files(options.texts, {options.out});
  // As this program writes it, and as Hugging Face's
  const auto out = open_output(
      "--out", options.out,
      {{"{\n \"version\": \"1.0\"", "{\n  \"version\": \"1.0\"", "{\"version\":\"1.0\""},
       "tokenizer"});
  Workers workers(options.threads);
  bool stopped = false;
  const auto goes_on = [&](std::int64_t tokens) {
    if (watch.goes_on) watch.goes_on(tokens);
    return !(watch.stop && watch.stop());
  };
  TextCount count;
  each_text(files, options.field, workers, watch, count, [&](Texts texts) {
    for (const std::string_view text : texts) {
      if (!(stopped = stopped || (watch.stop && watch.stop()))) trainer.add(text, loop_of(workers));
    }
  });
  if (stopped) return {.stopped = true};
  if (watch.begins) watch.begins(options.vocab, 0);
  const auto tokenizer = trainer.train(options.vocab, options.special, goes_on);
  if (!tokenizer) return {.stopped = true};
  const std::string text = tokenizer->huggingface();
  out->write(text.data(), text.size());
  out->commit();
  return {.vocab = tokenizer->vocab()};
}

}  // namespace starling
