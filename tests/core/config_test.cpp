#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "core/config.h"
#include "core/config_doc.h"
#include "core/registry.h"
#include "core/typed_section.h"
#include "tests/support/errors.h"
#include "tests/support/rows.h"

using namespace starling;
using nlohmann::json;
using starling::test::contains;
using starling::test::error_of;
using starling::test::fails;

namespace {

ConfigSection config(const std::string& text) {
  return ConfigSection(parse_json(text, "run.json"), "run.json");
}

/// The error of reading `text` by `read`; checks that it starts with the file and the path.
template <class Read>
std::string config_error(const std::string& text, const std::string& path, const Read& read) {
  const std::string error = error_of(
      ExitCode::kUsage,
      [&] {
        ConfigSection section = config(text);
        read(section);
      },
      420);
  CHECK_MESSAGE(error.starts_with("[config] run.json: " + path + ": "), error);
  return error;
}

}  // namespace

TEST_CASE("core/config: range") {
  CHECK(Range::any().text().empty());
  CHECK(Range::positive().text() == "> 0");
  CHECK(Range::at_least(1).text() == ">= 1");
  CHECK(Range::closed(0, 1).text() == "0 … 1");
  CHECK(Range::half_open(0, 1).text() == ">= 0 and < 1");
  CHECK(Range{.max = 3}.text() == "<= 3");
  CHECK(Range{.max = 3, .open_max = true}.text() == "< 3");
  CHECK(Range::positive().contains(1e-300));
  CHECK_FALSE(Range::positive().contains(0));
  CHECK(Range::closed(0, 1).contains(1));
  CHECK_FALSE(Range::half_open(0, 1).contains(1));
  CHECK(Range::half_open(0, 1).contains(0));
  for (const double odd : {std::nan(""), HUGE_VAL, -HUGE_VAL})
    CHECK_FALSE(Range::any().contains(odd));
}

TEST_CASE("core/config: values, defaults, and the resolved config") {
  ConfigSection c = config(
      R"({"lr": 1, "n": 3.0, "big": 1e3, "on": false, "name": "x", "mode": "b", "betas": [0.5, 1], "widths": [4, 5e0],
                              "plugins": ["a.so"], "kernel": 3, "stride": [1, 2], "bucket": "auto", "sub": {"x": 2}, "list": [{"y": 1}, {"y": 2}],
                              "odd": [1, {"k": "v"}]})");
  CHECK(c.number("lr", 0.1, Range::positive(), "") == 1.0);
  CHECK(c.number("momentum", 0.9, Range::half_open(0, 1), "") == 0.9);
  CHECK(c.integer("n", 1, Range::at_least(1), "") == 3);
  CHECK(c.required_integer("big", Range::any(), "") == 1000);
  CHECK(c.integer("steps", 7, Range::any(), "") == 7);
  CHECK_FALSE(c.boolean("on", true, ""));
  CHECK(c.boolean("off", true, ""));
  CHECK(c.text("name", "", "") == "x");
  CHECK(c.text("init", "", "").empty());
  CHECK(c.choice("mode", "a", {"a", "b"}, "") == "b");
  CHECK(c.numbers("betas", {}, Range::closed(0, 1), "") == std::vector<double>{0.5, 1.0});
  CHECK(c.integers("widths", {1}, Range::at_least(1), "") == std::vector<std::int64_t>{4, 5});
  CHECK(c.texts("plugins", {}, "") == std::vector<std::string>{"a.so"});
  CHECK(c.required_pair("kernel", Range::at_least(1), "") == std::vector<std::int64_t>{3, 3});
  CHECK(c.pair("stride", {1}, Range::at_least(1), "") == std::vector<std::int64_t>{1, 2});
  CHECK(c.pair("padding", {0, 0}, Range::at_least(0), "") == std::vector<std::int64_t>{0, 0});
  std::string word = "left over";
  CHECK(c.number_or_word("bucket", 25, Range::positive(), {"auto"}, word, "") == 0);
  CHECK(word == "auto");
  CHECK(c.number_or_word("timeout", 300, Range::positive(), {"never"}, word, "") == 300);
  CHECK(word.empty());
  ConfigSection sub = c.section("sub", "");
  CHECK(sub.integer("x", 1, Range::any(), "") == 2);
  CHECK(sub.path("x") == "sub.x");
  CHECK(c.section("absent", "").integer("z", 5, Range::any(), "") == 5);
  std::vector<ConfigSection> list = c.sections("list", true, "");
  REQUIRE(list.size() == 2);
  for (ConfigSection& item : list) item.integer("y", 0, Range::any(), "");
  CHECK(list[1].path("y") == "list[1].y");
  CHECK(c.sections("none", false, "").empty());
  CHECK(c.raw("odd", "list", "")[1]["k"] == "v");
  CHECK(c.raw("even", "list", "").is_null());
  CHECK(c.has("lr"));
  CHECK_FALSE(c.has("momentum"));
  CHECK_NOTHROW(c.finish());
  c.resolve("momentum", 0.5);
  c.resolve("steps", nullptr);
  c.resolve("derived", "yes");
  CHECK(
      c.resolved() ==
      json::parse(
          R"({"lr": 1.0, "momentum": 0.5, "n": 3, "big": 1000, "on": false, "off": true, "name": "x", "init": "",
      "mode": "b", "betas": [0.5, 1.0], "widths": [4, 5], "plugins": ["a.so"], "kernel": [3, 3], "stride": [1, 2], "padding": [0, 0],
      "bucket": "auto", "timeout": 300.0, "sub": {"x": 2}, "absent": {"z": 5}, "list": [{"y": 1}, {"y": 2}], "none": [], "odd": [1, {"k": "v"}],
      "derived": "yes"})"));
}

