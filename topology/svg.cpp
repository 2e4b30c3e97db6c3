#include "topology/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "topology/mixing.h"
#include "topology/picture.h"

namespace starling {
namespace {

constexpr int kMaxPanels = 16;
constexpr double kMargin = 24.0, kHeader = 56.0, kCurveHeight = 220.0;

/// Disagreement on a logarithmic scale from 1 to 1e-4; an exact consensus falls to the bottom line.
void draw_curve(Picture& picture, const std::vector<double>& curve, Point corner, double width) {
  constexpr double kDecades = 4.0;
  const double left = corner.x + 44, right = corner.x + width - 8, top = corner.y + 30,
               bottom = corner.y + kCurveHeight - 36;
  const double last = std::max<double>(1.0, static_cast<double>(curve.size() - 1));
  picture.text(left, corner.y + 14, "start", 12, "#334155",
               width > 400 ? "disagreement left (root mean square, from a random start)"
                           : "disagreement left (root mean square)");
  for (int decade = 0; decade <= static_cast<int>(kDecades); ++decade) {
    const double y = top + (bottom - top) * decade / kDecades;
    picture.add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#e2e8f0"/>)", left,
                y, right, y);
    picture.text(left - 6, y + 4, "end", 10, "#64748b",
                 decade == 0 ? "1" : fmt::format("1e-{}", decade));
  }
  const std::int64_t stride =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(last / 16)));
  const auto x_of = [&](double k) { return left + (right - left) * k / last; };
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(curve.size()); k += stride) {
    picture.text(x_of(static_cast<double>(k)), bottom + 16, "middle", 10, "#64748b",
                 fmt::format("{}", k));
  }
  picture.text((left + right) / 2, bottom + 31, "middle", 10, "#64748b", "rounds");
  std::string points;
  for (std::size_t k = 0; k < curve.size(); ++k) {
    const double depth =
        curve[k] > 0.0 ? std::clamp(-std::log10(curve[k]), 0.0, kDecades) : kDecades;
    points += fmt::format("{:.1f},{:.1f} ", x_of(static_cast<double>(k)),
                          top + (bottom - top) * depth / kDecades);
    if (depth >= kDecades) break;
  }
  picture.add(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>)", points,
              kColours[0]);
}

}  // namespace

std::string topology_svg(const Topology& topology, const TopologyReport& report,
                         const std::string& title) {
  const std::int64_t period = topology.period() > 0 ? topology.period() : kRoundsWithoutPeriod;
  const int panels = static_cast<int>(std::min<std::int64_t>(period, kMaxPanels));
  const int columns = std::clamp(panels, 3, 4);
  const int lines = (panels + columns - 1) / columns;
  const double width = 2 * kMargin + columns * kPanel;
  // Below the rounds, or to the right of a single one.
  const bool beside = panels == 1;
  const double curve_top = beside ? kHeader : kHeader + lines * (kPanel + 16) + 8;
  const double curve_left = beside ? kMargin + kPanel + 16 : kMargin;
  Picture picture;
  picture.text(kMargin, 26, "start", 16, "#0f172a", title);
  std::string facts =
      fmt::format("period {}, spectral gap {:.6g}, ",
                  topology.period() > 0 ? fmt::format("{}", period) : "none", report.spectral_gap);
  facts += report.rounds_to_consensus
               ? "exact consensus after " + counted(*report.rounds_to_consensus, "round")
               : fmt::format("disagreement × {:.4g} a round", 1.0 - report.spectral_gap);
  if (panels < period) facts += fmt::format("; the first {} rounds", panels);
  if (topology.ranks() > kGraphRanks) facts += "; matrices, rows take from columns";
  picture.text(kMargin, 44, "start", 11, "#475569", facts);
  for (int k = 0; k < panels; ++k) {
    const int column = k % columns, line = k / columns;
    draw_round(picture, topology.round(k), topology.ranks(), k,
               {kMargin + column * kPanel, kHeader + line * (kPanel + 16)});
  }
  draw_curve(picture, disagreement_curve(topology, curve_length(report)), {curve_left, curve_top},
             width - kMargin - curve_left);
  return picture.finish(width, curve_top + kCurveHeight);
}

}  // namespace starling
