#include "apps/reports/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "apps/reports/chart.h"
#include "apps/reports/style.h"
#include "core/config.h"
#include "core/error.h"
#include "core/quantity.h"
#include "topology/check.h"
#include "topology/picture.h"
#include "topology/topology.h"

namespace starling {
namespace {

/// What curves are drawn over.
struct Axis {
  const char* name;
  std::vector<double> Series::*numbers;
};
constexpr Axis kAxes[]{{"steps", &Series::step},
                       {"seconds of training", &Series::seconds},
                       {"bytes sent by all ranks", &Series::bytes}};

void flatten(const nlohmann::json& json, const std::string& path,
             std::map<std::string, std::string>& out) {
  if (!json.is_object() || json.empty()) {
    out[path] = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return;
  }
  for (const auto& [key, value] : json.items())
    flatten(value, path.empty() ? key : path + "." + key, out);
}

bool is_share(const std::string& field) {
  return field.find("accuracy") != std::string::npos || field.find("top5") != std::string::npos ||
         field.ends_with("f1");
}

/// Fields of tests, test_accuracy first, that any of the runs has.
std::vector<std::string> test_fields(const Runs& runs) {
  std::vector<std::string> fields;
  for (const auto& run : runs) {
    for (const auto& [field, series] : run->series()) {
      if (!field.starts_with("test_") || series.value.empty()) continue;
      if (std::ranges::find(fields, field) == fields.end()) fields.push_back(field);
    }
  }
  std::ranges::stable_sort(
      fields, [](const std::string& a, const std::string& b) { return is_share(a) > is_share(b); });
  return fields;
}

/// A run's colour before its name; after eight runs a ring of it, whose curves are dashed.
std::string key_of(std::size_t run) {
  return fmt::format("<i class=\"key c{}{}\"></i>", run % 8, run < 8 ? "" : " again");
}

/// A figure of one picture, or of one for each axis to choose from, each with its numbers.
class Figure {
 public:
  Figure(const std::string& id, const std::string& title) : id_(html_text(id)) {
    html_ = fmt::format("<figure id=\"{}\"><figcaption>{}</figcaption>", id_, html_text(title));
  }
  void axes(const Chart& chart, const std::function<std::vector<ChartLine>(const Axis&)>& lines) {
    std::vector<std::pair<Axis, std::vector<ChartLine>>> panels;
    for (const Axis& axis : kAxes) {
      std::vector<ChartLine> of_axis = lines(axis);
      if (!of_axis.empty()) panels.emplace_back(axis, std::move(of_axis));
    }
    html_ += "<div class=\"axes\">";
    for (std::size_t k = 0; k < panels.size() && panels.size() > 1; ++k) {
      html_ += fmt::format(
          "<input type=\"radio\" name=\"{0}-x\" id=\"{0}-x{1}\"{2}><label "
          "for=\"{0}-x{1}\">{3}</label>",
          id_, k, k == 0 ? " checked" : "", panels[k].first.name);
    }
    for (std::size_t k = 0; k < panels.size(); ++k) {
      Chart of_axis = chart;
      of_axis.x_label = panels[k].first.name;
      html_ += "<div class=\"panel\">" + draw_lines(of_axis, panels[k].second);
      numbers(lines_table(of_axis, panels[k].second), k);
      html_ += "</div>";
    }
    html_ += "</div>";
  }
  void picture(const std::string& svg) { html_ += svg; }
  void numbers(const std::string& table, std::size_t k = 0) {
    html_ += fmt::format(
        "<details id=\"{}-n{}\"><summary>numbers</summary><div "
        "class=\"scroll\">{}</div></details>",
        id_, k, table);
  }
  std::string finish() { return html_ + "</figure>\n"; }

