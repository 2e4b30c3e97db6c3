#include "comm/agreement.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <vector>

#include "core/checksum.h"

namespace starling {
namespace {

/// Serialises an error: numbers, and texts preceded by their lengths.
std::string packed(const Error& error) {
  const ErrorParts& parts = error.parts();
  std::string text = fmt::format("{} {} {} ", static_cast<int>(error.code()), parts.where.step,
                                 parts.where.bucket);
  for (const std::string* part :
       {&parts.component, &parts.what, &parts.remedy, &parts.where.file, &parts.where.key}) {
    text += fmt::format("{} {}", part->size(), *part);
  }
  return text;
}

AgreedError unpacked(const RankReason& reason) {
  const char* at = reason.reason.data();
  const char* const end = at + reason.reason.size();
  const auto number = [&] {
    std::int64_t value = 0;
    at = std::from_chars(at, end, value).ptr + 1;  // skips the space
    return value;
  };
  const auto code = static_cast<ExitCode>(number());
  ErrorParts parts;
  parts.where.rank = reason.rank;
  parts.where.step = number();
  parts.where.bucket = static_cast<int>(number());
  for (std::string* part :
       {&parts.component, &parts.what, &parts.remedy, &parts.where.file, &parts.where.key}) {
    const auto size = static_cast<std::size_t>(number());
    part->assign(at, size);
    at += size;
  }
  return AgreedError(code, std::move(parts));
}

}  // namespace

std::optional<RankReason> lowest_reason(World& world, const std::string& mine) {
  const std::vector<std::string> all =
      world.size() == 1 ? std::vector{mine} : world.all_gather(mine);
  const auto first = std::find_if(all.begin(), all.end(),
                                  [](const std::string& reason) { return !reason.empty(); });
  if (first == all.end()) return std::nullopt;
  return RankReason{static_cast<int>(first - all.begin()), *first};
}

std::optional<AgreedError> try_on_all_ranks(World& world, const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (...) {
    mine = packed(as_error(std::current_exception()));
  }
  const std::optional<RankReason> reason = lowest_reason(world, mine);
  return reason ? std::optional(unpacked(*reason)) : std::nullopt;
}

void on_all_ranks(World& world, const std::function<void()>& work) {
  if (const std::optional<AgreedError> error = try_on_all_ranks(world, work))
    throw AgreedError(*error);
}

std::optional<Disagreement> find_disagreement(World& world, const std::string& mine) {
  if (world.size() == 1) return std::nullopt;
  const std::vector<std::string> digests = world.all_gather(checksum(mine));
  const auto other = std::find_if(digests.begin(), digests.end(),
                                  [&](const std::string& each) { return each != digests.front(); });
  if (other == digests.end()) return std::nullopt;
  // All ranks have the same digests, so all reach this point and exchange the same two texts.
  const auto rank = static_cast<int>(other - digests.begin());
  std::vector<std::string> texts =
      world.all_gather(world.rank() == 0 || world.rank() == rank ? mine : std::string());
  return Disagreement{rank, std::move(texts.front()),
                      std::move(texts[static_cast<std::size_t>(rank)])};
}

}  // namespace starling
