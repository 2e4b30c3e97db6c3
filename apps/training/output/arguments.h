#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace CLI {
class App;
class Option;
class ParseError;
class Validator;
}  // namespace CLI

namespace starling {

/// An option whose every occurrence takes one value, or an argument that takes all that are left,
/// as they are given: CLI11's own lists take "[a,b]" for two and "{}" for none.
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                      const std::string& doc);

/// What is wrong with a program's arguments, in one line: "not known: --bandwith 3; did you mean
/// '--bandwidth'?; see starling-topo plan --help".
std::string argument_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                           const char* const* argv);

/// Error(kUsage) where an argument, or what follows an option's '=', is empty, as a variable of the
/// shell may be: CLI11 would take the next argument for the value.
void refuse_empty_arguments(int argc, const char* const* argv);
/// Parses a program's arguments, of which the first may have to be a subcommand. The exit status
/// where they ask for help or the version, which are printed; Error(kUsage) where they are wrong.
std::optional<int> parse_arguments(CLI::App& app, int argc, const char* const* argv);
/// A subcommand, and what it does once arguments are parsed: it returns the exit status.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};
/// Runs the one of a program's subcommands that its arguments name; see parse_arguments().
int run_command(CLI::App& app, const std::vector<Command>& commands, int argc,
                const char* const* argv);
/// Runs a program, for its main(), and tells of an error in one line. Returns the exit status.
int run_program(const char* name, const std::function<int()>& program);

/// The check of an option that takes a number: what it may be, ends included, which --help names
/// and every error too: "--threads: expected a whole number from 1 to 1024, found '1e3'". A whole
/// number has digits alone, and perhaps a minus; any other is finite, and not too small.
CLI::Validator whole_in(std::int64_t least, std::uint64_t most);
CLI::Validator number_in(double least, double most);
/// An option with a default value, and such a check.
template <class App, class T>
auto* add_number(App& app, const char* name, T& value, const char* doc,
                 std::type_identity_t<T> least, std::type_identity_t<T> most) {
  auto* option = app.add_option(name, value, doc)->capture_default_str();
  if constexpr (std::is_floating_point_v<T>)
    return option->check(number_in(least, most));
  else
    return option->check(whole_in(least, most));
}

}  // namespace starling
