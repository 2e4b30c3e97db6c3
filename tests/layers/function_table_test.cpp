#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "core/config.h"
#include "tests/layers/function_table.h"
#include "tests/layers/support.h"
#include "tests/support/folder.h"

namespace starling::testing {
namespace {

std::set<std::string> found(const std::string& text, const std::string& pattern) {
  std::set<std::string> result;
  const std::regex regex(pattern, std::regex::multiline);
  for (std::sregex_iterator i(text.begin(), text.end(), regex), end; i != end; ++i)
    result.insert((*i)[1]);
  return result;
}

}  // namespace

TEST_CASE("layers/function_table: docs/functions.md lists what the header declares") {
  const std::string header = test::read_text("../layers/functions.h"),
                    page = test::read_text("../docs/functions.md");
  std::set<std::string> declared =
      found(header, R"(^(?:Variable|Tensor|TopValues|std::vector<Variable>) ([a-z0-9_]+)\()");
  std::set<std::string> listed, groups;
  for (const FunctionRow& row : function_rows()) {
    listed.merge(found(row.call, R"(`([a-z0-9_]+))"));
    groups.insert(row.group);
  }
  CHECK(listed == declared);
  for (const std::string& group : groups) {
    const std::string table = table_of(group);
    CAPTURE(table);
    CHECK(contains(page, "## " + group + "\n"));
    CHECK(contains(page, table));
  }
  // PyTorch's numbers, but for what is tested in a file of its own.
  std::set<std::string> golden;
  const nlohmann::json document = read_json_file("golden/functions.json");
  for (const nlohmann::json& item : document["cases"]) {
    const std::string name = item["name"];
    golden.insert(name.substr(0, name.find(' ')));
  }
  for (const char* name : {"activation",       "argmax",
                           "batch_norm",       "conv2d",
                           "dropout",          "embedding",
                           "flatten",          "in_format",
                           "layer_norm",       "layer_scale",
                           "linear",           "mean_loss",
                           "one_hot",          "parameter",
                           "pool2d",           "reshape",
                           "rms_norm",         "squeeze",
                           "stochastic_depth", "subsample_pad",
                           "target_loss",      "scaled_dot_product_attention",
                           "packed_attention", "rotary",
                           "unsqueeze",        "equal",
                           "not_equal",        "less",
                           "less_equal",       "greater",
                           "greater_equal",    "sign"})
    golden.insert(name);
  for (const std::string& name : declared) {
    CAPTURE(name);
    CHECK(golden.count(name) == 1);
  }
}

}  // namespace starling::testing
