// starling-predict: what a model sees in pictures or rows of a table, and how it continues a text.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/inference/description.h"
#include "apps/inference/generation.h"
#include "apps/inference/inference.h"
#include "apps/text/chat.h"
#include "apps/training/output/arguments.h"
#include "core/config.h"
#include "core/console.h"
#include "core/csv.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/host.h"
#include "core/text.h"
#include "kernels/cpu/parallel.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBatch = 32;

struct PredictOptions {
  std::string model;
  std::vector<std::string> inputs;
  std::int64_t top = 5;
  bool json = false;
  std::string out;
  InferenceOptions inference;
  std::optional<std::string> prompt;
  std::string prompts;       ///< a file of prompts, or `-`
  std::int64_t samples = 1;  ///< texts of a prompt
  GenerateOptions generate;
  std::string score, perplexity;  ///< files
  std::int64_t stride = 0;
  bool chat = false;
  std::string chat_template = "auto", system;

  bool generates() const { return prompt || !prompts.empty(); }
  bool of_text() const { return generates() || chat || !score.empty() || !perplexity.empty(); }
};

bool named_as_picture(const fs::path& path) {
  const std::string extension = lower_case(path.extension().string());
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// The files asked for: of folders all below them that have a picture's name and are not hidden, as
/// in training, sorted. Links to nothing and pipes too, to be named in turn.
std::vector<std::string> files_of(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!fs::is_directory(input, error)) {
      files.push_back(input);
      continue;
    }
    std::vector<std::string> found;
    const auto options = fs::directory_options::follow_directory_symlink;
    for (fs::recursive_directory_iterator it(input, options, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code ignored;
      if (it->path().filename().string().starts_with(".")) {
        it.disable_recursion_pending();
        continue;
      }
      if (named_as_picture(it->path()) && !it->is_directory(ignored))
        found.push_back(it->path().string());
      if (it.depth() > 64)
        fail(ExitCode::kUsage, "pictures",
             "{} is more than 64 folders deep; is a link in it a circle?", it->path().string());
    }
    if (error) fail(ExitCode::kUsage, "pictures", "{} cannot be read: {}", input, error.message());
    if (found.empty())
      fail(ExitCode::kUsage, "pictures",
           "{} has no pictures; needed: files that end in .jpg, .jpeg or .png", input);
    std::ranges::sort(found);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

/// One file's bytes as the model takes them, or what is wrong with it.
struct PreparedPicture {
  std::vector<std::uint8_t> bytes;
  std::optional<Error> fault;
};

std::vector<PreparedPicture> prepare(const InferenceModel& model,
                                     const std::vector<std::string>& files, std::size_t begin,
                                     std::size_t end, int threads) {
  std::vector<PreparedPicture> pictures(end - begin);
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < pictures.size(); i = next++) {
      try {
        pictures[i].bytes = model.read_picture(files[begin + i]);
      } catch (...) {
        pictures[i].fault = as_error(std::current_exception());
      }
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads && static_cast<std::size_t>(i) < pictures.size(); ++i)
    helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return pictures;
}

/// Whether outputs are scores of classes, and not the numbers that a model was trained to give.
bool classifies(const InferenceModel& model) {
  const nlohmann::json config = nlohmann::json::parse(model.config(), nullptr, false);
  const nlohmann::json::json_pointer task("/task/type");
  return !config.is_object() || !config.contains(task) || config[task] == "classification";
}

/// `row`: of a table; 0: the file is one sample.
std::string line_of(const InferenceModel& model, const std::string& file, std::int64_t row,
                    std::span<const float> logits, const PredictOptions& options) {
  std::string place = options.json ? fmt::format("\"file\":{}", json_text(file)) : in_line(file);
  if (row > 0) place += fmt::format("{}{}", options.json ? ",\"row\":" : ":", row);
  if (!classifies(model)) {
    if (!options.json) return fmt::format("{}: {:.6g}\n", place, fmt::join(logits, ", "));
    return fmt::format("{{{},\"outputs\":{}}}\n", place,
                       nlohmann::json(std::vector<float>(logits.begin(), logits.end())).dump());
  }
  const std::vector<double> shares = model.probabilities(logits);
  nlohmann::ordered_json top = nlohmann::ordered_json::array();
  std::string text;
  for (const std::int64_t index : largest(logits, options.top)) {
    const double share = shares[static_cast<std::size_t>(index)];
    const std::string name = name_of_output(model.classes(), static_cast<std::size_t>(index));
    top.push_back({{"class", name}, {"index", index}, {"probability", share}});
    text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", in_line(name), 100.0 * share);
  }
  if (!options.json) return fmt::format("{}: {}\n", place, text);
  return fmt::format("{{{},\"top\":{}}}\n", place, top.dump());
}

/// What --out has: a head, and a row for each that is predicted.
std::string table_head(const InferenceModel& model) {
  std::string head = model.columns() ? "file,row,prediction" : "file,prediction";
  if (classifies(model)) return head + ",probability\n";
  for (std::int64_t i = 1; i < model.output().elements(); ++i)
    head += fmt::format(",prediction {}", i + 1);
  return head + "\n";
}

std::string table_row(const InferenceModel& model, const std::string& file, std::int64_t row,
                      std::span<const float> logits) {
  std::string text = csv_cell(file);
  if (row > 0) text += fmt::format(",{}", row);
  if (!classifies(model)) return text + fmt::format(",{}\n", fmt::join(logits, ","));
  const auto best = static_cast<std::size_t>(largest(logits).front());
  return text + fmt::format(",{},{:.6g}\n", csv_cell(name_of_output(model.classes(), best)),
                            model.probabilities(logits)[best]);
}

/// Where predictions go: stdout, or a file that appears whole; what cannot be predicted, stderr.
class Predictions {
 public:
  Predictions(const InferenceModel& model, const PredictOptions& options)
      : model_(model), options_(options) {
    if (options.out.empty()) return;
    const std::string head = table_head(model);
    file_ = open_output("--out", options.out, {{head}, "table of predictions"});
    file_->write(head.data(), head.size());
  }
  void add(const std::string& file, std::int64_t row, std::span<const float> logits) {
    if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }))
      return leave_out(fmt::format(
          "[predict] {}: the model's scores of it are no finite numbers; train it longer, or with "
          "a smaller learning rate",
          shown(row > 0 ? fmt::format("{}:{}", file, row) : file, std::string::npos)));
    if (!file_) return answer(line_of(model_, file, row, logits, options_));
    const std::string line = table_row(model_, file, row, logits);
    file_->write(line.data(), line.size());
  }
  void leave_out(std::string_view why) {
    complain("starling-predict: {}", why);
    result_ = ExitCode::kUsage;
  }
  ExitCode finish() {
    if (file_) file_->commit();
    return result_;
  }

 private:
  const InferenceModel& model_;
  const PredictOptions& options_;
  std::unique_ptr<AtomicFile> file_;
  ExitCode result_ = ExitCode::kOk;
};

