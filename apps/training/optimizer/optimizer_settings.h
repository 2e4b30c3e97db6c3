#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "apps/training/schedules/schedule.h"
#include "comm/algorithm.h"
#include "core/config.h"
#include "core/parameter.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"
#include "layers/linear.h"

namespace starling {

/// Parameters that are updated otherwise: an item of `optimizer.groups`. The first match wins.
struct ParameterGroup {
  std::string name;  ///< what `match` is made of; of the program's own group what it is
  std::regex match;
  double lr_scale = 1.0;
  double until_epoch = 0.0;  ///< from there on it stays as it is; 0: never
  /// It gives a weight decay, which then applies whatever a parameter's shape
  bool own_decay = false;
  std::unique_ptr<OptimizerRule> rule;
};

/// How parameters are updated: sections `optimizer` and `schedule`, and the clipping of gradients.
struct OptimizerSettings {
  std::string type;
  std::unique_ptr<OptimizerRule> rule;
  std::vector<ParameterGroup> groups;  ///< a parameter that none matches is updated by `rule`
  double lr = 0.1;
  bool decay_all = false;
  std::function<std::unique_ptr<Schedule>(const ScheduleInputs&)> make_schedule;
  ClipSettings clip;
  bool allow_unused = false;  ///< parameters without gradient

  /// The number of the group that a parameter belongs to, from 1 on; 0: of none.
  std::size_t group_of(const Parameter& parameter) const;
  const OptimizerRule& rule_of(const Parameter& parameter) const;
};

/// Reads `optimizer` and `schedule`, for the model's parameters and the config's `device`.
void read_optimizer(ConfigSection& root, const Model& model, const std::string& device,
                    OptimizerSettings& settings);
ClipSettings read_clip(ConfigSection& root);
/// Reads `lora`: adds adapters to the model's linear layers, and takes all else out of training but
/// what it names. Before read_optimizer(). `adapter`: that which the run continues from (`init`).
std::optional<Linear::Adapter> read_lora(ConfigSection& root, bool has_base,
                                         const std::string& adapter, Model& model);

}  // namespace starling
