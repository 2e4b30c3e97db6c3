// starling-prepare: data sets in the form in which training reads them fastest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/shards/prepare_images.h"
#include "apps/data/tokens/chat_files.h"
#include "apps/data/tokens/prepare_tokens.h"
#include "apps/inference/hugging_face.h"
#include "apps/text/chat.h"
#include "apps/text/pattern.h"
#include "apps/training/output/arguments.h"
#include "apps/training/output/progress.h"
#include "core/console.h"
#include "core/error.h"
#include "core/host.h"
#include "core/stop_signals.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr std::int64_t kFaultsNamed = 100;

/// Output and signals: progress on stdout, bad pictures on stderr, stop signals.
class Watcher {
 public:
  Watcher(std::string unit, std::string units) : unit_(std::move(unit)), units_(std::move(units)) {}
  PrepareWatch watch() {
    return {.begins = [this](std::int64_t total, std::int64_t done) { begin(total, done); },
            .goes_on = [this](std::int64_t done) { go_on(done); },
            .bad = [this](const Error& error) { name(error); },
            .stop = stop_requested};
  }
  void finish() {
    if (progress_) progress_->finish();
    if (faults_ > kFaultsNamed)
      complain("starling-prepare: {} more like these", faults_ - kFaultsNamed);
  }

 private:
  void begin(std::int64_t total, std::int64_t done) {
    terminal_ = stdout_is_terminal();
    first_ = done;
    begun_ = std::chrono::steady_clock::now();
    progress_ = std::make_unique<Progress>(total, done, terminal_, unit_);
    if (done > 0)
      progress_->message(fmt::format("{} of {} {} are there already", done, total, units_));
  }
  void go_on(std::int64_t done) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun_;
    progress_->update(
        done,
        fmt::format("{:.0f} {}/s",
                    static_cast<double>(done - first_) / std::max(passed.count(), 1e-9), units_));
  }
  void name(const Error& error) {
    if (++faults_ > kFaultsNamed) return;
    if (terminal_) {
      progress_->message(error.what());
    } else {
      complain("starling-prepare: {}", error.what());
    }
  }

  std::string unit_, units_;
  bool terminal_ = false;
  std::int64_t first_ = 0, faults_ = 0;
  std::chrono::steady_clock::time_point begun_;
  std::unique_ptr<Progress> progress_;
};

/// What work(watch) reports.
template <class Work>
auto watched(const char* unit, const char* units, const Work& work) {
  Watcher watcher(unit, units);
  auto report = work(watcher.watch());
  watcher.finish();
  return report;
}

int stopped(const std::string& left = {}) {
  answer("stopped by a signal" + left + "\n");
  return stop_status();
}

int run_images(const PrepareOptions& options) {
  const auto report = watched("picture", "pictures", [&](const PrepareWatch& watch) {
    return prepare_images(options, watch);
  });
  if (report.stopped) return stopped("; the same command goes on after the shards that are whole");
  answer("{} of {} in {}, {:.1f} MB, in {}; {} made now, {} left out\n",
         counted(report.pictures, "picture"), counted(report.classes, "class"),
         counted(report.shards, "shard"), static_cast<double>(report.bytes) / 1e6,
         options.destination, counted(report.made, "shard"), counted(report.skipped, "picture"));
  return 0;
}

int run_tokens(const TokensOptions& options) {
  const auto report = watched(
      "MB", "MB", [&](const PrepareWatch& watch) { return prepare_tokens(options, watch); });
  if (report.stopped) return stopped("; nothing was written");
  answer(
      "{} for training + {} for tests, of a vocabulary of {}, in {}; {:.2f} bytes "
      "of text a token{}\n",
      counted(report.train_tokens, "token"), report.val_tokens, report.vocab, options.destination,
      static_cast<double>(report.count.bytes) /
          static_cast<double>(report.train_tokens + report.val_tokens),
      report.count.text());
  return 0;
}

int run_tokenizer(const TokenizerOptions& options) {
  const auto report = watched("token", "tokens", [&](const PrepareWatch& watch) {
    return train_tokenizer(options, watch);
  });
  if (report.stopped) return stopped("; nothing was written");
  answer("{} in {}{}\n", counted(report.vocab, "token"), options.out,
         report.vocab < options.vocab
             ? fmt::format("; no pair comes twice any more, so there are not {}", options.vocab)
             : "");
  return 0;
}

int check_token_files(const std::string& folder) {
  const auto report =
      watched("MB", "MB", [&](const PrepareWatch& watch) { return check_tokens(folder, watch); });
  if (report.stopped) return stopped();
  if (report.faults > 0) {
    fail(ExitCode::kUsage, "check",
         "{} in the token files of {}; call starling-prepare tokens again",
         counted(report.faults, "fault"), folder);
  }
  answer("{}, as written\n", counted(report.records, "token"));
  return 0;
}

