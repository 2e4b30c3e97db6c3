#include "apps/reports/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "apps/reports/chart.h"

namespace starling {
namespace {

constexpr double kTimeWidth = 900.0, kTimeLeft = 150.0, kBar = 11.0, kLeast = 0.4;
constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;
constexpr std::size_t kMostDepth = 3, kMostRanks = 8;

struct Span {
  std::string name;
  double begin = 0.0, end = 0.0;
};
using Lane = std::pair<std::int64_t, std::int64_t>;  // rank, number

/// The colour of a span, by its verb.
const char* span_class(const std::string& name) {
  for (const auto& [verb, colour] : {std::pair{"forward", "c0"},
                                     {"backward", "c4"},
                                     {"update", "c2"},
                                     {"exchange", "c1"},
                                     {"send", "c1"},
                                     {"receive", "c1"},
                                     {"readers", "c6"},
                                     {"wait", "c6"},
                                     {"load", "c3"},
                                     {"replay", "c5"}})
    if (name.starts_with(verb)) return colour;
  return "c7";
}

/// Where two steps of the middle begin and end: from the end of a backward pass on rank 0 to that
/// of the second after it; without these, the middle tenth.
std::pair<double, double> excerpt(const std::map<Lane, std::vector<Span>>& lanes) {
  std::vector<double> ends;
  double first = std::numeric_limits<double>::infinity(), last = 0.0;
  for (const auto& [lane, spans] : lanes) {
    for (const Span& span : spans) {
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
      if (lane.first == lanes.begin()->first.first &&
          (span.name == "backward" || span.name == "replay"))
        ends.push_back(span.end);
    }
  }
  std::ranges::sort(ends);
  if (ends.size() < 3) return {first + 0.45 * (last - first), first + 0.55 * (last - first)};
  const std::size_t middle = std::min(ends.size() / 2, ends.size() - 3);
  return {ends[middle], ends[middle + 2]};
}

}  // namespace

std::string draw_timeline(const RunLog& run) {
  const auto given = run.config().find("trace");
  std::string path = run.folder() + "/trace.json";
  std::error_code error;
  if (given != run.config().end() && given->is_string() && !given->get<std::string>().empty())
    path = given->get<std::string>();
  if (!std::filesystem::is_regular_file(path, error)) return "";
  const auto note = [&](const char* why) {
    return fmt::format("<p class=\"none\">{}: {}</p>\n", html_text(path), html_text(why));
  };
  if (std::filesystem::file_size(path, error) > kMostBytes)
    return note("is larger than 256 MiB; open it in Perfetto");
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  const auto events = json.is_object() ? json.find("traceEvents") : json.end();
  if (!json.is_object() || events == json.end() || !events->is_array())
    return note("is no whole timeline");
  // Another run may have been traced into the same file, or the folder is another's now.
  const auto of = json.find("otherData");
  const auto said = [&](const char* key) {
    return of != json.end() && of->is_object() ? text_at(*of, key, "") : "";
  };
  const std::string folder = std::filesystem::weakly_canonical(run.folder(), error).string();
  if (said("/run").empty())
    return note("does not say which run it is of, as those of older versions: trace it anew");
  if (run.first_line().empty() ? said("/run") != folder : said("/first_line") != run.first_line())
    return note(("is the timeline of another run, " + said("/run")).c_str());
  std::map<Lane, std::vector<Span>> lanes;
  std::map<Lane, std::string> names;
  try {
    for (const auto& event : *events) {
      const Lane lane{event.at("pid").get<std::int64_t>(), event.at("tid").get<std::int64_t>()};
      if (lane.first >= static_cast<std::int64_t>(kMostRanks)) continue;
      const std::string kind = event.at("ph").get<std::string>();
      const std::string name = event.at("name").get<std::string>();
      if (kind == "M" && name == "thread_name")
        names[lane] = event.at("args").at("name").get<std::string>();
      if (kind != "X") continue;
      const double begin = event.at("ts").get<double>();
      lanes[lane].push_back({name, begin, begin + event.at("dur").get<double>()});
    }
  } catch (const nlohmann::json::exception&) {
    return note("is no timeline of ours");
  }
  if (lanes.empty()) return note("has no spans");

  const auto [from, to] = excerpt(lanes);
  std::string body;
  double y = 4.0;
  const auto x_of = [from = from, to = to](double us) {
    return kTimeLeft + (kTimeWidth - kTimeLeft - 6.0) * (us - from) / (to - from);
  };
  for (auto& [lane, spans] : lanes) {
    std::ranges::sort(spans, [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<double> open;  // ends of the spans around
    std::size_t deepest = 0;
    std::string bars;
    for (const Span& span : spans) {
      while (!open.empty() && open.back() <= span.begin + 1e-3) open.pop_back();
      const std::size_t depth = open.size();
      open.push_back(span.end);
      if (depth >= kMostDepth || span.end < from || span.begin > to) continue;
      const double left = x_of(std::max(span.begin, from)), right = x_of(std::min(span.end, to));
      if (right - left < kLeast) continue;
      deepest = std::max(deepest, depth + 1);
      fmt::format_to(std::back_inserter(bars),
                     R"(<rect class="span {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}">)"
                     R"(<title>{}: {:.3f} ms</title></rect>)",
                     span_class(span.name), left, y + kBar * static_cast<double>(depth),
                     right - left, kBar - 1, html_text(span.name), (span.end - span.begin) / 1e3);
    }
    if (deepest == 0) continue;
    fmt::format_to(std::back_inserter(body),
                   R"(<text class="tick" x="{}" y="{:.1f}" text-anchor="end">rank {} {}</text>)",
                   kTimeLeft - 6, y + 9, lane.first,
                   html_text(names.count(lane) > 0 ? names.at(lane) : std::string()));
    body += bars;
    y += kBar * static_cast<double>(deepest) + 5.0;
  }
  for (const double tick : round_ticks(0.0, (to - from) / 1e3, 8)) {
    fmt::format_to(std::back_inserter(body),
                   R"(<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="middle">{} ms</text>)",
                   x_of(from + 1e3 * tick), y + 12, number_text(tick));
  }
  return fmt::format(
      R"(<svg class="timeline" viewBox="0 0 {} {:.0f}" role="img" aria-label="timeline">{}</svg>)"
      "\n",
      kTimeWidth, y + 18, body);
}

}  // namespace starling
