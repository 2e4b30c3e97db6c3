#pragma once

#include <nlohmann/json_fwd.hpp>
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

/// The same of a config's key, as "; give --set model.heads=12". A ConfigSection::Hint.
std::string hint_of_key(const std::string& section, const std::string& key,
                        const nlohmann::json& value);

}  // namespace starling
