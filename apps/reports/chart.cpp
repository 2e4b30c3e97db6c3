#include "apps/reports/chart.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/text.h"
#include "topology/picture.h"

namespace starling {
namespace {

constexpr double kChartWidth = 560.0, kChartHeight = 300.0, kChartLeft = 58.0, kRight = 26.0,
                 kTop = 12.0, kBottom = 44.0;
constexpr std::size_t kPoints = 150, kRows = 24, kSmoothed = 50;

/// A scale of numbers onto a length of the picture.
struct Scale {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool logarithmic = false;
  double begin = 0.0, end = 1.0;

  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return !(low <= high); }
  double of(double value) const {
    const auto on = [&](double v) { return logarithmic ? std::log10(v) : v; };
    const double span = on(high) - on(low);
    return begin + (end - begin) * (span > 0.0 ? (on(value) - on(low)) / span : 0.5);
  }
  std::vector<double> ticks(int about) const {
    if (!logarithmic) return round_ticks(low, high, about);
    std::vector<double> ticks;
    const double decades = std::log10(high / low);
    for (double decade = std::floor(std::log10(low)); decade <= std::log10(high); ++decade) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        if (digit != 1.0 && decades > 2.5) continue;
        const double tick = digit * std::pow(10.0, decade);
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push_back(tick);
      }
    }
    return ticks.size() >= 2 ? ticks : round_ticks(low, high, about);
  }
};

/// The least and the largest number of each of kPoints stretches, in their order.
void thin(const std::vector<double>& x, const std::vector<double>& y, std::vector<Point>& out) {
  const std::size_t count = std::min(x.size(), y.size());
  const std::size_t stretch = std::max<std::size_t>(1, (count + kPoints - 1) / kPoints);
  for (std::size_t begin = 0; begin < count; begin += stretch) {
    const std::size_t end = std::min(begin + stretch, count);
    std::size_t least = begin, most = begin;
    for (std::size_t i = begin; i < end; ++i) {
      if (!(y[i] >= y[least])) least = i;
      if (!(y[i] <= y[most])) most = i;
    }
    if (least > most) std::swap(least, most);
    out.push_back({x[least], y[least]});
    if (most != least) out.push_back({x[most], y[most]});
  }
}

std::vector<double> running_mean(const std::vector<double>& y) {
  const std::size_t width = std::max<std::size_t>(2, y.size() / kSmoothed);
  std::vector<double> mean(y.size());
  double sum = 0.0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (std::isfinite(y[i])) sum += y[i], ++count;
    if (i >= width && std::isfinite(y[i - width])) sum -= y[i - width], --count;
    mean[i] = count > 0 ? sum / static_cast<double>(count) : NAN;
  }
  return mean;
}

std::string path_of(const std::vector<Point>& points, const Scale& x, const Scale& y) {
  std::string path;
  bool gap = true;
  for (const Point& point : points) {
    if (!std::isfinite(point.y) || (y.logarithmic && point.y <= 0.0)) {
      gap = true;
      continue;
    }
    fmt::format_to(std::back_inserter(path), "{}{:.1f},{:.1f}", gap ? "M" : "L", x.of(point.x),
                   y.of(point.y));
    gap = false;
  }
  return path;
}

/// Colours repeat after eight runs; what follows is dashed.
std::string line_class(std::size_t colour) {
  return fmt::format("c{}{}", colour % kColours.size(), colour >= kColours.size() ? " dashed" : "");
}

std::string shown_number(const Chart& chart, double value) {
  if (!std::isfinite(value)) return "–";
  return chart.share ? fmt::format("{:.4g} %", 100.0 * value) : number_text(value);
}

}  // namespace

std::string table_row(const std::vector<std::string>& cells) {
  return fmt::format("<tr><td>{}</td></tr>", fmt::join(cells, "</td><td>"));
}