TEST_CASE("core/config: what is wrong is told with its key, what was expected and what was found") {
  const std::map<std::string, std::function<void(ConfigSection&)>> readers{
      {"number",
       [](ConfigSection& c) {
         c.section("optimizer", "").number("lr", 0.1, Range::positive(), "learning rate");
       }},
      {"required number", [](ConfigSection& c) { c.required_number("x", Range::any(), ""); }},
      {"integer", [](ConfigSection& c) { c.integer("n", 1, Range::at_least(1), ""); }},
      {"required integer",
       [](ConfigSection& c) {
         c.section("model", "").required_integer("num_classes", Range::at_least(2), "");
       }},
      {"boolean", [](ConfigSection& c) { c.boolean("on", true, ""); }},
      {"text", [](ConfigSection& c) { c.text("s", "", ""); }},
      {"required text", [](ConfigSection& c) { c.required_text("x", ""); }},
      {"texts", [](ConfigSection& c) { c.texts("plugins", {}, ""); }},
      {"choice",
       [](ConfigSection& c) {
         c.choice("device", "auto", {"auto", "cpu", "cuda"}, "");
       }},
      {"numbers",
       [](ConfigSection& c) {
         c.section("optimizer", "").numbers("betas", {0.9, 0.999}, Range::half_open(0, 1), "");
       }},
      {"integers", [](ConfigSection& c) { c.integers("hidden", {}, Range::at_least(1), ""); }},
      {"pair", [](ConfigSection& c) { c.pair("kernel_size", {1}, Range::at_least(1), ""); }},
      {"required pair", [](ConfigSection& c) { c.required_pair("x", Range::any(), ""); }},
      {"number or word",
       [](ConfigSection& c) {
         std::string word;
         c.section("sync", "").number_or_word("mb", 25, Range::positive(), {"auto"}, word, "");
       }},
      {"of sync", [](ConfigSection& c) { c.section("sync", "").text("algorithm", "", ""); }},
      {"topology",
       [](ConfigSection& c) {
         c.section("sync", "").section("topology", "").text("type", "", "");
       }},
      {"layers", [](ConfigSection& c) { c.section("model", "").sections("layers", true, ""); }},
      {"known",
       [](ConfigSection& c) {
         ConfigSection optimizer = c.section("optimizer", "");
         optimizer.number("lr", 0.1, Range::any(), "");
         optimizer.number("weight_decay", 0.1, Range::any(), "");
         optimizer.finish();
       }},
  };
  // Who reads, the text, the key, and words of the error ("$": its end).
  for (const auto& row : test::rows_of(R"table(
number | {"optimizer": {"lr": -1}} | optimizer.lr | expected a number > 0, found -1
number | {"optimizer": {"lr": @}} | optimizer.lr | found the string @; a number is not quoted, and written as in JSON: 0.1 | @: "0.1" ; ".1" ; "+0.1" ; "1e-1"
number | {"optimizer": {"lr": "fast"}} | optimizer.lr | expected a number > 0, found the string "fast"$
number | {"optimizer": {"lr": @}} | optimizer.lr | found @ | @: null ; true
number | {"optimizer": {"lr": [1]}} | optimizer.lr | found the list [1]
required number | {} | x | is required and missing
integer | {"n": @} | n | expected an integer >= 1, found | @: 1.5 ; 0 ; -3 ; 1e19 ; -1e300 ; 18446744073709551615 ; 9223372036854775808 ; "1" ; {} ; 1e-5 ; false
required integer | {"model": {"num_class": 3}} | model.num_classes | is required and missing ('num_class' stands there, unknown)
required integer | {} | model.num_classes | is required and missing; expected an integer >= 2
boolean | {"on": 1} | on | expected true or false, found 1
text | {"s": 1} | s | expected a string, found 1; a text is quoted: "1", and with --set: 's="1"'
required text | {"x": ""} | x | not empty
required text | {} | x | is required and missing
texts | {"plugins": ["a", 1]} | plugins | found 1 as item 2
choice | {"device": "CPU"} | device | unknown value 'CPU'; did you mean 'cpu'?; allowed: auto, cpu, cuda
choice | {"device": 3} | device | expected one of auto, cpu, cuda, found 3
numbers | {"optimizer": {"betas": 0.9}} | optimizer.betas | expected a list of numbers >= 0 and < 1, found 0.9
numbers | {"optimizer": {"betas": [0.9, 1.5]}} | optimizer.betas | found 1.5 as item 2 of 2
numbers | {"optimizer": {"betas": [0.9, "x"]}} | optimizer.betas | the string "x" as item 2
integers | {"hidden": [512, 2.5]} | hidden | found 2.5 as item 2 of 2
integers | {"hidden": [0]} | hidden | >= 1, found 0
pair | {"kernel_size": @} | kernel_size | expected | @: 0 ; [1] ; [1, 2, 3] ; [1, 0] ; "3" ; [1, [2]] ; 1.5
required pair | {} | x | is required and missing
number or word | {"sync": {"mb": "auot"}} | sync.mb | did you mean 'auto'?
number or word | {"sync": {"mb": 0}} | sync.mb | expected a number > 0, or "auto", found 0
of sync | {"sync": "gossip"} | sync | expected an object, e.g. {"algorithm": "..."}, found the string "gossip"
topology | {"sync": {"topology": "ring"}} | sync.topology | expected an object, e.g. {"type": "..."}, found the string "ring"
topology | {"sync": [1]} | sync | expected an object, {…}, found the list [1]
layers | {"model": {}} | model.layers | is required and missing
layers | {"model": {"layers": []}} | model.layers | at least one
layers | {"model": {"layers": {"type": "relu"}}} | model.layers | expected a list of objects
layers | {"model": {"layers": [{}, "relu"]}} | model.layers[1] | found the string "relu"
known | {"optimizer": {"Weight_Decai": 1}} | optimizer.Weight_Decai | unknown key; did you mean 'weight_decay'?; known: lr, weight_decay
known | {"optimizer": {"zzzzzz": 1}} | optimizer.zzzzzz | unknown key; known: lr, weight_decay
known | {"optimizer": {"": 0, "aaa": 1, "weigth_decay": 2}} | optimizer.weigth_decay | did you mean
known | {"optimizer": {"": 0}} | optimizer | unknown key; known
)table")) {
    CAPTURE(row.at(1));
    const std::string error = config_error(row.at(1), row.at(2), readers.at(row.at(0)));
    CHECK(contains(error + "$", row.at(3)));
  }
  for (const double odd : {std::nan(""), HUGE_VAL}) {
    ConfigSection c(json{{"lr", odd}}, "made");
    CHECK(fails(ExitCode::kUsage, "not finite", [&] { c.number("lr", 1, Range::any(), ""); }));
  }
  for (const char* text : {"[]", "1", "null", "\"x\""}) {
    CHECK(fails(ExitCode::kUsage, "[config] run.json: expected an object, {…}, at the top, found ",
                [&] { ConfigSection(parse_json(text, "run.json"), "run.json"); }));
  }
  // A key named in every way that could break a line or a terminal, or that is long.
  const std::string path = "optimizer.a\\x1b[31m\\n\\x00kkk";
  const std::string odd = error_of(ExitCode::kUsage, [&] {
    ConfigSection c =
        config("{\"optimizer\": {\"a\\u001b[31m\\n\\u0000" + std::string(5000, 'k') + "\": 1}}");
    readers.at("known")(c);
  });
  CHECK(odd.starts_with("[config] run.json: " + path));
  CHECK(odd.size() <= 420);
  CHECK(contains(odd, "unknown key"));
  config("{}").finish();
}

