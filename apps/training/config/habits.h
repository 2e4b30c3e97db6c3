#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace starling {

/// What stands here for arguments that are options of other trainers, in one sentence, as "--lr and
/// --epochs are no options but keys of the config; give --set optimizer.lr=0.1 --set epochs=3".
/// Nothing where all unknown ones are unknown here, too. `arguments`: without the program's name.
std::optional<std::string> answer_to_habits(const CLI::App& app,
                                            const std::vector<std::string>& arguments);

}  // namespace starling
