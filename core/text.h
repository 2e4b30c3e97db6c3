#pragma once

#include <string>
#include <string_view>

namespace starling {

/// Text that came from outside (a key, a name, a path, a value), fit for one short line of an error: control characters and bytes that are
/// not UTF-8 are escaped (\n, \x1b), and what is past `limit` characters is replaced by "…".
std::string shown(std::string_view text, std::size_t limit = 80);

/// A name in quotes, so that blanks at its ends are seen; one that another may look the same as, since it has more than ASCII or such
/// blanks, with its bytes: 'café' (caf\xc3\xa9).
std::string told_apart(std::string_view name);

/// Whether all of it is.
bool is_utf8(std::string_view text);

/// Breaks lines at spaces so that none is wider than `width` characters, but for words that are: what follows a break is set in by two.
/// `column` is where the text begins, and where it ends.
std::string wrapped(std::string_view text, int width, int& column);

}  // namespace starling
