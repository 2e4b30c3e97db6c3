#include "tests/apps/program.h"

#include <fmt/format.h>
#include <regex.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/training/config/plugins.h"
#include "apps/training/run.h"
#include "comm/agreement.h"
#include "core/safetensors.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/caught.h"
#include "tests/support/rows.h"

namespace starling::test {
namespace {

namespace fs = std::filesystem;

TrainOptions options_of(const Program::Arguments& arguments) {
  std::vector<std::string> words{"starling-train"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return parse_train_options(static_cast<int>(argv.size()), argv.data());
}

ExitCode run(const std::vector<Program::Arguments>& of_ranks) {
  std::vector<TrainOptions> options;
  for (const Program::Arguments& arguments : of_ranks) options.push_back(options_of(arguments));
  if (answer_question(options.front(), true)) return ExitCode::kOk;
  FakeWorld world(static_cast<int>(options.size()));
  std::atomic<ExitCode> code{ExitCode::kOk};
  world.run([&](Transport& own) {
    const int rank = own.rank();
    const ExitCode mine = run_ranks(options[static_cast<std::size_t>(rank)],
                                    [&](double) { return world.transport(rank); });
    if (rank == 0) code = mine;
  });
  return code;
}

/// One bit in the middle of a tensor's bytes; of a number: at that place.
void flip(const std::string& path, const std::string& tensor) {
  std::string text = read_text(path);
  std::size_t at = 0;
  if (std::isdigit(static_cast<unsigned char>(tensor[0])) &&
      tensor.find('.') == std::string::npos) {
    at = std::stoul(tensor);
  } else {
    std::uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof length);
    const nlohmann::json place =
        nlohmann::json::parse(text.substr(8, length)).at(tensor)["data_offsets"];
    at = 8 + length + (place[0].get<std::size_t>() + place[1].get<std::size_t>()) / 2;
  }
  text.at(at) = static_cast<char>(text[at] ^ 2);
  std::ofstream(path, std::ios::binary) << text;
}

/// What a story does and looks at between two runs, `last` being the one before.
void step(const std::string& line, const Ended& last) {
  std::istringstream stream(line);
  std::string verb;
  stream >> verb;
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  const auto rest = [&] { return line.substr(verb.size() + 1 + words[0].size() + 1); };
  const auto make_parents = [](const std::string& path) {
    fs::create_directories(fs::absolute(path).parent_path());
  };
  const auto model = [](const std::string& folder) { return folder + "/model.safetensors"; };
  if (verb == "same") {
    CHECK(same_model(model(words.at(0)), model(words.at(1))));
  } else if (verb == "differ") {
    CHECK_FALSE(same_model(model(words.at(0)), model(words.at(1))));
  } else if (verb == "losses") {
    CHECK(losses(words.at(0)) == losses(words.at(1)));
  } else if (verb == "alike") {
    CHECK(read_text(words.at(0)) == read_text(words.at(1)));
  } else if (verb == "has" || verb == "lacks") {
    for (const std::string& path : words) CHECK_MESSAGE(fs::exists(path) == (verb == "has"), path);
  } else if (verb == "line") {
    CHECK(matches(read_text(words.at(0)), rest()));
  } else if (verb == "said") {
    CHECK_MESSAGE(std::to_string(lines_of(last.err).size()) == words.at(0), last.err);
  } else if (verb == "unsaid") {
    CHECK((last.out + last.err).find(line.substr(7)) == std::string::npos);
  } else if (verb == "copy") {
    make_parents(words.at(1));
    if (fs::is_directory(words.at(0))) fs::remove_all(words.at(1));
    fs::copy(words.at(0), words.at(1),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  } else if (verb == "forget") {  // as if the run had ended before
    for (std::size_t i = 1; i < words.size(); ++i)
      fs::remove_all(words[0] + "/checkpoints/step-" + words[i]);
    fs::remove(model(words[0]));
  } else if (verb == "write") {
    make_parents(words.at(0));
    std::ofstream(words[0], std::ios::binary) << (words.size() > 1 ? rest() + "\n" : "");
  } else if (verb == "cut") {
    fs::resize_file(words.at(0), std::stoul(words.at(1)));
  } else if (verb == "flip") {
    flip(words.at(0), words.at(1));
  } else if (verb == "remove") {
    for (const std::string& path : words) fs::remove_all(path);
  } else if (verb == "folder") {
    fs::create_directories(words.at(0));
  } else if (verb == "pipe") {
    REQUIRE(::mkfifo(words.at(0).c_str(), 0600) == 0);
  } else {
    FAIL("no such step");
  }
}

}  // namespace

bool matches(const std::string& text, const std::string& pattern) {
  regex_t expression;
  if (::regcomp(&expression, pattern.c_str(), REG_EXTENDED | REG_NOSUB | REG_NEWLINE) != 0)
    throw std::runtime_error("no regular expression: " + pattern);
  const bool found = ::regexec(&expression, text.c_str(), 0, nullptr, 0) == 0;
  ::regfree(&expression);
  return found;
}

Program::Program() : before_(std::filesystem::current_path().string()) {
  register_builtins();
  std::filesystem::current_path(folder_.path());
}
Program::~Program() { std::filesystem::current_path(before_); }

Ended Program::train(const std::vector<Arguments>& of_ranks) const {
  const Folder said;
  Ended ended;
  std::string error;
  {
    const Caught out(stdout, said / "out"), err(stderr, said / "err");
    try {
      ended.status = static_cast<int>(run(of_ranks));
    } catch (...) {
      const std::exception_ptr thrown = std::current_exception();
      const Error failure = as_error(thrown);
      int rank = 0;
      try {
        std::rethrow_exception(thrown);
      } catch (const AgreedError& agreed) {
        rank = agreed.rank();
      } catch (...) {  // told without a rank
      }
      ended.status = static_cast<int>(failure.code());
      error = fmt::format("{}{}\n",
                          rank > 0 && of_ranks.size() > 1 ? fmt::format("rank {}: ", rank) : "",
                          failure.what());
    }
  }
  ended.out = said.read("out");
  ended.err = said.read("err") + error;
  return ended;
}

Ended Program::train(int ranks, const std::string& command, const Arguments& settings) const {
  Arguments arguments;
  std::istringstream words(command);
  for (std::string word; words >> word;) arguments.push_back(word);
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  return train(std::vector<Arguments>(static_cast<std::size_t>(ranks), arguments));
}

Ended Program::check(const std::string& name, int ranks, int status, const std::string& pattern,
                     const std::string& command, const Arguments& settings) const {
  const Ended ended = train(ranks, command, settings);
  const std::string said = ended.out.substr(0, 20000) + ended.err;
  CHECK_MESSAGE(ended.status == status, name << " ended with " << ended.status << ": " << said);
  CHECK_MESSAGE(matches(ended.out + ended.err, pattern),
                name << ": no line matches '" << pattern << "' in: " << said);
  if (status == static_cast<int>(ExitCode::kUsage)) {
    const std::vector<std::string> lines = lines_of(ended.err);
    const auto errors = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
      return !line.starts_with("warning: ");
    });
    CHECK_MESSAGE(errors == 1, name << " is not told in one line: " << ended.err);
  }
  return ended;
}