 private:
  std::string id_, html_;
};

/// The curves of a field, one for each run that has it.
std::string field_figure(const Runs& runs, const FieldText& of) {
  const auto lines_over = [&](const Axis& axis) {
    std::vector<ChartLine> lines;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const Series& series = runs[r]->series(of.field);
      const std::vector<double>& x = series.*axis.numbers;
      if (x.empty() || x.size() != series.value.size()) continue;
      lines.push_back({runs[r]->name, x, series.value, r, of.marks});
    }
    return lines;
  };
  if (lines_over(kAxes[0]).empty()) return "";
  Figure figure(of.field, of.title);
  figure.axes({.y_label = of.unit, .logarithmic = of.logarithmic, .share = of.share}, lines_over);
  return figure.finish();
}

/// Rows of ranks over the run's steps: the darker, the longer it waited for others.
std::string waits_figure(const RunLog& run, std::size_t number) {
  constexpr std::size_t kColumns = 60, kMostRanks = 64;
  const auto& waits = run.waits();
  if (waits.empty() || waits.back().size() < 2) return "";
  const std::size_t ranks = std::min(waits.back().size(), kMostRanks),
                    columns = std::min(waits.size(), kColumns);
  Tiles tiles{.title = "waits of each rank",
              .row_label = "rank",
              .column_label = "step (milliseconds a step)",
              .values = std::vector<std::vector<double>>(ranks, std::vector<double>(columns)),
              .high = 1e-9,
              .text = columns <= 16};
  std::string table = table_head({"rank", "mean wait, ms a step"});
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    tiles.rows.push_back(std::to_string(rank));
    double all = 0.0;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::size_t begin = c * waits.size() / columns, end = (c + 1) * waits.size() / columns;
      double sum = 0.0;
      for (std::size_t i = begin; i < end; ++i)
        sum += rank < waits[i].size() ? waits[i][rank] : 0.0;
      all += sum;
      tiles.values[rank][c] = sum / static_cast<double>(end - begin);
      tiles.high = std::max(tiles.high, tiles.values[rank][c]);
    }
    table +=
        table_row({std::to_string(rank), number_text(all / static_cast<double>(waits.size()))});
  }
  for (std::size_t c = 0; c < columns; ++c)
    tiles.columns.push_back(number_text(run.waits_at()[(c + 1) * waits.size() / columns - 1]));
  Figure figure(fmt::format("waits-{}", number), "Waits of each rank: " + run.name);
  figure.picture(draw_tiles(tiles));
  figure.numbers(table + kTableEnd);
  return figure.finish();
}

/// A name that may be wrapped after an underscore.
std::string breakable(const std::string& name) {
  std::string html;
  for (const char c : html_text(name)) (html += c) += c == '_' ? "<wbr>" : "";
  return html;
}
/// A number and its unit, which stay in one line.
std::string unbroken(std::string text) {
  for (std::size_t at; (at = text.find(' ')) != std::string::npos;) text.replace(at, 1, "&nbsp;");
  return text;
}

std::string runs_table(const Runs& runs, const std::vector<std::string>& fields) {
  std::vector<std::string> head{"run", "state", "step", "ranks", "algorithm", "topology", "loss"};
  for (const std::string& field : fields) head.push_back(breakable(field));
  for (const char* name : {"training", "samples/s", "consensus distance", "memory, MiB", "version"})
    head.emplace_back(name);
  std::string html = "<div class=\"scroll\">" + table_head(head, "runs");
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const RunLog& run = *runs[r];
    const auto last = [&](const std::string& field) {
      const Series& series = run.series(field);
      if (series.value.empty()) return std::string("–");
      const double value = series.value.back();
      return is_share(field) ? fmt::format("{:.2f}&nbsp;%", 100.0 * value) : number_text(value);
    };
    std::vector<std::string> cells{key_of(r) + html_text(run.name),
                                   run.state(),
                                   std::to_string(run.last_step()),
                                   std::to_string(run.ranks()),
                                   breakable(text_at(run.config(), "/sync/algorithm/type")),
                                   breakable(text_at(run.config(), "/sync/topology/type")),
                                   last("loss")};
    for (const std::string& field : fields) cells.push_back(last(field));
    const Series& loss = run.series("loss");
    const auto bytes = run.summary().find("peak_memory_bytes");
    cells.push_back(loss.seconds.empty() ? "–" : unbroken(quantity(loss.seconds.back(), "s")));
    cells.push_back(last("samples_per_second"));
    cells.push_back(last("consensus_distance"));
    cells.push_back(bytes == run.summary().end() || !bytes->is_number()
                        ? "–"
                        : number_text(bytes->get<double>() / (1 << 20)));
    cells.push_back(html_text(text_at(run.summary(), "/version")) + " " +
                    html_text(text_at(run.summary(), "/commit", "").substr(0, 8)));
    html += table_row(cells);
  }
  return html + kTableEnd + "</div>\n";
}

