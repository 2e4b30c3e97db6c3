#include "apps/trainer/output/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

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

/// "; did you mean '--resume'?" for the first argument that is no option of the program or the
/// subcommand.
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
    if (argument.starts_with("--") &&
        std::find(known.begin(), known.end(), argument) == known.end())
      return suggestion(argument, known);
  }
  return {};
}

/// Stands before an argument that begins with a bracket, lest CLI11 take "[a,b]" for a list.
constexpr char kAsItIs = '\x01';

void take_as_given(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    option->transform(
        [](std::string value) { return value.starts_with(kAsItIs) ? value.substr(1) : value; });
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    take_as_given(*command);
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
  // CLI11 tells the arguments that it does not know backwards.
  std::string text = dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr
                         ? error.what()
                         : fmt::format("not known: {}", fmt::join(app.remaining(true), " "));
  std::replace(text.begin(), text.end(), '\n', ' ');
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

void refuse_unknown_subcommand(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2) return;
  const std::string name = argv[1];
  std::vector<std::string> names;
  std::string known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  if (name.starts_with("-") || std::find(names.begin(), names.end(), name) != names.end()) return;
  fail(ExitCode::kUsage, "arguments", "unknown subcommand '{}'{}; known: {}", name,
       suggestion(name, names), known);
}

namespace {

/// The number that a text stands for, as long as one can compute with it.
std::optional<double> usable_number(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || (number != 0.0 && !std::isnormal(number)))
    return std::nullopt;
  return number;
}

/// Does refuse_odd_numbers() for a program or a subcommand, which is called `command`.
void refuse_odd(const CLI::App& app, const std::string& command) {
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_type_name().starts_with("FLOAT")) continue;
    for (const std::string& text : option->results()) {
      if (usable_number(text)) continue;
      fail(ExitCode::kUsage, "arguments",
           "{}: expected a finite number, and none too small to compute with, found '{}'; see {} "
           "--help",
           option->get_name(), shown(text, 60), command);
    }
  }
  for (const CLI::App* parsed : app.get_subcommands())
    refuse_odd(*parsed, command + " " + parsed->get_name());
}

}  // namespace

std::string positive_number(const std::string& text) {
  const std::optional<double> number = usable_number(text);
  return number && *number > 0.0
             ? ""
             : fmt::format("expected a number above 0, found '{}'", shown(text, 60));
}

void refuse_odd_numbers(const CLI::App& app) { refuse_odd(app, app.get_name()); }

}  // namespace starling
