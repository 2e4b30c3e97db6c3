#include "apps/training/config/habits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/training/config/plugins.h"
#include "apps/training/config/train_config.h"
#include "core/text.h"

namespace starling {
namespace {

/// An option of PyTorch's examples, torchvision, timm, transformers, Ultralytics or nanoGPT, with _
/// for -, and what to give here; {} stands for its value.
struct Habit {
  std::string_view name, here;
};
constexpr std::array kHabits{
    Habit{"a", "--set model.type={}"},
    Habit{"amp", "--set precision=auto"},
    Habit{"arch", "--set model.type={}"},
    Habit{"b", "--set batch_size={}"},
    Habit{"batch", "--set batch_size={}"},
    Habit{"block_size", "--set model.context={0} --set data.sequence_length={0}"},
    Habit{"bs", "--set batch_size={}"},
    Habit{"clip_grad", "--set clip_norm={}"},
    Habit{"cpu", "--device cpu"},
    Habit{"cuda", "--device cuda"},
    Habit{"data", "--set data.path={}"},
    Habit{"data_dir", "--set data.path={}"},
    Habit{"data_path", "--set data.path={}"},
    Habit{"dataset", "--set data.type={}"},
    Habit{"dtype", "--set precision={}"},
    Habit{"eval", "--evaluate RUN"},
    Habit{"eval_interval", "--set evaluate.every_steps={}"},
    Habit{"gpu", "--device cuda"},
    Habit{"grad_clip", "--set clip_norm={}"},
    Habit{"gradient_accumulation_steps", "--set accumulate={}"},
    Habit{"init_from", "--set init={}"},
    Habit{"j", "--set data.threads={}"},
    Habit{"learning_rate", "--set optimizer.lr={}"},
    Habit{"log_interval", "--set log_every={}"},
    Habit{"lr_decay_iters", "--set steps={}"},
    Habit{"max_grad_norm", "--set clip_norm={}"},
    Habit{"max_iters", "--set steps={}"},
    Habit{"max_steps", "--set steps={}"},
    Habit{"n_embd", "--set model.width={}"},
    Habit{"n_head", "--set model.heads={}"},
    Habit{"n_layer", "--set model.layers={}"},
    Habit{"no_cuda", "--device cpu"},
    Habit{"num_epochs", "--set epochs={}"},
    Habit{"num_train_epochs", "--set epochs={}"},
    Habit{"num_workers", "--set data.threads={}"},
    Habit{"opt", "--set optimizer.type={}"},
    Habit{"out_dir", "--output {}"},
    Habit{"output_dir", "--output {}"},
    Habit{"per_device_train_batch_size", "--set batch_size={}"},
    Habit{"pretrained", "--set init=FILE.safetensors"},
    Habit{"print_freq", "--set log_every={}"},
    Habit{"save_dir", "--output {}"},
    Habit{"sched", "--set schedule.type={}"},
    Habit{"scheduler", "--set schedule.type={}"},
    Habit{"smoothing", "--set loss.label_smoothing={}"},
    Habit{"test_only", "--evaluate RUN"},
    Habit{"warmup_iters", "--set schedule.warmup_steps={}"},
    Habit{"wd", "--set optimizer.weight_decay={}"},
    Habit{"weights", "--set init={}"},
    Habit{"workers", "--set data.threads={}"},
};

/// What to give in place of an option of that name; null where it is not known.
const Habit* habit_named(const std::string& name) {
  const auto* found = std::ranges::find(kHabits, name, &Habit::name);
  return found == kHabits.end() ? nullptr : found;
}
std::string with_value(std::string_view form, std::string value) {
  if (value.find_first_of(" *?$&|<>;(){}[]'\"") != std::string::npos) value = "'" + value + "'";
  return fmt::format(fmt::runtime(form), value);
}

/// The key of that name, or whose last part it is; of an object with types its type.
std::optional<std::string> key_named(const std::vector<ConfigKey>& keys, const std::string& name) {
  auto found = std::ranges::find(keys, name, &ConfigKey::path);
  if (found == keys.end()) {
    found = std::ranges::find_if(
        keys, [&](const ConfigKey& key) { return key.path.ends_with("." + name); });
  }
  if (found == keys.end()) return std::nullopt;
  const std::string type = found->path + ".type";
  return std::ranges::find(keys, type, &ConfigKey::path) == keys.end() ? found->path : type;
}

/// An option that the program does not know: "--batch-size" and "64", "-b" and "64", "--lr=0.1".
struct Unknown {
  std::string option, value;
};
std::vector<Unknown> unknown_options(const CLI::App& app,
                                     const std::vector<std::string>& arguments) {
  std::vector<Unknown> result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word.size() < 2 || word[0] != '-' || word == "--") continue;
    const std::size_t equals = word.find('=');
    const std::string option = word.substr(0, equals);
    if (app.get_option_no_throw(option) != nullptr) {
      if (equals == std::string::npos && app.get_option(option)->get_items_expected_max() > 0) ++i;
      continue;
    }
    if (word[1] != '-' && !std::isalpha(static_cast<unsigned char>(word[1]))) continue;
    const bool next = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
    result.push_back({option, equals != std::string::npos ? word.substr(equals + 1)
                              : next                      ? arguments[i + 1]
                                                          : ""});
  }
  return result;
}

}  // namespace

std::optional<std::string> answer_to_habits(const CLI::App& app,
                                            const std::vector<std::string>& arguments) {
  std::vector<ConfigKey> keys;
  std::vector<std::string> asked, here;
  for (const Unknown& unknown : unknown_options(app, arguments)) {
    std::string name = unknown.option.substr(unknown.option.find_first_not_of('-'));
    std::ranges::replace(name, '-', '_');
    std::string form;
    if (const Habit* const habit = habit_named(name)) {
      form = habit->here;
    } else {
      if (keys.empty()) {
        register_builtins();
        keys = config_keys();
      }
      const std::optional<std::string> key = key_named(keys, name);
      if (!key) continue;
      form = "--set " + *key + "={}";
    }
    asked.push_back(unknown.option);
    here.push_back(with_value(form, unknown.value.empty() ? "VALUE" : shown(unknown.value)));
  }
  if (asked.empty()) return std::nullopt;
  const bool one = asked.size() == 1;
  return fmt::format("{} {}; give {}", fmt::join(asked, ", "),
                     one ? "is no option of starling-train" : "are no options of starling-train",
                     fmt::join(here, " "));
}

std::string hint_of_key(const std::string& section, const std::string& key,
                        const nlohmann::json& value) {
  const Habit* const habit = habit_named(key);
  const bool fits = habit && (section.empty() ||
                              habit->here.find("--set " + section + ".") != std::string_view::npos);
  if (!fits) return {};
  // Keys may be bytes of the command line
  const std::string text =
      value.is_string() ? value.get<std::string>()
                        : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return "; give " + with_value(habit->here, shown(text));
}

}  // namespace starling
