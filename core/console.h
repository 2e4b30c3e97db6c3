#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

// A program's stdout and stderr.
namespace starling {

/// To be called first in main(). Replaces closed standard files by /dev/null, so that no file
/// opened later gets their descriptors and receives output. On a terminal (also mpirun's), output
/// to stderr erases a progress line from now on. `with_reader`: if the reader of stdout exits, as
/// in `… | head`, the program exits silently with 128 + SIGPIPE, without leaving partial files;
/// otherwise say() ignores it.
void take_standard_files(bool with_reader);

/// Whether stdout is a terminal on which lines can be overwritten. Under mpirun, whether mpirun's
/// is.
bool stdout_is_terminal();
/// Columns of the terminal on stdout; 80 if it is not a terminal.
std::size_t terminal_width();

/// Prints information on stdout. A failure (the reader has exited, disk full) is reported once on
/// stderr and then ignored.
void say(std::string_view text);
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  say(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

/// Prints a result on stdout. Error(kOutput) on failure; if the reader has exited the process does
/// as well, see take_standard_files().
void answer(std::string_view text);
template <class... Args>
void answer(fmt::format_string<Args...> format, Args&&... args) {
  answer(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

/// Prints a line on stderr, adding the newline. Failures are ignored.
void complain(std::string_view line);
template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  complain(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace starling
