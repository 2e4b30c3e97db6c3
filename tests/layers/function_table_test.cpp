#include <doctest/doctest.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "core/config.h"
#include "tests/layers/support.h"
#include "tests/support/folder.h"

namespace starling::testing {
namespace {

using Names = std::set<std::string>;

/// What the first group of the pattern matches.
Names found(const std::string& text, const std::string& pattern) {
  Names result;
  const std::regex regex(pattern, std::regex::multiline);
  for (std::sregex_iterator i(text.begin(), text.end(), regex), end; i != end; ++i)
    result.insert((*i)[1]);
  return result;
}

}  // namespace

// docs/functions.md is the list: the first cells of its tables name each function.
TEST_CASE("layers/function_table: docs/functions.md lists what the header declares") {
  const Names declared =
      found(test::read_text("../layers/functions.h"),
            R"(^(?:Variable|Tensor|TopValues|std::vector<Variable>) ([a-z0-9_]+)\()");
  Names listed;
  for (const std::string& call :
       found(test::read_text("../docs/functions.md"), R"(^\| (`[^|]*) \|)"))
    listed.merge(found(call, R"(`([a-z0-9_]+))"));
  CHECK(listed == declared);
  // Each has PyTorch's numbers, but for those with a test of their own.
  std::istringstream tested(
      "activation argmax batch_norm conv2d dropout embedding equal flatten greater greater_equal "
      "in_format layer_norm layer_scale less less_equal linear mean_loss not_equal one_hot "
      "packed_attention parameter pool2d reshape rms_norm rotary scaled_dot_product_attention sign "
      "squeeze stochastic_depth subsample_pad target_loss unsqueeze");
  Names known(std::istream_iterator<std::string>(tested), {});
  const nlohmann::json document = read_json_file("golden/functions.json");
  for (const nlohmann::json& item : document["cases"]) {
    const std::string name = item["name"];
    known.insert(name.substr(0, name.find(' ')));
  }
  for (const std::string& name : declared) CHECK_MESSAGE(known.count(name) == 1, name);
}

}  // namespace starling::testing
