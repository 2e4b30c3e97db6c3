#include "topology/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/text.h"
#include "topology/mixing.h"
#include "topology/rational.h"

namespace starling {
namespace {

constexpr int kMaxPanels = 16;
constexpr int kGraphRanks = 64;   // more are drawn as the matrix, not as a graph
constexpr double kPanel = 180.0;  // side of a round's panel, without its heading
constexpr double kMargin = 24.0, kHeader = 56.0, kCurveHeight = 220.0;

/// Positions of ranks on a circle: clockwise from the top.
class Circle {
 public:
  Circle(Point corner, int ranks)
      : centre{corner.x + kPanel / 2, corner.y + kPanel / 2 + 10}, ranks_(ranks) {}
  Point at(double rank) const {
    const double angle = 2.0 * std::numbers::pi * rank / ranks_ - std::numbers::pi / 2;
    return {centre.x + radius * std::cos(angle), centre.y + radius * std::sin(angle)};
  }
  double dot() const { return std::clamp(120.0 / ranks_, 1.5, 9.0); }
  const Point centre;
  static constexpr double radius = kPanel / 2 - 26;

 private:
  int ranks_;
};

struct Line {
  Point from, to;
  const char* colour;
  double width, opacity;
  std::string title;
  bool arrow = false;
};

void draw_line(Picture& picture, const Line& line) {
  picture.add(
      R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="{:.2g}" stroke-opacity="{:.2f}"{}>)"
      "<title>{}</title></line>",
      line.from.x, line.from.y, line.to.x, line.to.y, line.colour, line.width, line.opacity,
      line.arrow ? " marker-end=\"url(#arrow)\"" : "", escaped(line.title));
}

std::string polygon_points(const std::vector<Point>& points) {
  std::string text;
  for (const Point& p : points) text += fmt::format("{:.1f},{:.1f} ", p.x, p.y);
  return text;
}

/// Draws groups of ranks or nodes; `place` gives the position of number i.
template <class Place>
void draw_groups(Picture& picture, const std::vector<Group>& groups, int units, const Place& place,
                 std::vector<const char*>& colour_of) {
  std::size_t next_colour = 0;
  for (const Group& group : groups) {
    if (group.ranks.size() < 2) continue;
    const char* colour = kColours[next_colour++ % kColours.size()];
    const std::size_t size = group.ranks.size();
    const std::string title = fmt::format("self weight {}", weight_text(group.self_weight));
    std::vector<Point> points;
    for (const int rank : group.ranks) {
      colour_of[static_cast<std::size_t>(rank)] = colour;
      points.push_back(place(rank));
    }
    if (size > 2) {
      picture.add(
          R"(<polygon points="{}" fill="{}" fill-opacity="0.12" stroke="{}" stroke-opacity="0.5"/>)",
          polygon_points(points), colour, colour);
    }
    const double opacity = size > 2 ? std::max(0.08, 1.0 / static_cast<double>(size - 1)) : 1.0;
    for (std::size_t a = 0; a < size; ++a) {
      for (std::size_t b = a + 1; b < size; ++b)
        draw_line(picture, {points[a], points[b], colour, units > 32 ? 1.0 : 2.0, opacity, title});
    }
  }
}

/// One line for two that take the same from each other, else an arrow from the one that gives; the
/// heavier the darker.
template <class Place>
void draw_rows(Picture& picture, const Round& round, double dot, const Place& place) {
  const int units = static_cast<int>(round.rows.size());
  const auto weight_of = [&](int i, int j) {
    const auto& row = round.rows[static_cast<std::size_t>(i)];
    const auto at =
        std::find_if(row.begin(), row.end(), [j](const auto& entry) { return entry.first == j; });
    return at == row.end() ? 0.0 : at->second;
  };
  double heaviest = 0.0;
  for (int i = 0; i < units; ++i) {
    for (const auto& [j, weight] : round.rows[static_cast<std::size_t>(i)])
      heaviest = std::max(heaviest, j == i ? 0.0 : weight);
  }
  for (int i = 0; i < units; ++i) {
    for (const auto& [j, weight] : round.rows[static_cast<std::size_t>(i)]) {
      const bool mutual = weight_of(j, i) == weight;
      if (j == i || (mutual && j < i)) continue;
      Point from = place(j), to = place(i);
      const double length = std::hypot(to.x - from.x, to.y - from.y);
      if (!mutual && length > 2 * dot) {  // the arrow's head at the dot's edge
        to.x -= (to.x - from.x) * dot / length;
        to.y -= (to.y - from.y) * dot / length;
      }
      draw_line(picture,
                {from, to, kColours[0], units > 32 ? 1.0 : 1.5, 0.25 + 0.6 * weight / heaviest,
                 fmt::format("{} from {}: {}", i, j, weight_text(weight)), !mutual});
    }
  }
}

void draw_graph(Picture& picture, const Round& round, int ranks, const Circle& circle) {
  const int per_node = round.ranks_per_node, units = ranks / per_node;
  const auto place = [&](int unit) {  // a node between its ranks
    if (per_node == 1) return circle.at(unit);
    Point middle{0.0, 0.0};
    for (int r = 0; r < per_node; ++r) {
      const Point p = circle.at(unit * per_node + r);
      middle.x += p.x / per_node;
      middle.y += p.y / per_node;
    }
    return units == 1 ? circle.centre : middle;
  };
  picture.add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" fill="none" stroke="#e2e8f0"/>)",
              circle.centre.x, circle.centre.y, Circle::radius);
  std::vector<const char*> colour_of(static_cast<std::size_t>(units),
                                     round.rows.empty() ? "#94a3b8" : kColours[0]);
  draw_groups(picture, round.groups, units, place, colour_of);
  if (!round.rows.empty()) draw_rows(picture, round, per_node == 1 ? circle.dot() : 2.0, place);
  if (per_node > 1) {
    // An outline goes around a node's ranks, which mix inside.
    for (int node = 0; node < units; ++node) {
      std::vector<Point> points;
      for (int r = 0; r < per_node; ++r) points.push_back(circle.at(node * per_node + r));
      picture.add(
          R"(<polygon points="{}" fill="{}" fill-opacity="0.15" stroke="{}" stroke-width="{:.1f}" stroke-opacity="0.35" stroke-linejoin="round">)"
          "<title>node {}</title></polygon>",
          polygon_points(points), colour_of[static_cast<std::size_t>(node)],
          colour_of[static_cast<std::size_t>(node)], 2.0 * circle.dot(), node);
    }
  }
  for (int i = 0; i < ranks; ++i) {
    const Point p = circle.at(i);
    picture.add(
        R"(<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" fill="{}"><title>rank {}</title></circle>)",
        p.x, p.y, circle.dot(), colour_of[static_cast<std::size_t>(i / per_node)], i);
    if (ranks <= 16) picture.text(p.x, p.y + 3, "middle", 9, "#ffffff", fmt::format("{}", i));
  }
}

