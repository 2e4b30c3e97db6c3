#include "apps/training/output/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <utility>

#include "apps/inference/version.h"
#include "core/console.h"
#include "core/crash.h"
#include "core/error.h"
#include "core/host.h"
#include "core/last_word.h"
#include "core/registry.h"
#include "core/stop_signals.h"
#include "core/text.h"

namespace starling {
namespace {

/// "; did you mean '--resume'?" for the first argument that is no option.
std::string option_hint(const std::vector<const CLI::App*>& apps, int argc,
                        const char* const* argv) {
  std::vector<std::string> known;
  for (const CLI::App* app : apps) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  for (int i = 1; i < argc; ++i) {
    const std::string argument = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (argument.starts_with("--") && std::ranges::find(known, argument) == known.end())
      return suggestion(argument, known);
  }
  return {};
}

/// Stands before an argument that begins with a bracket, lest CLI11 take "[a,b]" for a list.
constexpr char kAsItIs = '\x01';

void take_as_given(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    option->transform([](const std::string& value) {
      return value.starts_with(kAsItIs) ? value.substr(1) : value;
    });
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    take_as_given(*command);
}

/// Error(kUsage), with the nearest, where the first argument is no option and no subcommand.
void refuse_unknown_subcommand(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2 || app.get_require_subcommand_min() == 0) return;
  const std::string name = argv[1];
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  if (name.starts_with("-") || std::ranges::find(names, name) != names.end()) return;
  fail(ExitCode::kUsage, "arguments", "unknown subcommand '{}'{}; known: {}", name,
       suggestion(name, names), fmt::join(names, ", "));
}

/// Whether a text is a whole number within the ends. Not 010, which some read as eight.
bool is_whole_in(const std::string& text, std::int64_t least, std::uint64_t most) {
  const bool negative = text.starts_with('-');
  const char *begin = text.data(), *end = begin + text.size();
  if (end - begin > (negative ? 2 : 1) && begin[negative ? 1 : 0] == '0') return false;
  const auto within = [&](auto number) {
    const auto [at, error] = std::from_chars(begin, end, number);
    return error == std::errc() && at == end && !std::cmp_less(number, least) &&
           !std::cmp_greater(number, most);
  };
  return negative ? within(std::int64_t{}) : within(std::uint64_t{});
}

bool is_number_in(const std::string& text, double least, double most) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0' && (number == 0.0 || std::isnormal(number)) &&
         number >= least && number <= most;
}

template <class Test, class Number, class Most>
CLI::Validator range(const char* kind, Test test, Number least, Most most) {
  return CLI::Validator(
      [=](const std::string& text) {
        return test(text, least, most) ? std::string()
                                       : fmt::format("expected {} from {} to {}, found '{}'", kind,
                                                     least, most, shown(text, 60));
      },
      fmt::format("{}..{}", least, most));
}

}  // namespace

CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                      const std::string& doc) {
  const auto take = [&values](const CLI::results_t& given) {
    values = given;
    return true;
  };
  return app.add_option(name, take, doc)
      ->type_name("TEXT")
      ->expected(CLI::detail::expected_max_vector_size)
      ->allow_extra_args(!name.starts_with("-"));
}

std::string argument_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                           const char* const* argv) {
  // CLI11 returns unknown arguments in reverse order.
  std::string text = dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr
                         ? error.what()
                         : fmt::format("not known: {}", fmt::join(app.remaining(true), " "));
  std::ranges::replace(text, '\n', ' ');
  std::erase(text, kAsItIs);
  text = shown(text, 400);
  std::string command = app.get_name();
  std::vector<const CLI::App*> apps{&app};
  for (const CLI::App* parsed : app.get_subcommands()) {
    apps.push_back(parsed);
    command += " " + parsed->get_name();
  }
  return fmt::format("{}{}; see {} --help", text, option_hint(apps, argc, argv), command);
}

void refuse_empty_arguments(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], before = argv[i - 1];
    const bool glued = argument.starts_with("--") && argument.find('=') == argument.size() - 1;
    if (!argument.empty() && !glued) continue;
    const std::string option = glued ? argument.substr(0, argument.size() - 1)
                               : before.starts_with("--") && before.find('=') == std::string::npos
                                   ? before
                                   : "";
    if (option.empty())
      fail(ExitCode::kUsage, "arguments",
           "argument {} is empty; leave it out, or look whether a variable is", i);
    fail(ExitCode::kUsage, "arguments",
         "{} is given without a value; leave it out, or look whether a variable is empty",
         shown(option));
  }
}

std::optional<int> parse_arguments(CLI::App& app, int argc, const char* const* argv) {
  refuse_unknown_subcommand(app, argc, argv);
  refuse_empty_arguments(argc, argv);
  app.set_version_flag(
      "--version", fmt::format("{} {} (commit {})", app.get_name(), version_text(), commit_text()),
      "print version and commit");
  std::vector<std::string> arguments;  // the last first, as CLI11 has it
  for (int i = argc - 1; i > 0; --i) {
    const std::string argument = argv[i];
    arguments.push_back((argument.starts_with("[") ? std::string(1, kAsItIs) : "") + argument);
  }
  take_as_given(app);
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      const int status = app.exit(error, text, text);
      answer(text.str());
      return status;
    }
    fail(ExitCode::kUsage, "arguments", "{}", argument_error(app, error, argc, argv));
  }
  return std::nullopt;
}

int run_command(CLI::App& app, const std::vector<Command>& commands, int argc,
                const char* const* argv) {
  app.require_subcommand(1);
  if (const auto status = parse_arguments(app, argc, argv)) return *status;
  return std::ranges::find_if(commands, [](const Command& one) { return one.app->parsed(); })
      ->run();
}

int run_program(const char* name, const std::function<int()>& program) {
  take_standard_files(true);
  install_data_fault_reports(name);
  try {
    install_stop_signals();
    at_stop_signal(AtStopSignal::kEnd);
    check_stack_limit();
    return program();
  } catch (...) {
    const Error failure = as_error(std::current_exception());
    complain("{}: {}", name, failure.what());
    return last_word(static_cast<int>(failure.code()), true);
  }
}

CLI::Validator whole_in(std::int64_t least, std::uint64_t most) {
  return range("a whole number", is_whole_in, least, most);
}
CLI::Validator number_in(double least, double most) {
  return range("a number", is_number_in, least, most);
}

}  // namespace starling