int run_check(const std::string& folder, int threads) {
  if (has_tokens(folder)) return check_token_files(folder);
  const auto report = watched("record", "records", [&](const PrepareWatch& watch) {
    return check_shards(folder, threads, watch);
  });
  if (report.stopped) return stopped();
  if (report.faults > 0) {
    fail(ExitCode::kUsage, "check",
         "{} in the {} of {}; delete the files that are named and call "
         "starling-prepare images again",
         counted(report.faults, "fault"), counted(report.shards, "shard"), folder);
  }
  answer("{} in {}, as written\n", counted(report.records, "record"),
         counted(report.shards, "shard"));
  return 0;
}

int run_example(const ExampleTree& tree) {
  const auto report = watched("picture", "pictures", [&](const PrepareWatch& watch) {
    return write_example_tree(tree, watch);
  });
  if (report.stopped)
    return stopped(fmt::format("; {} has {} of the pictures", tree.destination, report.pictures));
  answer("{} of {}, {:.1f} MB, in {}/train and {}/val\n", counted(report.pictures, "picture"),
         counted(tree.classes, "class"), static_cast<double>(report.bytes) / 1e6, tree.destination,
         tree.destination);
  return 0;
}

int run_prepare(int argc, char** argv) {
  CLI::App app{
      "Makes shards of folders of pictures, which training reads faster than files, and files of "
      "the tokens of texts; checks them; trains tokenizers; shows conversations; exports models of "
      "text; draws pictures to try that with.",
      "starling-prepare"};
  app.require_subcommand(1);
  PrepareOptions options;
  options.threads = usable_cores();
  std::string on_bad = "error", filter = "bilinear", folder;

  CLI::App* images = app.add_subcommand(
      "images", "SRC/train/<class>/… and SRC/val/<class>/… become shards in DEST");
  images->add_option("SRC", options.source, "folder with train/ and, if there is one, val/")
      ->required();
  images
      ->add_option("DEST", options.destination,
                   "folder for the shards; an interrupted call goes on there")
      ->required();
  images
      ->add_option("--size", options.size,
                   "pictures with a longer shorter side are resized until it has so many pixels")
      ->check(whole_in(1, 8192));
  images
      ->add_option("--quality", options.quality,
                   "of the JPEG that resized pictures become (default: 90); "
                   "without --size all pictures become JPEG")
      ->check(whole_in(1, 100));
  images
      ->add_flag("--raw", options.raw,
                 "pixels instead of JPEG: nothing is left to decode, and files are larger")
      ->excludes("--quality");
  images->add_option("--interpolation", filter, "the filter of resizing")
      ->check(CLI::IsMember(interpolation_names()))
      ->capture_default_str()
      ->needs("--size");
  images
      ->add_option("--on-bad-image", on_bad,
                   "a picture that cannot be decoded ends the call, or is named and left out")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str();
  add_number(*images, "--max-pixels", options.max_pixels, "larger pictures are refused", 1,
             std::int64_t{1} << 40);
  add_number(*images, "--shard-pictures", options.shard_pictures, "pictures of a shard", 1,
             1 << 20);

  TokensOptions tokens;
  CLI::App* of_text =
      app.add_subcommand("tokens", "texts become train.bin, val.bin and meta.json in DEST");
  add_list(*of_text, "FILE", tokens.texts,
           "texts, or folders of texts, and last DEST: the folder for the tokens")
      ->required()
      ->expected(2, -1)
      ->option_text("... DEST");
  of_text
      ->add_option("--tokenizer", tokens.tokenizer,
                   "`bytes`, Hugging Face's tokenizer.json, GPT-2's vocab.json with merges.txt "
                   "beside it, or tiktoken's ranks")
      ->capture_default_str();
  of_text
      ->add_option("--pattern", tokens.pattern,
                   "how ranks' tokenizer divides texts into words (default: by the file's name)")
      ->check(CLI::IsMember(pattern_names()));
  add_number(*of_text, "--val-fraction", tokens.val_fraction,
             "share of the tokens, at the end, that is for tests", 0.0, 0.999999);
  of_text->add_option("--field", tokens.field,
                      "files are JSON lines, and this field of each line is a text");
  of_text->add_option("--separator", tokens.separator,
                      "a token behind each text, such as '<|endoftext|>' (default: none)");

  TokenizerOptions trained;
  CLI::App* trains =
      app.add_subcommand("tokenizer", "trains a tokenizer (byte-level BPE) of texts");
  add_list(*trains, "FILE", trained.texts, "texts, or folders of texts")
      ->required()
      ->option_text("...");
  add_number(*trains, "--vocab", trained.vocab, "tokens in all", 256, 1 << 20);
  trains->add_option("--out", trained.out, "tokenizer.json for it")->required();
  add_list(*trains, "--special", trained.special,
           "a token of its own, such as '<|endoftext|>'; may be given again");
  trains->add_option("--field", trained.field,
                     "files are JSON lines, and this field of each line is a text");
  trains->add_option("--pattern", trained.pattern, "how texts are divided into words")
      ->check(CLI::IsMember(pattern_names()))
      ->capture_default_str();

  CLI::App* check =
      app.add_subcommand("check", "compares every record or token of DEST with its checksum");
  check->add_option("DEST", folder, "folder of shards or token files")->required();

  ExampleTree tree;
  CLI::App* example = app.add_subcommand(
      "example",
      "draws pictures, DEST/train/<class>/… and DEST/val/<class>/…, to try a config with");
  example->add_option("DEST", tree.destination, "folder that is empty or new")->required();
  add_number(*example, "--classes", tree.classes, "kinds of pictures", 1, 100'000);
  add_number(*example, "--train", tree.train, "pictures of a class to train on", 1, 100'000);
  add_number(*example, "--val", tree.val, "pictures of a class for tests", 1, 100'000);
  add_number(*example, "--width", tree.width, "of two pictures in three; the third stands", 8,
             8192);
  add_number(*example, "--height", tree.height, "of those", 8, 8192);
  add_number(*example, "--seed", tree.seed, "of what is random", 0, UINT64_MAX);

  for (CLI::App* const command : {images, of_text, trains, check, example})
    command->add_option("--threads", options.threads, "that work (default: all cores)")
        ->check(whole_in(1, 1024));

  ShowChatOptions show;
  std::string loss_on = "answers";
  CLI::App* shows = app.add_subcommand(
      "show", "a conversation as its template writes it, and what of it is trained on");
  shows->add_option("FILE", show.path, "JSON lines of conversations, or a folder of such")
      ->required();
  shows->add_option("--tokenizer", show.tokenizer, "a tokenizer's file, or the folder it is in")
      ->required();
  std::vector<std::string> templates = ChatTemplate::names();
  templates.insert(templates.begin(), "auto");
  shows->add_option("--template", show.chat_template, "as data.template of a config")
      ->check(CLI::IsMember(templates))
      ->capture_default_str();
  shows->add_option("--loss-on", loss_on, "as data.loss_on of a config")
      ->check(CLI::IsMember({"answers", "all"}))
      ->capture_default_str();
  add_number(*shows, "--sample", show.sample, "which, counted from 1", 1, std::int64_t{1} << 40);

  std::string run, destination;
  std::uint64_t most = UINT64_MAX;
  CLI::App* exported = app.add_subcommand(
      "export",
      "writes a model of text as Hugging Face's transformers load it, to DEST, or an adapter as "
      "PEFT loads it");
  exported->add_option("RUN", run, "a run's folder, or its model.safetensors")->required();
  exported->add_option("DEST", destination, "folder that is empty or new")->required();
  bool merges = false;
  exported->add_flag("--merge", merges,
                     "of a run of adapters (lora): the whole model, not PEFT's folder of them");
  exported
      ->add_option("--max-file-size", most,
                   "weights are written in files of at most so many bytes, such as 5GB, and an "
                   "index (default: one file)")
      ->transform(CLI::AsSizeValue(true))
      ->transform(CLI::Validator(  // comes first
          [](const std::string& text) {
            const bool begins = !text.empty() && text[0] >= '1' && text[0] <= '9';
            return begins ? std::string()
                          : fmt::format("expected a size such as 500MB or 5GB, found '{}'", text);
          },
          ""))
      ->type_name("SIZE");
  if (const auto status = parse_arguments(app, argc, argv)) return *status;
  // A file over the size limit is a write error with a message, not a death
  std::signal(SIGXFSZ, SIG_IGN);
  at_stop_signal(AtStopSignal::kNote);  // whole shards stay
  if (*exported) {
    export_to_hugging_face(run, destination, merges, most);
    const bool whole = std::filesystem::exists(std::filesystem::path(destination) / "config.json");
    answer("{} has {}\n", destination,
           whole ? "config.json and its weights"
                 : "adapter_config.json and adapter_model.safetensors");
    return 0;
  }
  if (*shows) {
    show.all = loss_on == "all";
    show.colour = stdout_is_terminal();
    answer(show_chat(show));
    return 0;
  }
  if (*check) return run_check(folder, options.threads);
  if (*of_text) {
    tokens.destination = tokens.texts.back();
    tokens.texts.pop_back();
    tokens.threads = options.threads;
    return run_tokens(tokens);
  }
  if (*trains) {
    trained.threads = options.threads;
    return run_tokenizer(trained);
  }
  tree.threads = options.threads;
  if (*example) return run_example(tree);
  options.interpolation = interpolation_of(filter);
  options.skip_bad = on_bad == "skip";
  return run_images(options);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  return starling::run_program("starling-prepare",
                               [&] { return starling::run_prepare(argc, argv); });
}