std::string table_head(const std::vector<std::string>& names, std::string_view kind) {
  return fmt::format("<table{}><thead><tr><th>{}</th></tr></thead><tbody>",
                     kind.empty() ? "" : fmt::format(" class=\"{}\"", kind),
                     fmt::join(names, "</th><th>"));
}

std::string html_text(const std::string& text) { return escaped(shown(text, 200)); }
std::string html_lines(const std::string& text) { return escaped(text); }

std::string number_text(double value) {
  if (!std::isfinite(value)) return "–";
  if (value == 0.0) return "0";
  const double size = std::abs(value);
  for (const auto& [unit, letter] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}})
    if (size >= unit) return fmt::format("{:.4g}{}", value / unit, letter);
  return size >= 1e4 ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::vector<double> round_ticks(double low, double high, int about) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / about;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double ratio = rough / power;
  const double step = power * (ratio < 1.5 ? 1.0 : ratio < 3.5 ? 2.0 : ratio < 7.5 ? 5.0 : 10.0);
  std::vector<double> ticks;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k)
    ticks.push_back(k * step + 0.0);  // no -0
  return ticks;
}

std::string draw_lines(const Chart& chart, const std::vector<ChartLine>& lines) {
  Scale x{.begin = kChartLeft, .end = kChartWidth - kRight},
      y{.begin = kChartHeight - kBottom, .end = kTop};
  for (const ChartLine& line : lines) {
    for (const double value : line.x) x.take(value);
    for (const double value : line.y) y.take(value);
  }
  if (x.empty() || y.empty()) return "<p class=\"none\">no numbers yet</p>\n";
  y.logarithmic = chart.logarithmic && y.low > 0.0 && y.high > 1.5 * y.low;
  if (!y.logarithmic) {
    const double room = y.high > y.low ? 0.04 * (y.high - y.low) : std::abs(y.high) * 0.1 + 1e-9;
    const bool positive = y.low >= 0.0;
    y.low -= room, y.high += room;
    if (positive) y.low = std::max(y.low, 0.0);
  }
  std::string svg = fmt::format(
      R"(<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">)", kChartWidth,
      kChartHeight, html_text(fmt::format("{} over {}", chart.y_label, chart.x_label)));
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg), format, std::forward<Args>(args)...);
  };
  for (const double tick : y.ticks(5)) {
    add(R"(<path class="grid" d="M{:.1f},{:.1f}H{:.1f}"/>)", kChartLeft, y.of(tick),
        kChartWidth - kRight);
    add(R"(<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)", kChartLeft - 6,
        y.of(tick) + 4, shown_number(chart, tick));
  }
  for (const double tick : x.ticks(6)) {
    add(R"(<path class="grid" d="M{0:.1f},{1:.1f}V{2:.1f}"/>)", x.of(tick), kTop,
        kChartHeight - kBottom);
    add(R"(<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)", x.of(tick),
        kChartHeight - kBottom + 16, number_text(tick));
  }
  add(R"(<text class="label" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)",
      (kChartLeft + kChartWidth - kRight) / 2, kChartHeight - 8, html_text(chart.x_label));
  for (const ChartLine& line : lines) {
    const std::string colour = line_class(line.colour);
    add(R"(<g class="{}"><title>{}</title>)", colour, html_text(line.label));
    const bool smooth = line.y.size() > kSmoothed;
    std::vector<Point> points;
    thin(line.x, line.y, points);
    add(R"(<path class="line{}" d="{}"/>)", smooth ? " pale" : "", path_of(points, x, y));
    if (smooth) {
      points.clear();
      thin(line.x, running_mean(line.y), points);
      add(R"(<path class="line" d="{}"/>)", path_of(points, x, y));
    }
    if (line.marks || line.y.size() == 1) {
      for (const Point& point : points) {
        if (!std::isfinite(point.y)) continue;
        add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3"><title>{}: {} {}, {}</title></circle>)",
            x.of(point.x), y.of(point.y), html_text(line.label), html_text(chart.x_label),
            number_text(point.x), shown_number(chart, point.y));
      }
    }
    svg += "</g>";
  }
  return svg + "</svg>\n";
}

