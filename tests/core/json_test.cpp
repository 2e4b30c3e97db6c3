#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

using namespace starling;
using nlohmann::json;
using starling::test::contains;
using starling::test::error_of;

namespace {

std::string parse_error(const std::string& text) {
  const std::string error = error_of(
      ExitCode::kUsage, [&] { parse_json(text, "run.json"); }, 420);
  CHECK(error.starts_with("[config] run.json: line "));
  return error;
}

}  // namespace

TEST_CASE("core/json: values of every kind") {
  const json value = parse_json(
      R"( {"a": [1, -2, 3.5, 1e3, true, false, null, "x\u00e9\n", {}, []], "b": {"a": 1}, "": 18446744073709551615} )",
      "x");
  CHECK(value["a"].size() == 10);
  CHECK(value["a"][0].is_number_unsigned());
  CHECK(value["a"][1] == -2);
  CHECK(value["a"][3] == 1000.0);
  CHECK(value["a"][6].is_null());
  CHECK(value["a"][7] == "xé\n");
  CHECK(value["a"][8].is_object());
  CHECK(value["a"][9].is_array());
  CHECK(value["b"]["a"] == 1);
  CHECK(value[""] == 18446744073709551615ull);
  CHECK(parse_json("3", "x") == 3);
  CHECK(parse_json("[[1,2],[3,[4]],{\"k\":[5]}]", "x").dump() == R"([[1,2],[3,[4]],{"k":[5]}])");
  // The same as the library's own reader makes of it.
  const std::string nested = R"({"x":[{"y":[{"z":1},{"z":2}]},{"y":[]}],"w":{"v":{"u":[true]}}})";
  CHECK(parse_json(nested, "x") == json::parse(nested));
}

TEST_CASE("core/json: malformed text is refused with its place") {
  CHECK(contains(parse_error("{\"a\": 1,\n \"b\": }"), "line 2, column 7"));
  CHECK(contains(parse_error("{\"a\": 1,}"), "line 1, column 9"));
  CHECK(contains(parse_error(""), "line 1, column 1"));
  CHECK(contains(parse_error("{\"a\": 1} x"), "line 1, column 10"));
  for (const char* text :
       {"{",           "[1,",         "{\"a\"",       "{\"a\":",      "{'a': 1}",
        "{a: 1}",      "// no\n{}",   "{\"a\": 01}",  "{\"a\": NaN}", "{\"a\": Infinity}",
        "{\"a\": -}",  "{\"a\": .5}", "{\"a\": tru}", "\"abc",        "\"\\x\"",
        "\"\\ud800\"", "{\"a\" 1}",   "[1 2]",        "\"a\nb\"",     "]",
        "}",           ",",           "nul"}) {
    CAPTURE(text);
    parse_error(text);
  }
  parse_error(std::string("{\"a\": \"\xff\"}"));
  parse_error(std::string("{\"a\": \"\xc0\x80\"}"));
  parse_error(std::string("\0", 1));
  parse_error(std::string("{}\0", 3));
  parse_error("{\"" + std::string(100'000, 'x'));
}

TEST_CASE("core/json: numbers that are not finite") {
  CHECK(contains(parse_error("{\"lr\": 1e999}"), "1e999 is out of range"));
  CHECK(contains(parse_error("{\"lr\": 1e-400}"), "1e-400 is too small, and would be 0"));
  CHECK(contains(parse_error("{\"lr\": [-0.001E-330]}"), "too small"));
  for (const char* fine :
       {"{\"lr\": 0e-400}", "{\"lr\": 0.000}", "{\"lr\": -0.0E5}", "{\"lr\": 5e-324}"})
    CHECK_NOTHROW(parse_json(fine, "x"));
  CHECK(contains(parse_error("[\n -1e400]"), "line 2"));
  parse_error("[" + std::string(100'000, '9') + "]");
}

TEST_CASE("core/json: the same key twice") {
  const std::string error = parse_error("{\"a\": {\"lr\": 1,\n  \"b\": 2,\n  \"lr\": 3}}");
  CHECK(contains(error, "the key 'lr' is given twice"));
  CHECK(contains(error, "line 3, column 6"));
  CHECK(parse_json(R"({"a": {"x": 1}, "b": {"x": 1}})", "x").size() == 2);
  parse_error("{\"\\u0061\": 1, \"a\": 2}");
  CHECK(contains(parse_error("{\"\\n\": 1, \"\\n\": 2}"), "'\\n'"));
}

TEST_CASE("core/json: nesting") {
  const auto nested = [](std::size_t depth, const std::string& open, const std::string& middle,
                         const std::string& close) {
    std::string text;
    for (std::size_t i = 0; i < depth; ++i) text += open;
    text += middle;
    for (std::size_t i = 0; i < depth; ++i) text += close;
    return text;
  };
  CHECK_NOTHROW(parse_json(nested(64, "[", "", "]"), "x"));
  CHECK(contains(parse_error(nested(65, "[", "", "]")), "more than 64 levels"));
  CHECK_NOTHROW(parse_json(nested(64, "{\"a\":", "1", "}"), "x"));
  CHECK(contains(parse_error(nested(65, "{\"a\":", "1", "}")), "more than 64 levels"));
  parse_error(nested(1'000'000, "[", "", ""));
}

TEST_CASE("core/json: every prefix and every changed byte of a config is a value or an error") {
  const std::string text =
      R"({"seed": 1, "optimizer": {"lr": 1e-3, "betas": [0.9, 0.999]}, "name": "r\u00e9\"s", "on": true, "no": null})";
  const auto survive = [](const std::string& candidate) {
    test::error_text(ExitCode::kUsage, [&] { parse_json(candidate, "x"); });
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    survive(text.substr(0, i));
    for (int c = 0; c < 256; c += 1) {
      std::string changed = text;
      changed[i] = static_cast<char>(c);
      survive(changed);
    }
  }
}

TEST_CASE("core/json: files") {
  const test::Folder folder;
  CHECK(read_json_file(folder.write("good.json", "{\"a\": 1}"))["a"] == 1);
  const auto error = [&](const std::string& path) {
    return error_of(ExitCode::kUsage, [&] { read_json_file(path); });
  };
  CHECK(contains(error(folder / "none.json"), "none.json: cannot be read: No such file"));
  CHECK(contains(error(folder / ""), "it is a folder"));
  CHECK(contains(error(folder.write("bad.json", "{\n  \"a\" 1}")), "bad.json: line 2, column 7"));
  CHECK(contains(error(folder.write("large.json", std::string((16 << 20) + 1, ' '))),
                 "larger than 16 MiB"));
  CHECK(contains(error(""), "cannot be read"));
  CHECK(contains(error(std::string("a\0b", 3)), "zero byte"));
  CHECK(contains(error(folder.write("wide.json", std::string("\xFF\xFE{\0", 4))),
                 "a zero byte, as UTF-16 has it; needed: UTF-8"));
  CHECK(contains(error("/dev/zero"), "larger than 16 MiB"));
}
