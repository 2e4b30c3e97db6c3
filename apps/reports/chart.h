#pragma once

#include <string>
#include <string_view>
#include <vector>

// Pictures of the report: inline SVG in the page's colours, which follow its dark and light mode.
namespace starling {

/// A curve. Numbers that are not finite leave a gap.
struct ChartLine {
  std::string label;
  std::vector<double> x, y;
  std::size_t colour = 0;  ///< the run's number
  bool marks = false;      ///< a dot at each number: there are few
};

struct Chart {
  std::string title, x_label, y_label;
  bool logarithmic = false;  ///< y, where all numbers are above 0
  bool share = false;        ///< y are shares, shown in percent
};

/// A chart of lines as an SVG element. Long curves are thinned so that each has at most 300
/// points, the least and the largest of each stretch among them; those of more than 50 numbers are
/// drawn pale, with their running mean over a fiftieth of them before.
std::string draw_lines(const Chart& chart, const std::vector<ChartLine>& lines);
/// The same numbers as an HTML table: at most 24 rows, evenly chosen, the last one among them.
std::string lines_table(const Chart& chart, const std::vector<ChartLine>& lines);

/// A matrix as tiles, the darker the larger. `high` is the end of the scale; `text`: with numbers.
struct Tiles {
  std::string title, row_label, column_label;
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;
  double high = 1.0;
  bool text = false;
};
std::string draw_tiles(const Tiles& tiles);

/// A number for people: 4 digits at most, "1.2e-05", "3,400,000" as "3.4M".
std::string number_text(double value);
/// A row of an HTML table, and what a table begins with; cells and names are HTML.
std::string table_row(const std::vector<std::string>& cells);
std::string table_head(const std::vector<std::string>& names, std::string_view kind = {});
inline constexpr const char* kTableEnd = "</tbody></table>";
/// Text with HTML's own characters written as references.
std::string html_text(const std::string& text);
/// The same of all of a long text, with its lines.
std::string html_lines(const std::string& text);

/// Round numbers, 1, 2 or 5 times a power of ten apart, that cut [low, high] into `about` parts.
std::vector<double> round_ticks(double low, double high, int about);

}  // namespace starling
