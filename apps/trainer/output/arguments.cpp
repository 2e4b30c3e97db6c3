#include "apps/trainer/output/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/registry.h"

namespace starling {
namespace {

/// "; did you mean '--resume'?" for the first argument that is no option of the program or the subcommand.
std::string option_hint(const std::vector<const CLI::App*>& apps, int argc, const char* const* argv) {
  std::vector<std::string> known;
  for (const CLI::App* app : apps) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  for (int i = 1; i < argc; ++i) {
    const std::string argument = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (argument.starts_with("--") && std::find(known.begin(), known.end(), argument) == known.end()) return suggestion(argument, known);
  }
  return {};
}

}  // namespace

std::string argument_error(const CLI::App& app, const CLI::ParseError& error, int argc, const char* const* argv) {
  std::string text = error.what();
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::string command = app.get_name();
  std::vector<const CLI::App*> apps{&app};
  for (const CLI::App* parsed : app.get_subcommands()) {
    apps.push_back(parsed);
    command += " " + parsed->get_name();
  }
  return fmt::format("{}{}; see {} --help", text, option_hint(apps, argc, argv), command);
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
  fail(ExitCode::kUsage, "arguments", "unknown subcommand '{}'{}; known: {}", name, suggestion(name, names), known);
}

}  // namespace starling