Ended Program::play(const std::string& story, const std::string& command,
                    const std::vector<std::string>& prefixes) const {
  std::map<std::string, Arguments> macros;
  Ended last;
  for (const std::string& line : lines_of(story)) {
    if (line.empty()) continue;
    INFO(line);
    std::vector<std::string> columns = parts_of(line, " | ");
    std::istringstream first(columns.at(0));
    if (int status = 0, ranks = 0; first >> status) {
      first >> ranks;
      const std::size_t begin = command.empty() ? 4 : 3;
      REQUIRE((ranks > 0 && columns.size() >= begin));
      Arguments settings;
      for (std::size_t i = begin; i < columns.size(); ++i) {
        if (columns[i].starts_with('$')) {
          const Arguments& more = macros.at(columns[i].substr(1));
          settings.insert(settings.end(), more.begin(), more.end());
        } else {
          settings.push_back(i - begin < prefixes.size() ? prefixes[i - begin] + columns[i]
                                                         : columns[i]);
        }
      }
      last = check(columns[1], ranks, status, columns[2], command.empty() ? columns[3] : command,
                   settings);
    } else if (line.starts_with("let ")) {
      const std::size_t at = line.find(" = ");
      macros[line.substr(4, at - 4)] = parts_of(line.substr(at + 3), " | ");
    } else {
      step(line, last);
    }
  }
  return last;
}

nlohmann::json Program::summary(const std::string& folder) const {
  return nlohmann::json::parse(read(folder + "/summary.json"));
}

std::vector<nlohmann::json> Program::metrics(const std::string& folder,
                                             const std::string& key) const {
  std::vector<nlohmann::json> result;
  for (nlohmann::json& numbers : json_lines(read(folder + "/metrics.jsonl")))
    if (numbers.contains(key)) result.push_back(std::move(numbers));
  return result;
}

nlohmann::json last_line(const Ended& ended) {
  return nlohmann::json::parse(lines_of(ended.out).back());
}

bool same_model(const std::string& a, const std::string& b) {
  const SafetensorsFile one = read_safetensors(a), other = read_safetensors(b);
  return std::equal(one.tensors.begin(), one.tensors.end(), other.tensors.begin(),
                    other.tensors.end(), [](const auto& x, const auto& y) {
                      return x.first == y.first && x.second.dtype == y.second.dtype &&
                             x.second.shape == y.second.shape && x.second.bytes == y.second.bytes;
                    });
}

std::string losses(const std::string& folder) {
  std::string text;
  for (const nlohmann::json& entry : json_lines(read_text(folder + "/metrics.jsonl")))
    if (entry.contains("loss"))
      text += fmt::format("{} {}\n", entry.at("step").dump(), entry.at("loss").dump());
  return text;
}

std::string short_config(const std::string& model, const std::string& keys) {
  return R"({"model": )" + model +
         R"(, "data": {"type": "synthetic", "limit": 1024, "test_limit": 256}, )" + keys +
         R"( "evaluate": {"every_epochs": 0}, "log_every": 1, "threads": 1, "tensorboard": false})";
}

}  // namespace starling::test
