#include "topology/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numbers>

#include "topology/mixing.h"
#include "topology/rational.h"

namespace starling {
namespace {

constexpr int kMaxPanels = 16;
constexpr int kMaxLines = 20000;  ///< a panel with more draws its larger groups as outlines only
constexpr double kPanel = 180.0, kMargin = 24.0, kHeader = 56.0, kCurveHeight = 220.0;
constexpr std::array<const char*, 8> kColours{"#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f"};

struct Point {
  double x, y;
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

class Picture {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
    body_ += '\n';
  }
  void text(double x, double y, const char* anchor, int size, const char* colour, const std::string& content) {
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" fill="{}">{}</text>)", x, y, anchor, size, colour, escaped(content));
  }
  std::string finish(double width, double height) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
        "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
        width, height, body_);
  }

 private:
  std::string body_;
};

Point on_circle(Point centre, double radius, int i, int n) {
  const double angle = 2.0 * std::numbers::pi * i / n - std::numbers::pi / 2;
  return {centre.x + radius * std::cos(angle), centre.y + radius * std::sin(angle)};
}

void draw_round(Picture& picture, const Round& round, int n, std::int64_t k, Point corner) {
  const Point centre{corner.x + kPanel / 2, corner.y + kPanel / 2 + 10};
  const double radius = kPanel / 2 - 26;
  const auto line = [&](int a, int b, const char* colour, double opacity, const std::string& title) {
    const Point p = on_circle(centre, radius, a, n), q = on_circle(centre, radius, b, n);
    picture.add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="{}" stroke-opacity="{:.2f}">)"
                "<title>{}</title></line>",
                p.x, p.y, q.x, q.y, colour, n > 32 ? "1" : "2", opacity, escaped(title));
  };
  picture.text(centre.x, corner.y + 14, "middle", 12, "#334155", fmt::format("round {}", k));
  picture.add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" fill="none" stroke="#e2e8f0"/>)", centre.x, centre.y, radius);
  std::vector<const char*> colour_of(static_cast<std::size_t>(n), "#94a3b8");
  std::size_t next_colour = 0;
  for (const Group& group : round.groups) {
    const char* colour = kColours[next_colour++ % kColours.size()];
    for (const int rank : group.ranks) colour_of[static_cast<std::size_t>(rank)] = colour;
    const std::size_t size = group.ranks.size();
    const std::string title = fmt::format("self weight {}", weight_text(group.self_weight));
    if (size > 2) {
      std::string points;
      for (const int rank : group.ranks) {
        const Point p = on_circle(centre, radius, rank, n);
        points += fmt::format("{:.1f},{:.1f} ", p.x, p.y);
      }
      picture.add(R"(<polygon points="{}" fill="{}" fill-opacity="0.12" stroke="{}" stroke-opacity="0.5"/>)", points, colour, colour);
    }
    if (size * size > 2 * static_cast<std::size_t>(kMaxLines)) continue;
    const double opacity = size > 2 ? std::max(0.08, 1.0 / static_cast<double>(size - 1)) : 1.0;
    for (std::size_t a = 0; a < size; ++a) {
      for (std::size_t b = a + 1; b < size; ++b) line(group.ranks[a], group.ranks[b], colour, opacity, title);
    }
  }
  int lines = 0;
  for (std::size_t i = 0; i < round.rows.size(); ++i) {
    for (const auto& [j, weight] : round.rows[i]) {
      if (j == static_cast<int>(i) || ++lines > kMaxLines) continue;
      line(static_cast<int>(i), j, kColours[0], std::max(0.15, weight), fmt::format("{} from {}: {}", i, j, weight_text(weight)));
    }
  }
  const double dot = std::clamp(120.0 / n, 1.5, 9.0);
  for (int i = 0; i < n; ++i) {
    const Point p = on_circle(centre, radius, i, n);
    picture.add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" fill="{}"><title>rank {}</title></circle>)", p.x, p.y, dot,
                colour_of[static_cast<std::size_t>(i)], i);
    if (n <= 16) picture.text(p.x, p.y + 3, "middle", 9, "#ffffff", fmt::format("{}", i));
  }
}

