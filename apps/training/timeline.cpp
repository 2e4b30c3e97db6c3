#include "apps/training/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/agreement.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace starling {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::string absolute_path(const std::string& path) {
  const std::string whole = std::filesystem::absolute(path).lexically_normal().string();
  return is_utf8(whole) ? whole : path;
}

void write_timeline(const std::string& path, const std::string& mine, const std::string& folder,
                    World& world) {
  // Rank 0 has the folder
  std::string run;
  if (world.rank() == 0)
    run = nlohmann::ordered_json{{"run", absolute_path(folder)},
                                 {"first_line", first_line(folder + "/metrics.jsonl")}}
              .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              .substr(1);
  run = world.all_gather(run).front();
  const std::vector<std::string> events = world.all_gather(mine);
  const auto writer =
      std::ranges::find_if(events, [](const std::string& part) { return !part.empty(); });
  on_all_ranks(world, [&] {
    if (writer - events.begin() != world.rank()) return;
    std::string text = fmt::format("{}{},\"traceEvents\":[", kTimelineBegin, run);
    bool first = true;
    for (const std::string& part : events) {
      if (part.empty()) continue;
      text += (first ? "\n" : ",\n") + part;
      first = false;
    }
    text += "\n]}\n";
    write_file_atomically(path, text.data(), text.size());
  });
}

}  // namespace starling