std::string differences_table(const Runs& runs) {
  if (runs.size() < 2) return "";
  const std::vector<Difference> all = differences(runs);
  std::string html = "<h2 id=\"differences\">Where the configs differ</h2>\n";
  if (all.empty()) return html + "<p>They are the same.</p>\n";
  std::vector<std::string> head{"key"};
  for (std::size_t r = 0; r < runs.size(); ++r)
    head.push_back(key_of(r) + html_text(runs[r]->name));
  html += "<div class=\"scroll\">" + table_head(head, "differences");
  for (const Difference& difference : all) {
    std::vector<std::string> cells{"<code>" + html_text(difference.key) + "</code>"};
    for (const std::string& value : difference.values) cells.push_back(html_text(value));
    html += table_row(cells);
  }
  return html + kTableEnd + "</div>\n";
}

/// The rounds of each topology that the runs use, with how many ranks.
std::string topologies_part(const Runs& runs) {
  register_builtin_topologies();
  std::set<std::string> drawn;
  std::string html;
  for (const auto& run : runs) {
    const nlohmann::json::json_pointer where("/sync/topology");
    const auto ranks = static_cast<int>(run->ranks());
    if (ranks < 2 || !run->config().contains(where)) continue;
    const nlohmann::json& settings = run->config().at(where);
    if (!settings.is_object() || !drawn.insert(settings.dump() + std::to_string(ranks)).second)
      continue;
    const std::string title = fmt::format("{}, {} ranks", text_at(settings, "/type"), ranks);
    Figure figure(fmt::format("topology-{}", drawn.size()), title + ": " + run->name);
    try {
      ConfigSection section(settings, run->name);
      const auto topology = make_unchecked_topology(section, RankLayout{.ranks = ranks});
      const TopologyReport report = analyse(*topology);
      std::string svg = topology_svg(*topology, report, title);
      svg.insert(svg.find("<svg ") + 5, "class=\"topology\" ");
      figure.picture(svg);
      figure.numbers(
          "<table>" + table_row({"period", std::to_string(topology->period())}) +
          table_row({"spectral gap", number_text(report.spectral_gap)}) +
          table_row({"rounds to consensus", report.rounds_to_consensus
                                                ? std::to_string(*report.rounds_to_consensus)
                                                : "–"}) +
          "</table>");
    } catch (const Error& error) {
      figure.picture("<p class=\"none\">not drawn: " + html_text(error.what()) + "</p>");
    }
    html += figure.finish();
  }
  return html.empty()
             ? ""
             : "<h2 id=\"topologies\">Topologies</h2>\n<div class=\"wide\">" + html + "</div>\n";
}

/// What the runs wrote in training, the newest first.
std::string written_part(const Runs& runs) {
  constexpr std::size_t kMost = 5;
  std::string html;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const auto& samples = runs[r]->samples();
    if (samples.empty()) continue;
    html += "<h3>" + key_of(r) + html_text(runs[r]->name) + "</h3>\n";
    for (std::size_t k = 0; k < std::min(kMost, samples.size()); ++k) {
      const auto& [step, text] = samples[samples.size() - 1 - k];
      html += fmt::format("<p>step {}</p><p class=\"sample\">{}</p>\n", step, html_lines(text));
    }
  }
  return html.empty() ? "" : "<h2 id=\"written\">What the models wrote in training</h2>\n" + html;
}

