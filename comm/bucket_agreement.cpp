#include <cstddef>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "comm/bucket.h"
#include "core/error.h"

namespace starling {
namespace {

/// One line per parameter in traced order: everything that must be the same on all ranks.
std::vector<std::string> plan_lines(const BucketPlan& plan, DType dtype) {
  std::vector<std::string> lines;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const BucketSlot& slot : plan.buckets[b].slots) {
      lines.push_back(fmt::format("'{}' ({} {}, bucket {})", slot.parameter->name, slot.parameter->shape.text(), name_of(dtype), b));
    }
  }
  return lines;
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

void agree_on_plan(const BucketPlan& plan, DType dtype, World& world) {
  const auto found = find_disagreement(world, join(plan_lines(plan, dtype)));
  if (!found) return;
  const std::vector<std::string> a = split(found->first), b = split(found->other);
  std::size_t place = 0;
  while (place < a.size() && place < b.size() && a[place] == b[place]) ++place;
  const auto at = [&](const std::vector<std::string>& lines) {
    return place < lines.size() ? lines[place] : std::string("no more parameters");
  };
  fail(ExitCode::kUsage, "plan",
       "ranks 0 and {} disagree on the model: at place {} of the traced order rank 0 has {}, rank {} has {}; all ranks need the same "
       "program and config",
       found->rank, place, at(a), found->rank, at(b));
}

}  // namespace starling
