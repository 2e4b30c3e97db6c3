#pragma once

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <string>
#include <utility>

#include "topology/check.h"

namespace starling {

inline constexpr std::array<const char*, 8> kColours{"#2563eb", "#dc2626", "#059669", "#d97706",
                                                     "#7c3aed", "#0891b2", "#be185d", "#4d7c0f"};

struct Point {
  double x, y;
};

inline std::string escaped(const std::string& text) {
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
  void text(double x, double y, const char* anchor, int size, const char* colour,
            const std::string& content) {
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" fill="{}">{}</text>)", x, y,
        anchor, size, colour, escaped(content));
  }
  std::string finish(double width, double height) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, "
        "sans-serif\">\n<defs><marker id=\"arrow\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" "
        "markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\"><path d=\"M0,0 L6,3 L0,6 z\" "
        "fill=\"{3}\"/></marker></defs>\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"#ffffff\"/>\n{2}</svg>\n",
        width, height, body_, kColours[0]);
  }

 private:
  std::string body_;
};

/// A picture of a topology as an SVG document: one panel a round (at most 16) with the ranks on a
/// circle and a line for each pair that mixes, and how disagreement falls with the rounds.
std::string topology_svg(const Topology& topology, const TopologyReport& report,
                         const std::string& title);

}  // namespace starling