std::string classes_figure(const RunLog& run, std::size_t number) {
  RunLog::Confusion confusion;
  try {
    confusion = run.confusion();
  } catch (const Error& error) {
    return "<p class=\"none\">" + html_text(error.what()) + "</p>\n";
  }
  if (confusion.counts.empty()) return "";
  Tiles tiles{.title = "confusion matrix",
              .row_label = "true class",
              .column_label = "predicted class",
              .rows = confusion.classes,
              .columns = confusion.classes,
              .values = confusion.counts,
              .text = confusion.counts.size() <= 12};
  std::string table = table_head({"class", "samples", "recognised", "most often taken for"});
  for (std::size_t r = 0; r < tiles.values.size(); ++r) {
    std::vector<double>& row = tiles.values[r];
    double sum = 0.0;
    std::size_t other = r == 0 && row.size() > 1 ? 1 : 0;
    for (std::size_t c = 0; c < row.size(); ++c) {
      sum += row[c];
      if (c != r && row[c] > row[other]) other = c;
    }
    const auto name = [&](std::size_t c) {
      return c < confusion.classes.size() ? html_text(confusion.classes[c]) : std::to_string(c);
    };
    table += table_row(
        {name(r), fmt::format("{:.0f}", sum),
         sum > 0.0 && r < row.size() ? fmt::format("{:.2f} %", 100.0 * row[r] / sum) : "–",
         row.empty() || row[other] == 0.0 ? "–"
                                          : fmt::format("{} ({:.0f})", name(other), row[other])});
    if (sum > 0.0)
      for (double& count : row) count = 100.0 * count / sum;
  }
  tiles.high = 100.0;
  Figure figure(fmt::format("classes-{}", number), "Classes, % of each true one: " + run.name);
  figure.picture(draw_tiles(tiles));
  figure.numbers(table + kTableEnd);
  return figure.finish();
}

}  // namespace

std::string text_at(const nlohmann::json& json, const char* path, const char* none) {
  const nlohmann::json::json_pointer pointer(path);
  if (!json.contains(pointer)) return none;
  const auto& value = json.at(pointer);
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() ? number_text(value.get<double>()) : value.dump();
}

void name_runs(Runs& runs) {
  for (const auto& run : runs) {
    const auto same =
        std::ranges::count_if(runs, [&](const auto& other) { return other->name == run->name; });
    if (same < 2) continue;
    for (const auto& other : runs) {
      if (other != run && other->name == run->name) other->name = other->folder();
    }
    run->name = run->folder();
  }
}

std::vector<Difference> differences(const Runs& runs) {
  std::vector<std::map<std::string, std::string>> flat(runs.size());
  std::set<std::string> keys;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    flatten(runs[r]->config(), "", flat[r]);
    for (const auto& [key, value] : flat[r]) keys.insert(key);
  }
  std::vector<Difference> result;
  for (const std::string& key : keys) {
    if (key == "trace") continue;  // says nothing of the training
    Difference difference{key, {}};
    std::set<std::string> said;
    for (const auto& run : flat) {
      const auto found = run.find(key);
      if (found != run.end()) said.insert(found->second);
      difference.values.push_back(found == run.end() ? "–" : found->second);
    }
    if (said.size() > 1) result.push_back(std::move(difference));
  }
  return result;
}