TEST_CASE("core/config: the ends of the integers, and an object that is null") {
  ConfigSection c = config(
      R"({"a": 9223372036854775807, "b": -9223372036854775808, "c": -9.223372036854775808e18, "d": 1e18, "sync": null})");
  CHECK(c.integer("a", 0, Range::any(), "") == INT64_MAX);
  CHECK(c.integer("b", 0, Range::any(), "") == INT64_MIN);
  CHECK(c.integer("c", 0, Range::any(), "") == INT64_MIN);
  CHECK(c.integer("d", 0, Range::any(), "") == 1'000'000'000'000'000'000);
  CHECK(c.section("sync", "").number("x", 2, Range::any(), "") == 2);
  CHECK_FALSE(c.has("sync"));
}

TEST_CASE("core/config: lists of lists of objects") {
  ConfigSection c = config(R"({"branches": [[], [{"x": 3}, {}]], "wrong": [[{}], {}]})");
  std::vector<ConfigSection> branches = c.sections("branches", true, "", true);
  REQUIRE(branches.size() == 2);
  CHECK(branches[0].sections("", false, "").empty());
  std::vector<ConfigSection> items = branches[1].sections("", false, "");
  REQUIRE(items.size() == 2);
  for (ConfigSection& item : items) item.integer("x", 1, Range::any(), "");
  CHECK(items[1].path("x") == "branches[1][1].x");
  CHECK(c.resolved()["branches"] == nlohmann::json::parse(R"([[], [{"x": 3}, {"x": 1}]])"));
  CHECK(fails(ExitCode::kUsage, "wrong[1]: expected a list, found",
              [&] { c.sections("wrong", true, "", true); }));
}

