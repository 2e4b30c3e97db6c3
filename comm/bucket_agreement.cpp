#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

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

/// FNV-1a in 128 bits (two seeds of the 64-bit one).
std::string digest(const std::string& text) {
  std::uint64_t hash[2] = {0xcbf29ce484222325ULL, 0x9e3779b97f4a7c15ULL};
  for (const char c : text) {
    for (std::uint64_t& h : hash) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  std::string bytes(sizeof hash, '\0');
  std::memcpy(bytes.data(), hash, sizeof hash);
  return bytes;
}

}  // namespace

void agree_on_plan(const BucketPlan& plan, DType dtype, Transport& transport) {
  const std::string mine = join(plan_lines(plan, dtype));
  const std::vector<std::string> digests = transport.all_gather(digest(mine));
  std::size_t other = 0;
  while (other < digests.size() && digests[other] == digests[0]) ++other;
  if (other == digests.size()) return;

  // All ranks hold the same digests, so all of them come here and report the same pair of ranks.
  const std::vector<std::string> texts = transport.all_gather(
      static_cast<std::size_t>(transport.rank()) == 0 || static_cast<std::size_t>(transport.rank()) == other ? mine : std::string());
  const std::vector<std::string> a = split(texts[0]), b = split(texts[other]);
  std::size_t place = 0;
  while (place < a.size() && place < b.size() && a[place] == b[place]) ++place;
  const auto at = [&](const std::vector<std::string>& lines) {
    return place < lines.size() ? lines[place] : std::string("no more parameters");
  };
  fail(ExitCode::kUsage, "plan",
       "ranks 0 and {} disagree on the model: at place {} of the traced order rank 0 has {}, rank {} has {}; all ranks need the same "
       "program "
       "and config",
       other, place, at(a), other, at(b));
}

}  // namespace starling
