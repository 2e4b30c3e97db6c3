#include "core/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace starling {

namespace {

/// Damerau-Levenshtein distance in its common form (optimal string alignment): insertions,
/// deletions, substitutions and exchanges of neighbours cost 1 each.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string& current_plugin() {
  static thread_local std::string file;
  return file;
}

}  // namespace

const std::string& registering_plugin() { return current_plugin(); }

PluginScope::PluginScope(std::string file)
    : before_(std::exchange(current_plugin(), std::move(file))) {}

PluginScope::~PluginScope() { current_plugin() = std::move(before_); }

std::string nearest(std::string_view found, const std::vector<std::string>& known) {
  // No name is longer; limits the cost for arbitrary input
  constexpr std::size_t kLongest = 64;
  if (found.empty() || found.size() > kLongest) return {};
  const std::string wanted = lower_case(found);
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& name : known) {
    if (name.size() > kLongest) continue;
    const std::string candidate = lower_case(name);
    std::size_t distance = edit_distance(wanted, candidate);
    const std::size_t near =
        std::max<std::size_t>(1, std::max(wanted.size(), candidate.size()) / 3);
    // A name typed in part ("cos", "one-peer") counts as near, but a similar whole name comes
    // first.
    if (distance > near && wanted.size() >= 3 && candidate.starts_with(wanted)) {
      distance = kLongest + candidate.size();
    } else if (distance > near || distance >= std::max(wanted.size(), candidate.size())) {
      continue;
    }
    if (!best || distance < best_distance) {
      best = &name;
      best_distance = distance;
    }
  }
  return best ? *best : std::string();
}

std::string suggestion(std::string_view found, const std::vector<std::string>& known) {
  const std::string near = nearest(found, known);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

}  // namespace starling