/// Disagreement on a logarithmic scale from 1 to 1e-4; an exact consensus falls to the bottom line.
void draw_curve(Picture& picture, const std::vector<double>& curve, Point corner, double width) {
  constexpr double kDecades = 4.0;
  const double left = corner.x + 44, right = corner.x + width - 8, top = corner.y + 30, bottom = corner.y + kCurveHeight - 36;
  const double last = std::max<double>(1.0, static_cast<double>(curve.size() - 1));
  picture.text(left, corner.y + 14, "start", 12, "#334155", "disagreement left (root mean square, from a random start)");
  for (int decade = 0; decade <= static_cast<int>(kDecades); ++decade) {
    const double y = top + (bottom - top) * decade / kDecades;
    picture.add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#e2e8f0"/>)", left, y, right, y);
    picture.text(left - 6, y + 4, "end", 10, "#64748b", decade == 0 ? "1" : fmt::format("1e-{}", decade));
  }
  const std::int64_t stride = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(last / 16)));
  const auto x_of = [&](double k) { return left + (right - left) * k / last; };
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(curve.size()); k += stride) {
    picture.text(x_of(static_cast<double>(k)), bottom + 16, "middle", 10, "#64748b", fmt::format("{}", k));
  }
  picture.text((left + right) / 2, bottom + 31, "middle", 10, "#64748b", "rounds");
  std::string points;
  for (std::size_t k = 0; k < curve.size(); ++k) {
    const double depth = curve[k] > 0.0 ? std::clamp(-std::log10(curve[k]), 0.0, kDecades) : kDecades;
    points += fmt::format("{:.1f},{:.1f} ", x_of(static_cast<double>(k)), top + (bottom - top) * depth / kDecades);
    if (depth >= kDecades) break;
  }
  picture.add(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>)", points, kColours[0]);
}

}  // namespace

std::string topology_svg(const Topology& topology, const TopologyReport& report, const std::string& title) {
  const std::int64_t period = topology.period() > 0 ? topology.period() : kRoundsWithoutPeriod;
  const int panels = static_cast<int>(std::min<std::int64_t>(period, kMaxPanels));
  const int columns = std::clamp(panels, 3, 4);
  const int lines = (panels + columns - 1) / columns;
  const double width = 2 * kMargin + columns * kPanel;
  const double curve_top = kHeader + lines * (kPanel + 16) + 8;
  Picture picture;
  picture.text(kMargin, 26, "start", 16, "#0f172a", title);
  std::string facts =
      fmt::format("period {}, spectral gap {:.6g}, ", topology.period() > 0 ? fmt::format("{}", period) : "none", report.spectral_gap);
  facts += report.rounds_to_consensus ? fmt::format("exact consensus after {} rounds", *report.rounds_to_consensus)
                                      : fmt::format("disagreement × {:.4g} a round", 1.0 - report.spectral_gap);
  if (panels < period) facts += fmt::format("; the first {} rounds", panels);
  picture.text(kMargin, 44, "start", 11, "#475569", facts);
  for (int k = 0; k < panels; ++k) {
    const int column = k % columns, line = k / columns;
    draw_round(picture, topology.round(k), topology.ranks(), k, {kMargin + column * kPanel, kHeader + line * (kPanel + 16)});
  }
  // Long enough to show the whole fall, at most 64 rounds.
  const double fall = report.rounds_to_consensus ? static_cast<double>(*report.rounds_to_consensus) + 1
                                                 : std::log(1e-4) / std::log(std::clamp(1.0 - report.spectral_gap, 1e-9, 1.0 - 1e-9));
  const auto rounds = static_cast<std::int64_t>(std::clamp(fall, 4.0, 64.0));
  draw_curve(picture, disagreement_curve(topology, rounds), {kMargin, curve_top}, width - 2 * kMargin);
  return picture.finish(width, curve_top + kCurveHeight);
}

}  // namespace starling