/// A line for each row of CSV files.
ExitCode predict_tables(InferenceModel& model, const PredictOptions& options) {
  const auto inputs = static_cast<std::size_t>(model.input().elements()),
             outputs = static_cast<std::size_t>(model.output().elements());
  Predictions predictions(model, options);
  for (const std::string& file : options.inputs) {
    const TableRows table = model.read_table(file);
    for (std::size_t begin = 0; begin < table.rows.size(); begin += kBatch) {
      const std::size_t rows = std::min(kBatch, table.rows.size() - begin);
      const std::vector<float> logits =
          model.logits(std::span(table.numbers).subspan(begin * inputs, rows * inputs));
      for (std::size_t i = 0; i < rows; ++i)
        predictions.add(file, table.rows[begin + i],
                        std::span(logits).subspan(i * outputs, outputs));
    }
  }
  return predictions.finish();
}

/// Goes on with a prompt, as often as asked for: the text as it is made, or JSON lines.
void generate(InferenceModel& model, const std::string& prompt, const PredictOptions& options) {
  for (std::int64_t sample = 0; sample < options.samples; ++sample) {
    GenerateOptions own = options.generate;
    own.seed += static_cast<std::uint64_t>(sample);
    if (options.json) {
      const Generated made = model.generate(prompt, own);
      nlohmann::ordered_json line{{"prompt", prompt}, {"text", made.text}, {"tokens", made.tokens}};
      if (options.samples > 1) line["seed"] = own.seed;
      line["tokens_per_second"] = made.tokens_per_second;
      answer(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
      continue;
    }
    if (options.samples > 1 && stdout_is_terminal())  // texts may have several lines
      answer("--- {} of {}, seed {}\n", sample + 1, options.samples, own.seed);
    bool begun = false;
    const auto begin = [&] {
      if (!std::exchange(begun, true)) answer(prompt);
    };
    model.generate(prompt, own, [&](std::string_view piece) {
      begin();
      answer(std::string(piece));
    });
    begin();  // an end may be all that was made
    answer("\n");
  }
}

/// The same with each line of a file or pipe. One that is no prompt is named, and the others
/// continue.
ExitCode generate_lines(InferenceModel& model, const PredictOptions& options) {
  const std::string& path = options.prompts;
  std::ifstream file;
  std::error_code error;
  if (path != "-") file.open(path, std::ios::binary);
  if (path != "-" && (!file || fs::is_directory(path, error)))
    fail(ExitCode::kUsage, "predict", {.file = shown(path), .key = "--prompts"},
         "cannot be read; needed: a file with a prompt a line, or - for standard input");
  std::istream& lines = path == "-" ? std::cin : file;
  ExitCode result = ExitCode::kOk;
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    if (++number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    try {
      generate(model, line, options);
    } catch (const Error& fault) {
      if (fault.code() != ExitCode::kUsage) throw;
      complain("starling-predict: {}:{}: {}", shown(path), number, fault.what());
      result = ExitCode::kUsage;
    }
  }
  if (number == 0)
    fail(ExitCode::kUsage, "predict", {.file = shown(path), .key = "--prompts"},
         "has no line; needed: a prompt a line");
  return result;
}

/// Answers each line of standard input, with all before in mind.
void chat(InferenceModel& model, const PredictOptions& options) {
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({ChatMessage::Role::kSystem, options.system});
  const bool asks = isatty(STDIN_FILENO) == 1 && stdout_is_terminal();
  for (std::string line;;) {
    if (asks) answer("> ");
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    messages.push_back({ChatMessage::Role::kUser, line});
    const Generated made = model.chat(messages, options.chat_template, options.generate,
                                      [](std::string_view piece) { answer(std::string(piece)); });
    answer("\n");
    messages.push_back({ChatMessage::Role::kAssistant, made.text});
  }
  if (asks) answer("\n");
}

/// The keys of a line that is to be scored.
struct ScoreLine {
  const nlohmann::json value;
  const std::string place;

  [[noreturn]] void refuse(const std::string& key, std::string_view needed) const {
    fail(ExitCode::kUsage, "score", {.file = place, .key = key}, "is {}; needed: {}",
         value.contains(key) ? shown(value[key].dump(), 60) : "missing", needed);
  }
  std::string text(const char* key, const char* fallback = nullptr) const {
    if (!value.contains(key) && fallback) return fallback;
    if (!value.contains(key) || !value[key].is_string()) refuse(key, "a text");
    return value[key].get<std::string>();
  }
};

nlohmann::ordered_json json_of(const TextScore& score) {
  return {{"logprob", score.logprob}, {"tokens", score.tokens}, {"greedy", score.greedy}};
}

/// Which of a question's choices is the likeliest by itself, by its characters, and by its bytes.
struct Answers {
  static constexpr const char* kNames[] = {"acc", "acc_norm", "acc_bytes"};
  std::array<std::size_t, 3> chosen{};

  Answers(const std::vector<TextScore>& scores, const std::vector<std::string>& choices) {
    for (std::size_t way = 0; way < chosen.size(); ++way) {
      const auto value = [&](std::size_t k) {
        const auto bytes = static_cast<double>(choices[k].size());
        const auto letters = static_cast<double>(std::ranges::count_if(
            choices[k], [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
        return scores[k].logprob / (way == 0 ? 1.0 : way == 1 ? letters : bytes);
      };
      for (std::size_t k = 1; k < scores.size(); ++k) {
        if (value(k) > value(chosen[way])) chosen[way] = k;
      }
    }
  }
};

/// A JSON object for each line of a file: the log-likelihood of a continuation, or of a question's
/// choices, and in the end the share of questions whose likeliest choice is right.
void score_lines(InferenceModel& model, const std::string& path) {
  const FileText file = read_file(path);
  if (!file.fault.empty())
    fail(ExitCode::kUsage, "predict", {.file = shown(path), .key = "--score"}, "cannot be read: {}",
         file.fault);
  std::istringstream lines(file.text);
  std::array<double, 3> right{};
  std::int64_t number = 0, questions = 0, scored = 0;
  for (std::string text; std::getline(lines, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = fmt::format("{}:{}", shown(path), number);
    const ScoreLine line{parse_json(text, place), place};
    if (!line.value.is_object()) line.refuse("", "an object");
    ++scored;
    try {
      if (!line.value.contains("query")) {
        answer(json_of(model.score(line.text("context"), line.text("continuation"))).dump() + "\n");
        continue;
      }
      const std::string query = line.text("query"), delimiter = line.text("delimiter", " ");
      const nlohmann::json choices = line.value.value("choices", nlohmann::json()),
                           gold = line.value.value("gold", nlohmann::json());
      if (!choices.is_array() || choices.empty()) line.refuse("choices", "a list of texts");
      if (!gold.is_number_unsigned() || gold >= choices.size())
        line.refuse("gold", "the right one's place in choices, from 0 on");
      std::vector<TextScore> scores;
      std::vector<std::string> texts;
      nlohmann::ordered_json told{{"choices", nlohmann::ordered_json::array()}};
      for (const nlohmann::json& choice : choices) {
        texts.push_back(choice.is_string() ? choice.get<std::string>() : "");
        if (texts.back().empty()) line.refuse("choices", "texts that are not empty");
        scores.push_back(model.score(query, delimiter + texts.back()));
        told["choices"].push_back(json_of(scores.back()));
      }
      const Answers answers(scores, texts);
      for (std::size_t way = 0; way < right.size(); ++way) {
        const int is_right = gold == answers.chosen[way] ? 1 : 0;
        told[Answers::kNames[way]] = is_right;
        right[way] += is_right;
      }
      ++questions;
      answer(told.dump() + "\n");
    } catch (const Error& fault) {
      ErrorParts parts = fault.parts();
      if (fault.code() != ExitCode::kUsage || !parts.where.file.empty()) throw;
      parts.where.file = place;
      throw Error(fault.code(), parts);
    }
  }
  if (scored == 0)
    fail(ExitCode::kUsage, "predict", {.file = shown(path), .key = "--score"},
         "has no line; needed: JSON lines with context and continuation, or query, choices and "
         "gold");
  if (questions == 0) return;
  nlohmann::ordered_json all;
  for (std::size_t way = 0; way < right.size(); ++way)
    all[Answers::kNames[way]] = right[way] / static_cast<double>(questions);
  all["questions"] = questions;
  answer(all.dump() + "\n");
}

void tell_perplexity(InferenceModel& model, const PredictOptions& options) {
  const FileText file = read_file(options.perplexity);
  if (!file.fault.empty())
    fail(ExitCode::kUsage, "predict", {.file = shown(options.perplexity), .key = "--perplexity"},
         "cannot be read: {}", file.fault);
  const TextPerplexity found = model.perplexity(file.text, options.stride);
  const nlohmann::ordered_json line{{"perplexity", found.perplexity},
                                    {"loss", found.loss},
                                    {"bits_per_byte", found.bits_per_byte},
                                    {"tokens", found.tokens}};
  answer(line.dump() + "\n");
}

ExitCode predict(const PredictOptions& options) {
  check_options(options.generate);
  const auto model = load_model(options.model, options.inference);
  if (options.of_text() != model->is_language_model() ||
      (options.of_text() && !options.inputs.empty()))
    fail(ExitCode::kUsage, "predict", "{} is {}; give {}", options.model,
         model->is_language_model() ? "a language model" : "no language model",
         model->is_language_model()
             ? "--prompt TEXT, --chat, --score FILE or --perplexity FILE, and no files"
             : "files, and no --prompt, --chat, --score or --perplexity");
  if (options.chat) chat(*model, options);
  if (!options.score.empty()) score_lines(*model, options.score);
  if (!options.perplexity.empty()) tell_perplexity(*model, options);
  if (!options.generates() && options.of_text()) return ExitCode::kOk;
  if (!options.prompts.empty()) return generate_lines(*model, options);
  if (options.prompt) {
    generate(*model, *options.prompt, options);
    return ExitCode::kOk;
  }
  if (model->columns()) return predict_tables(*model, options);
  const std::vector<std::string> files = files_of(options.inputs);
  Predictions predictions(*model, options);
  const int threads = options.inference.threads > 0 ? options.inference.threads : usable_cores();
  const auto outputs = static_cast<std::size_t>(model->output().elements());
  for (std::size_t begin = 0; begin < files.size(); begin += kBatch) {
    const std::size_t end = std::min(files.size(), begin + kBatch);
    const std::vector<PreparedPicture> pictures = prepare(*model, files, begin, end, threads);
    std::vector<std::uint8_t> batch;
    for (const PreparedPicture& picture : pictures)
      batch.insert(batch.end(), picture.bytes.begin(), picture.bytes.end());
    const std::vector<float> logits = model->scores(std::span<const std::uint8_t>(batch));
    std::size_t row = 0;
    for (std::size_t i = 0; i < pictures.size(); ++i) {
      if (const auto& fault = pictures[i].fault) {
        if (fault->code() != ExitCode::kUsage) throw Error(*fault);
        predictions.leave_out(fault->what());
        continue;
      }
      predictions.add(files[begin + i], 0, std::span(logits).subspan(outputs * row++, outputs));
    }
  }
  return predictions.finish();
}

int run_predict(int argc, char** argv) {
  PredictOptions options;
  CLI::App app{
      "Classifies pictures with a trained model: a line a picture, most probable class first. Of a "
      "model of a table's rows, a line a row of CSV files. A language model goes on with a text.",
      "starling-predict"};
  app.add_option("model", options.model,
                 "a run's folder, its model.safetensors, or a checkpoint's folder; of text also a "
                 "folder of Hugging Face's")
      ->required();
  add_list(app, "pictures", options.inputs,
           "JPEG or PNG files, or folders of them; CSV files for a model of a table's rows, - for "
           "one of a pipe");
  add_number(app, "--top", options.top, "how many classes a line names", 1, 1 << 24);
  app.add_flag("--json", options.json,
               "a JSON object a line: {\"file\", \"top\": [{\"class\", \"index\", "
               "\"probability\"}]}; of another task {\"file\", "
               "\"outputs\"}; of a text {\"prompt\", \"text\", \"tokens\", "
               "\"tokens_per_second\"}, the new ones, with --samples also \"seed\"; of a table's "
               "row also \"row\", the names "
               "being row 1; bytes of a "
               "name that are not UTF-8 as \\udc80 to \\udcff, as Python's os.fsdecode() has them");
  app.add_option("--out", options.out,
                 "write predictions to this file as CSV: file, a table's row, prediction, and of "
                 "classes the probability")
      ->excludes("--top", "--json");
  app.add_option("--prompt", options.prompt, "of a language model: the text that it goes on with")
      ->excludes("--top", "--out");
  app.add_option("--prompts", options.prompts,
                 "a file with a prompt a line, each of which it goes on with; -: standard input")
      ->excludes("--top", "--out", "--prompt");
  app.add_option("--score", options.score,
                 "JSON lines: how likely a `continuation` is behind a `context`, or which of "
                 "`choices` behind a `query`, of which number `gold` is right; between them "
                 "stands `delimiter`, or a blank")
      ->excludes("--top", "--out", "--prompt", "--prompts");
  app.add_option("--perplexity", options.perplexity,
                 "a text: the mean log-likelihood of its tokens")
      ->excludes("--top", "--out", "--prompt", "--prompts", "--score");
  app.add_flag("--chat", options.chat,
               "of a language model: answers each line of standard input, as a conversation")
      ->excludes("--top", "--out", "--json", "--prompt", "--prompts", "--score", "--perplexity");
  std::vector<std::string> templates = ChatTemplate::names();
  templates.emplace_back("auto");
  app.add_option("--template", options.chat_template,
                 "how a conversation is written as tokens; auto: as the model's data, or as the "
                 "template beside it")
      ->check(CLI::IsMember(templates))
      ->capture_default_str()
      ->needs("--chat");
  app.add_option("--system", options.system, "a system's message before the conversation")
      ->needs("--chat");
  add_number(app, "--stride", options.stride,
             "tokens from the beginning of one window to that of the next; 0: the model's context",
             0, 1 << 30)
      ->needs("--perplexity");
  const CLI::Option* const of_texts[] = {
      add_number(app, "--tokens", options.generate.tokens, "how many tokens it adds at most", 1,
                 1 << 30),
      add_list(app, "--stop", options.generate.stop,
               "a text before which it ends; may be given again"),
      app.add_flag("--ignore-eos", options.generate.ignore_eos,
                   "go on behind a token that ends texts, such as <|endoftext|>"),
      add_number(app, "--samples", options.samples,
                 "how many texts of a prompt: of --seed, of the seed after it, and so on", 1,
                 1 << 20),
      add_number(app, "--temperature", options.generate.temperature,
                 "what logits are divided by; 0: the most probable token is taken each time", 0.0,
                 1e6),
      add_number(app, "--top-k", options.generate.top_k,
                 "only the k most probable tokens are drawn; 0: all", 0, 1 << 30),
      add_number(app, "--top-p", options.generate.top_p,
                 "only the most probable tokens that have this probability together are drawn",
                 1e-12, 1.0),
      add_number(app, "--seed", options.generate.seed, "of the draws", 0, UINT64_MAX)};
  app.add_option("--device", options.inference.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", options.inference.threads, "of the CPU (default: all cores)")
      ->check(whole_in(1, 1024));
  add_list(app, "--plugin", options.inference.plugins,
           "shared library with a layer or model that is not built in");
  if (const auto status = parse_arguments(app, argc, argv)) return *status;
  for (const CLI::Option* option : of_texts) {
    if (!option->empty() && !options.generates() && !options.chat)
      fail(ExitCode::kUsage, "arguments", "{} requires --prompt, --prompts or --chat",
           option->get_name());
  }
  if (!options.of_text() && options.inputs.empty())
    fail(ExitCode::kUsage, "predict",
         "nothing is given for the model; needed: pictures, a table, or --prompt TEXT");
  if (options.samples > 1 && options.chat)
    fail(ExitCode::kUsage, "arguments", "--samples excludes --chat, which goes on with one answer");
  if (options.samples > 1 && options.generate.temperature == 0.0)
    fail(ExitCode::kUsage, "arguments",
         "--samples {} with --temperature 0 would be {} equal texts; give a temperature above 0",
         options.samples, options.samples);
  return static_cast<int>(predict(options));
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  starling::cpu::wait_with_short_spins("starling-predict", argv);
  return starling::run_program("starling-predict",
                               [&] { return starling::run_predict(argc, argv); });
}
