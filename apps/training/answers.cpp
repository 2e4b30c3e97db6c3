#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/plugins.h"
#include "apps/training/config/train_config.h"
#include "apps/training/output/version.h"
#include "apps/training/run.h"
#include "apps/training/schedules/schedule.h"
#include "apps/training/tasks/metric.h"
#include "core/config.h"
#include "core/console.h"

// Answers to what needs no run: --help, --version, --list, --describe-config.
namespace starling {
namespace {

/// A name in a registry, and a line on it.
struct Listed {
  std::string name, summary;
};
template <class R>
std::vector<Listed> listed(const R& registry) {
  std::vector<Listed> result;
  for (const std::string& name : registry.names()) result.push_back({name, registry.summary(name)});
  return result;
}
/// A kind of part that `--list` knows.
struct ListedKind {
  const char* kind;
  std::vector<Listed> (*entries)();
};
constexpr ListedKind kListed[] = {{"models", [] { return listed(models()); }},
                                  {"layers", [] { return listed(layers()); }},
                                  {"topologies", [] { return listed(topologies()); }},
                                  {"algorithms", [] { return listed(algorithms()); }},
                                  {"transports", [] { return listed(transports()); }},
                                  {"optimizers", [] { return listed(optimizers()); }},
                                  {"schedules", [] { return listed(schedules()); }},
                                  {"data", [] { return listed(datasets()); }},
                                  {"samplers", [] { return listed(samplers()); }},
                                  {"augmentations", [] { return listed(augmentations()); }},
                                  {"tasks", [] { return listed(tasks()); }},
                                  {"losses", [] { return listed(losses()); }},
                                  {"metrics", [] { return listed(metrics()); }},
                                  {"keys", [] {
                                     std::set<std::pair<std::string, std::string>> keys;
                                     for (const ConfigKey& key : config_keys())
                                       keys.emplace(key.path, key.allowed);
                                     std::vector<Listed> result;
                                     for (const auto& [path, words] : keys)
                                       result.push_back({path, words});
                                     return result;
                                   }}};

/// One name a line; `described`: with a line on each.
void print_names(const std::string& kind, bool described) {
  std::vector<std::string> kinds;
  for (const ListedKind& list : kListed) {
    if (kind == list.kind) {
      const std::vector<Listed> entries = list.entries();
      std::size_t widest = 0;
      for (const Listed& entry : entries) widest = std::max(widest, entry.name.size());
      std::string text;
      for (const auto& [name, summary] : entries) {
        text += described && !summary.empty() ? fmt::format("{:<{}}  {}\n", name, widest, summary)
                                              : name + "\n";
      }
      answer(text);
      return;
    }
    kinds.emplace_back(list.kind);
  }
  fail(ExitCode::kUsage, "arguments", "--list: unknown kind '{}'{}; known: {}", kind,
       suggestion(kind, kinds), fmt::join(kinds, ", "));
}

}  // namespace

bool answer_question(const TrainOptions& options, bool first_rank) {
  if (!options.help && !options.version && !options.describe_config && options.list.empty())
    return false;
  if (!first_rank) return true;
  if (options.help)
    answer(options.help_text);
  else if (options.version)
    answer(version_report());
  else if (options.describe_config)
    answer(describe_config());
  else {
    if (!options.config.empty()) {  // so that what plug-ins bring is listed too
      const nlohmann::json config = read_json_file(options.config);
      ConfigSection root(config, options.config);
      load_plugins(root.texts("plugins", {}, ""));
    }
    print_names(options.list, options.list_long || stdout_is_terminal());
  }
  return true;
}

}  // namespace starling