TEST_CASE("core/config: values that are long or not printable are echoed short and escaped") {
  const auto number = [](ConfigSection& c) { c.number("lr", 0.1, Range::any(), ""); };
  const std::string error = config_error(
      "{\"lr\": \"a\\n\\u001b]0;\\u0007" + std::string(100'000, 'x') + "\"}", "lr", number);
  CHECK(error.size() < 200);
  CHECK(error.find('\x1b') == std::string::npos);
  CHECK(contains(error, "a\\n\\u001b"));
  const auto choice = [](ConfigSection& c) { c.choice("lr", "a", {"a"}, ""); };
  CHECK(config_error("{\"lr\": \"" + std::string(100'000, 'y') + "\"}", "lr", choice).size() < 200);
  CHECK(config_error("{\"lr\": [" + std::string(100'000, '1') + "e-99999]}", "lr", number).size() <
        200);
}

TEST_CASE("core/config: errors of callers carry file and path") {
  ConfigSection c = config(R"({"sync": {"topology": {"type": "ring"}}})");
  ConfigSection topology = c.section("sync", "").section("topology", "");
  CHECK(error_of(ExitCode::kUsage, [&] { topology.error("type", "needs at least 2 ranks"); }) ==
        "[config] run.json: sync.topology.type: needs at least 2 ranks");
  CHECK(error_of(ExitCode::kUsage, [&] { topology.error("", "x"); }) ==
        "[config] run.json: sync.topology: x");
  CHECK(error_of(ExitCode::kUsage, [&] { c.error("", "x"); }) == "[config] run.json: x");
  CHECK(topology.path() == "sync.topology");
  CHECK(c.path().empty());
}

TEST_CASE("core/config: a section read by two readers knows the keys of both") {
  ConfigSection c = config(R"({"optimizer": {"type": "sgd", "momentum": 0.5}})");
  CHECK(c.section("optimizer", "").required_text("type", "") == "sgd");
  CHECK(c.section("optimizer", "").number("momentum", 0, Range::any(), "") == 0.5);
  ConfigSection again = c.section("optimizer", "");
  CHECK(again.required_text("type", "") == "sgd");
  CHECK_NOTHROW(again.finish());
  CHECK(c.declared().size() == 3);
  CHECK(c.declared()[1].doc.empty());
  c.section("optimizer", "the rule");
  c.section("optimizer", "another text");
  CHECK(c.declared()[0].doc == "the rule");
}

TEST_CASE("core/config: describing lists every key with its default, and its table is Markdown") {
  ConfigSection c = ConfigSection::describe();
  CHECK(c.required_number("half", Range::closed(0.25, 0.5), "") >= 0.25);
  CHECK(c.required_integer("n", Range::at_least(3), "count | of\nthings") == 3);
  CHECK(c.required_text("name", "") == "…");
  CHECK(c.required_pair("kernel", Range::at_least(1), "") == std::vector<std::int64_t>{1, 1});
  ConfigSection optimizer = c.section("optimizer", "the rule");
  optimizer.number("lr", 1e-3, Range::positive(), "learning rate");
  optimizer.choice("decay", "weights", {"weights", "all"}, "what decays");
  optimizer.finish();
  CHECK(c.sections("layers", true, "", false, R"([{"type": "relu"}])").empty());
  CHECK(c.required_integer("depth", Range::at_least(1), "", 12) == 12);
  CHECK(c.raw("path", "text", "", R"("a.csv")") == "a.csv");
  CHECK(c.number_if_given("epochs", Range::positive(), "") == std::nullopt);
  REQUIRE(c.optional_section("ema", ""));
  CHECK(c.optional_section("ema", "")->number("rate", 0.5, Range::any(), "") == 0.5);
  const std::vector<ConfigKey> keys = c.declared();
  REQUIRE(keys.size() == 13);
  CHECK(keys[1].path == "n");
  CHECK(keys[1].default_text == "required");
  CHECK(keys[1].allowed == ">= 3");
  CHECK(keys[4].path == "optimizer");
  CHECK(keys[4].type == "object");
  CHECK(keys[5].path == "optimizer.lr");
  CHECK(keys[5].default_text == "0.001");
  CHECK(keys[6].allowed == "weights, all");
  const json sample = c.resolved();
  CHECK(sample["n"] == 3);
  CHECK(sample["name"] == "…");
  CHECK(sample["layers"] == json{{{"type", "relu"}}});
  CHECK(sample["path"] == "a.csv");
  CHECK_FALSE(sample.contains("epochs"));
  CHECK(sample["ema"] == json{{"rate", 0.5}});
  CHECK(sample["optimizer"] == json{{"lr", 1e-3}, {"decay", "weights"}});
  nlohmann::ordered_json wide{{"type", "x"}};
  for (int k = 0; k < 20; ++k) wide["key" + std::to_string(k)] = {1, 2.5, "a"};
  const std::string text = config_sample(wide);
  CHECK(text.starts_with("```json\n{\"type\": \"x\", \"key0\": [1, 2.5, \"a\"], "));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
  CHECK(json::parse(text.substr(8, text.size() - 12)) == json(wide));
  const std::string table = config_markdown("Keys", keys);
  CHECK(contains(
      table, "## Keys\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n"));
  CHECK(contains(table, "| `n` | integer | required | >= 3 | count \\| of things |\n"));
  CHECK(contains(table, "| `optimizer.lr` | number | `0.001` | > 0 | learning rate |\n"));
}

TEST_CASE("core/config: a description ends where its reader refuses a sample, or has read all") {
  bool went_on = false;
  const auto keys = [&](const auto& end) {
    const ConfigSection section = ConfigSection::described_by([&](ConfigSection& c) {
      c.section("inner", "").finish();
      c.required_text("path", "");
      end(c);
      went_on = true;
    });
    return section.declared().size();
  };
  CHECK(keys([](ConfigSection& c) { c.finish(); }) == 2);
  CHECK(keys([](ConfigSection& c) { c.error("path", "is no file"); }) == 2);
  CHECK_FALSE(went_on);
  CHECK(keys([](ConfigSection&) {}) == 2);
  CHECK(went_on);
}

TEST_CASE("core/config: keys are read into values, which are the defaults") {
  enum class Order { kAwc, kAtc };
  const auto orders = [](ConfigSection& c, Order order) {
    c.read("order", order, {{"awc", Order::kAwc}, {"atc", Order::kAtc}}, "");
    return order;
  };
  ConfigSection c = config(R"({"rate": 0.25, "count": 7, "order": "atc", "kept": 5})");
  double rate = 0.5;
  int count = 3;
  std::uint64_t kept = 5;
  bool on = true;
  std::string name = "x";
  c.read("rate", rate, Range::closed(0, 1), "");
  c.read("count", count, Range::closed(0, 10), "");
  c.read("kept", kept, Range::closed(0, 10), "");
  c.read("on", on, "");
  c.read("name", name, "");
  CHECK(orders(c, Order::kAwc) == Order::kAtc);
  CHECK(rate == 0.25);
  CHECK(count == 7);
  CHECK(c.resolved() == json{{"rate", 0.25},
                             {"count", 7},
                             {"kept", 5},
                             {"on", true},
                             {"name", "x"},
                             {"order", "atc"}});
  for (const char* key : {"rate", "count", "order"}) CHECK(c.changed(key));
  for (const char* key : {"kept", "on", "name", "unread"}) CHECK_FALSE(c.changed(key));
  const std::vector<ConfigKey> keys = c.declared();
  REQUIRE(keys.size() == 6);
  CHECK(keys[0].default_text == "0.5");
  CHECK(keys[1].type == "integer");
  CHECK(keys[5].default_text == R"("awc")");
  CHECK(keys[5].allowed == "awc, atc");
  ConfigSection left = config("{}");
  CHECK(orders(left, Order::kAtc) == Order::kAtc);
  CHECK(contains(config_error(R"({"order": "act"})", "order",
                              [&](ConfigSection& given) { orders(given, Order::kAwc); }),
                 "unknown value 'act'"));
}

TEST_CASE("core/config: a section of a type knows the keys of the others") {
  Registry<int, ConfigSection&, double> rules("rule");
  rules.add("plain", [](ConfigSection& c, double usual) {
    return static_cast<int>(c.number("rate", usual, Range::any(), ""));
  });
  rules.add("heavy", [](ConfigSection& c, double) {
    return static_cast<int>(c.required_number("momentum", Range::any(), ""));
  });
  rules.add("late", [](ConfigSection& c, double) {
    c.number("momentum", 0.0, Range::any(), "");
    return static_cast<int>(c.integer("delay", 1, Range::any(), ""));
  });
  const auto read = [&](ConfigSection& c) {
    ConfigSection rule = c.section("rule", "");
    const int made = make_typed(rules, rule.text("type", "plain", ""), rule, 3.0);
    rule.number("share", 0.0, Range::any(), "");
    rule.finish();
    return made;
  };
  const auto error = [&](const std::string& text, const std::string& key) {
    return config_error(text, key, read);
  };
  ConfigSection c = config(R"({"rule": {"share": 1}})");
  CHECK(read(c) == 3);
  CHECK(c.resolved()["rule"]["rate"] == 3.0);
  REQUIRE(c.declared().size() == 3);  // rule, type and share: those of every type
  CHECK(c.declared()[2].path == "rule.share");
  CHECK(contains(error(R"({"rule": {"zzzz": 1, "momentum": 1}})", "rule.momentum"),
                 "is not a key of plain, but of heavy, late"));
  CHECK(contains(error(R"({"rule": {"type": "late", "rate": 1}})", "rule.rate"),
                 "is not a key of late, but of plain"));
  CHECK(contains(error(R"({"rule": {"momentun": 1}})", "rule.momentun"),
                 "unknown key; did you mean 'momentum' of heavy, late?; known: type, rate, share"));
  CHECK(contains(error(R"({"rule": {"delai": 1, "shar": 2}})", "rule.delai"), "'delay' of late?"));
}

TEST_CASE("core/config: a hint says more of an unknown key than the known ones' names") {
  const auto hint = [](const std::string& section, const std::string& key, const json& value) {
    return key == "n_head" ? "; " + section + " has heads, as heads=" + value.dump() : "";
  };
  const auto error = [&](const char* key) {
    ConfigSection c(json{{"model", {{key, 4}}}}, "run.json", hint);
    ConfigSection model = c.section("model", "");
    model.integer("heads", 1, Range::any(), "");
    return error_of(ExitCode::kUsage, [&] { model.finish(); });
  };
  CHECK(error("n_head") ==
        "[config] run.json: model.n_head: unknown key; model has heads, as heads=4; known: heads");
  CHECK(contains(error("n_heads"), "did you mean 'heads'?"));
}

TEST_CASE("core/config: --set") {
  json c = parse_json(
      R"({"sync": {"topology": {"type": "ring"}}, "model": {"layers": [{"type": "relu"}, {"type": "gelu"}]}, "lr": 1, "none": null})",
      "x");
  apply_setting(c, "sync.topology.type=base-2");
  apply_setting(c, "sync.bucket_mb=2.5");
  apply_setting(c, "optimizer.betas=[0.9, 0.99]");
  apply_setting(c, "model.layers.1.type=silu");
  apply_setting(c, "lr=1e-3");
  apply_setting(c, "none.a.b={\"k\": true}");
  apply_setting(c, "name=a=b");
  apply_setting(c, "quoted=\"3\"");
  apply_setting(c, "empty=");
  apply_setting(c, "gone=null");
  CHECK(
      c ==
      json::parse(
          R"({"sync": {"topology": {"type": "base-2"}, "bucket_mb": 2.5}, "optimizer": {"betas": [0.9, 0.99]},
      "model": {"layers": [{"type": "relu"}, {"type": "silu"}]}, "lr": 0.001, "none": {"a": {"b": {"k": true}}}, "name": "a=b", "quoted": "3",
      "empty": "", "gone": null})"));

  const json before = c;
  const auto error = [&](const std::string& setting) {
    const std::string text = error_of(
        ExitCode::kUsage, [&] { apply_setting(c, setting); }, 420);
    CHECK(text.starts_with("[config] --set "));
    CHECK(c == before);
    return text;
  };
  for (const auto& row : test::rows_of(R"table(
lr | no '='
=3 | no key before '='
lr=1e-400 | 1e-400 is too small
lr=-1.5E+999 | out of range
a..b=3 | a part of the path is empty
.a=3 | empty
a.=3 | empty
lr.x=3 | 'lr' is a number, so it has no 'x'
name.x.y=3 | 'name' is a string
model.layers.2.type=x | expected an index from 0 to 1, found '2'
model.layers.first=x | 'model.layers' is a list
model.layers.-1=x | is a list
model.layers.99999999999999999999=x | is a list
new.lr={"a": 1, "a": 2} | given twice
new=[1, 2 | not valid JSON
)table"))
    CHECK(contains(error(row.at(0)), row.at(1)));
  // People look for a comma where it is missing, not where the next thing begins.
  CHECK(contains(error("new={\"a\": 1\n\"b\": 2}"),
                 "line 1, column 7: not valid JSON: a comma is missing behind this"));
  CHECK(contains(error("new=[\"a\"\n [2]]"),
                 "line 1, column 4: not valid JSON: a comma is missing behind this"));
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "a.";
  CHECK(contains(error(deep + "b=1"), "more than 32 parts"));
  CHECK(error("\n\x1b" + std::string(10'000, 'x')).size() < 300);
}
