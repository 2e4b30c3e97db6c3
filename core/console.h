#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

// What goes to a program's stdout and stderr.
namespace starling {

/// The first thing a program does: where stdin, stdout or stderr is closed, /dev/null takes its
/// place, so that no file which is opened later gets its number, and with it what is printed. On a
/// terminal, mpirun's too, what goes to stderr from now on erases a progress line first.
/// `with_reader`: whether the program ends where whoever reads what it writes goes, as in
/// `… | head`: quietly, with 128 + SIGPIPE, and without half-written files; otherwise say() goes
/// on.
void take_standard_files(bool with_reader);

/// Whether what this process prints on stdout ends up on a terminal, of which lines can be drawn
/// again. Under mpirun a rank's stdout is mpirun's own, so there mpirun's stdout is asked.
bool stdout_is_terminal();
/// Columns of the terminal on stdout; 80 where there is none.
std::size_t terminal_width();

/// News of a run, for whoever looks. A stdout that takes no more (a reader that went, a full disk)
/// is told once on stderr and forgotten.
void say(std::string_view text);
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  say(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

/// Prints what the program was asked for: Error(kOutput) where it cannot be written; where its
/// reader has gone, the process ends as above.
void answer(std::string_view text);
template <class... Args>
void answer(fmt::format_string<Args...> format, Args&&... args) {
  answer(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

/// A line on stderr, which this ends. One that cannot be written is lost: nobody is left to be
/// told.
void complain(std::string_view line);
template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  complain(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace starling