std::vector<FieldText> drawn_fields(const Runs& runs) {
  // What the page shows elsewhere, or under another name
  std::set<std::string> known{
      "step",         "epoch",           "images_per_second", "step_ms",         "data_wait_ms",
      "slowest_rank", "slowest_rank_ms", "bytes_sent",        "fastest_rank_ms", "wait_ms"};
  std::vector<FieldText> fields{{"loss", "Loss", "loss", true}};
  for (const std::string& field : test_fields(runs)) {
    const bool share = is_share(field);
    fields.push_back({field, field, field, !share, share, true});
  }
  for (FieldText field :
       {FieldText{"lr", "Learning rate", "learning rate"},
        {"grad_norm", "Gradient norm before clipping: mean of the ranks", "norm", true},
        {"grad_norm_max", "Gradient norm before clipping: largest of the ranks", "norm", true},
        {"consensus_distance", "Consensus distance", "consensus distance", true, false, true},
        {"samples_per_second", "Throughput", "samples/s"},
        {"tokens_per_second", "Tokens", "tokens/s"},
        {"model_flop_utilization", "Model FLOP utilization", "share of the peak", false, true},
        {kUtilization, "Utilization: the part of a step without waits", "utilization", false,
         true}})
    fields.push_back(std::move(field));
  for (const FieldText& field : fields) known.insert(field.field);
  for (const auto& run : runs) {
    for (const auto& [field, series] : run->series())
      if (known.insert(field).second) fields.push_back({field, field, field});
  }
  std::erase_if(fields, [&](const FieldText& field) {
    return std::ranges::all_of(
        runs, [&](const auto& run) { return run->series(field.field).value.empty(); });
  });
  return fields;
}

std::string report_body(const Runs& runs) {
  const std::vector<std::string> tests = test_fields(runs);
  std::string html = "<h2 id=\"runs\">Runs</h2>\n" + runs_table(runs, tests);
  html += differences_table(runs);
  html += "<h2 id=\"curves\">Curves</h2>\n<p class=\"legend\">";
  for (std::size_t r = 0; r < runs.size(); ++r)
    html += "<span>" + key_of(r) + html_text(runs[r]->name) + "</span> ";
  html += "</p>\n<div class=\"figures\">";
  for (const FieldText& field : drawn_fields(runs)) html += field_figure(runs, field);
  for (std::size_t r = 0; r < runs.size(); ++r) html += waits_figure(*runs[r], r);
  html += "</div>\n";
  std::string classes;
  for (std::size_t r = 0; r < runs.size(); ++r) classes += classes_figure(*runs[r], r);
  if (!classes.empty())
    html += "<h2 id=\"classes\">Classes</h2>\n<div class=\"figures\">" + classes + "</div>\n";
  html += written_part(runs) + topologies_part(runs);
  std::string timelines;
  for (const auto& run : runs) {
    const std::string svg = draw_timeline(*run);
    if (svg.empty()) continue;
    timelines += "<figure><figcaption>Two steps: " + html_text(run->name) +
                 "</figcaption><div class=\"scroll\">" + svg + "</div></figure>\n";
  }
  if (!timelines.empty()) {
    html += "<h2 id=\"timeline\">Timeline</h2>\n<p class=\"legend\">";
    for (const auto& [what, colour] : {std::pair{"forward", 0},
                                       {"backward", 4},
                                       {"update", 2},
                                       {"exchange", 1},
                                       {"wait for readers", 6},
                                       {"load a batch", 3}})
      html += fmt::format("<span><i class=\"key c{}\"></i>{}</span> ", colour, what);
    html += "</p>\n<div class=\"wide\">" + timelines + "</div>\n";
  }
  return html;
}

std::string content_policy(bool follow) {
  return fmt::format(
      "default-src 'none'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; "
      "form-action 'none'{}",
      kStyleHash,
      follow ? fmt::format("; script-src 'sha256-{}'; connect-src 'self'", kScriptHash) : "");
}

std::string report_page(const std::string& body, bool follow) {
  return fmt::format(
      "{}<meta http-equiv=\"Content-Security-Policy\" content=\"{}\"><style>{}</style></head>\n"
      "<body><header><h1>Starling</h1><p id=\"state\">{}</p></header>\n<main id=\"main\">\n{}"
      "</main>\n{}</body></html>\n",
      kPageBegin, content_policy(follow), kReportStyle, follow ? "live" : "", body,
      follow ? fmt::format("<script>{}</script>\n", kFollowScript) : "");
}

}  // namespace starling
