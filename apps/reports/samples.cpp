#include "apps/reports/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "apps/inference/inference.h"
#include "apps/reports/chart.h"
#include "apps/training/output/progress.h"
#include "core/console.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {

std::string text_samples(const Runs& runs) {
  std::string html;
  for (const auto& run : runs) {
    const std::string file = run->folder() + "/model.safetensors";
    std::error_code error;
    if (text_at(run->config(), "/task/type") != "language_model" ||
        !std::filesystem::exists(file, error))
      continue;
    html += fmt::format("<h3>{}</h3>\n", html_text(run->name));
    try {
      constexpr std::int64_t kTokens = 100;
      Progress progress(2 * kTokens, 0, stdout_is_terminal(), "token");
      progress.message("loading " + shown(file, 200));
      const auto model = load_model(file);
      std::int64_t made = 0;
      for (const std::uint64_t seed : {1, 2}) {
        const Generated text = model->generate(
            "\n", {.tokens = kTokens, .temperature = 0.8, .top_k = 50, .seed = seed},
            [&](std::string_view) { progress.update(std::min(++made, 2 * kTokens), "written"); });
        html += fmt::format("<p class=\"sample\">{}</p>\n", html_lines(text.text));
        made = static_cast<std::int64_t>(seed) * kTokens;
      }
      progress.update(2 * kTokens, "written");
      progress.finish();
    } catch (const Error& fault) {  // such as a plug-in's model: the report is of more than this
      html += fmt::format("<p>{}</p>\n", html_text(fault.what()));
    }
  }
  if (html.empty()) return html;
  return "<h2 id=\"samples\">What the models write</h2>\n<p>100 tokens, temperature 0.8, of the 50 "
         "most probable</p>\n" +
         html;
}

}  // namespace starling