std::string lines_table(const Chart& chart, const std::vector<ChartLine>& lines) {
  std::string html = table_head({"run", html_text(chart.x_label), html_text(chart.y_label)});
  const std::size_t rows = std::max<std::size_t>(4, kRows / std::max<std::size_t>(lines.size(), 1));
  for (const ChartLine& line : lines) {
    const std::size_t count = std::min(line.x.size(), line.y.size());
    const std::size_t shown_rows = std::min(rows, count);
    for (std::size_t k = 0; k < shown_rows; ++k) {
      const std::size_t i = shown_rows > 1 ? k * (count - 1) / (shown_rows - 1) : count - 1;
      html += table_row(
          {html_text(line.label), number_text(line.x[i]), shown_number(chart, line.y[i])});
    }
  }
  return html + kTableEnd + "\n";
}

std::string draw_tiles(const Tiles& tiles) {
  const std::size_t rows = tiles.values.size(), columns = rows > 0 ? tiles.values[0].size() : 0;
  if (rows == 0 || columns == 0) return "";
  std::size_t longest = 1;
  for (const std::string& name : tiles.rows) longest = std::max(longest, name.size());
  const double left = std::min(24.0 + 6.2 * static_cast<double>(longest), 150.0), top = 14.0;
  const double side = std::clamp((kChartWidth - left) / static_cast<double>(columns), 4.0, 40.0);
  const double high = std::min(side, std::max(4.0, 480.0 / static_cast<double>(rows)));
  const double width = left + side * static_cast<double>(columns),
               height = top + high * static_cast<double>(rows) + 62.0;
  std::string svg = fmt::format(
      R"(<svg class="tiles" width="{0:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" role="img" aria-label="{2}">)",
      std::max(width, 200.0), height, html_text(tiles.title));
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg), format, std::forward<Args>(args)...);
  };
  const bool names = high >= 8.0;
  for (std::size_t r = 0; r < rows; ++r) {
    const double y = top + high * static_cast<double>(r);
    if (names && r < tiles.rows.size())
      add(R"(<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)", left - 5,
          y + high / 2 + 4, html_text(shown(tiles.rows[r], 20)));
    for (std::size_t c = 0; c < tiles.values[r].size(); ++c) {
      const double value = tiles.values[r][c];
      const double share =
          tiles.high > 0.0 && std::isfinite(value) ? std::clamp(value / tiles.high, 0.0, 1.0) : 0;
      const double x = left + side * static_cast<double>(c);
      add(R"(<rect class="tile" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill-opacity="{:.2f}"><title>{} {}, {} {}: {}</title></rect>)",
          x, y, side - 1, high - 1, share, html_text(tiles.row_label),
          r < tiles.rows.size() ? html_text(tiles.rows[r]) : std::to_string(r),
          html_text(tiles.column_label),
          c < tiles.columns.size() ? html_text(tiles.columns[c]) : std::to_string(c),
          number_text(value));
      if (tiles.text && side >= 24.0 && value > 0.0)
        add(R"(<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="middle">{:.{}f}</text>)",
            share > 0.5 ? "number dark" : "number", x + side / 2, y + high / 2 + 3.5, value,
            value < 9.95 ? 1 : 0);
    }
  }
  const double bottom = top + high * static_cast<double>(rows);
  const std::size_t every =
      std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(14.0 / side)));
  for (std::size_t c = 0; c < columns && c < tiles.columns.size(); c += every) {
    const double x = left + side * (static_cast<double>(c) + 0.5);
    add(R"svg(<text class="tick" transform="translate({:.1f},{:.1f}) rotate(-40)" text-anchor="end">{}</text>)svg",
        x + 4, bottom + 10, html_text(shown(tiles.columns[c], 12)));
  }
  add(R"(<text class="label" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)",
      left + side * static_cast<double>(columns) / 2, height - 2, html_text(tiles.column_label));
  return svg + "</svg>\n";
}

}  // namespace starling