/// The matrix in 48 × 48 cells, the heavier the darker.
void draw_matrix(Picture& picture, const Round& round, int ranks, Point corner) {
  constexpr int kCells = 48, kLevels = 6;
  constexpr double kSide = kPanel - 32;
  std::vector<double> cells(static_cast<std::size_t>(kCells) * kCells, 0.0);
  const MixingMatrix matrix(round, ranks);
  const auto cell_of = [&](int rank) {
    return static_cast<std::size_t>(static_cast<std::int64_t>(rank) * kCells / ranks);
  };
  for (int i = 0; i < ranks; ++i) {
    matrix.for_row(
        i, [&](int j, double weight) { cells[cell_of(i) * kCells + cell_of(j)] += weight; });
  }
  const double heaviest = *std::max_element(cells.begin(), cells.end());
  const Point origin{corner.x + 16, corner.y + 22};
  picture.add(
      R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="#f8fafc" stroke="#e2e8f0"/>)",
      origin.x, origin.y, kSide, kSide);
  const auto level_of = [&](int row, int column) {
    const double share =
        cells[static_cast<std::size_t>(row) * kCells + static_cast<std::size_t>(column)] / heaviest;
    return static_cast<int>(std::ceil(kLevels * std::sqrt(share) - 1e-9));
  };
  constexpr double kCell = kSide / kCells;
  std::array<std::string, kLevels + 1> strokes;  // runs of cells of each level
  for (int row = 0; row < kCells; ++row) {
    for (int column = 0; column < kCells;) {
      int end = column + 1;
      const int level = level_of(row, column);
      while (end < kCells && level_of(row, end) == level) ++end;
      strokes[static_cast<std::size_t>(level)] +=
          fmt::format("M{:.1f},{:.1f}h{:.1f}", origin.x + column * kCell,
                      origin.y + (row + 0.5) * kCell, (end - column) * kCell);
      column = end;
    }
  }
  for (std::size_t level = 1; level < strokes.size(); ++level) {
    if (strokes[level].empty()) continue;
    picture.add(R"(<path d="{}" stroke="{}" stroke-width="{:.2f}" stroke-opacity="{:.2f}"/>)",
                strokes[level], kColours[0], kCell, static_cast<double>(level) / kLevels);
  }
}

/// Draws round k into the square below and right of `corner`.
void draw_round(Picture& picture, const Round& round, int ranks, std::int64_t k, Point corner) {
  picture.text(corner.x + kPanel / 2, corner.y + 14, "middle", 12, "#334155",
               fmt::format("round {}", k));
  if (ranks > kGraphRanks) {
    draw_matrix(picture, round, ranks, corner);
  } else {
    draw_graph(picture, round, ranks, Circle(corner, ranks));
  }
}

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
