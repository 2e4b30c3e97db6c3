#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>

#include "core/registry.h"
#include "core/text.h"
#include "tests/support/errors.h"

using namespace starling;
using starling::test::contains;
using starling::test::error_of;
using starling::test::fails;

TEST_CASE("core/registry: the nearest name") {
  const std::vector<std::string> names{"ring",
                                       "complete",
                                       "one-peer-exp",
                                       "base-2",
                                       "alternating-exp-ring",
                                       "random-matching",
                                       "adamw",
                                       "accum_adamw",
                                       "lr"};
  const auto suggested = [&](const char* found) { return suggestion(found, names); };
  CHECK(suggested("rign") == "; did you mean 'ring'?");
  CHECK(suggested("RING") == "; did you mean 'ring'?");
  CHECK(suggested("one_peer_exp") == "; did you mean 'one-peer-exp'?");
  CHECK(suggested("one-peer") == "; did you mean 'one-peer-exp'?");
  CHECK(suggested("compleet") == "; did you mean 'complete'?");
  CHECK(suggested("base2") == "; did you mean 'base-2'?");
  CHECK(suggested("AdamW") == "; did you mean 'adamw'?");
  CHECK(suggested("adam") == "; did you mean 'adamw'?");
  CHECK(suggested("alt") == "; did you mean 'alternating-exp-ring'?");
  CHECK(suggested("rl") == "; did you mean 'lr'?");
  CHECK(suggested("torus").empty());
  CHECK(suggested("x").empty());
  CHECK(suggested("").empty());
  CHECK(suggestion(std::string(1 << 20, 'a'), names).empty());
  CHECK(suggestion("a", {}).empty());
}

TEST_CASE("core/registry: makes by name, and names what it knows") {
  Registry<std::unique_ptr<int>, int> registry("number");
  registry.add(
      "double", [](int x) { return std::make_unique<int>(2 * x); }, "twice");
  registry.add("triple", [](int x) { return std::make_unique<int>(3 * x); });
  CHECK(*registry.make("triple", "a.type", 5) == 15);
  CHECK(registry.contains("double"));
  CHECK_FALSE(registry.contains("Double"));
  CHECK(registry.names() == std::vector<std::string>{"double", "triple"});
  CHECK(registry.summary("double") == "twice");
  CHECK(error_of(ExitCode::kUsage, [&] { registry.make("tripel", "model.type", 1); }) ==
        "[config] model.type: unknown number 'tripel'; did you mean 'triple'?; known: double, "
        "triple");
  CHECK(fails(ExitCode::kUsage, "unknown number '\\n",
              [&] { registry.make(std::string(100'000, '\n'), "model.type", 1); }));
  const auto doubled = [&] {
    registry.add("double", [](int) { return std::make_unique<int>(1); });
  };
  CHECK(contains(error_of(ExitCode::kUsage, doubled),
                 "'double' is registered twice: by the program itself and by the program itself"));
  CHECK(fails(ExitCode::kUsage, "without a maker", [&] { registry.add("empty", nullptr); }));
}

TEST_CASE("core/registry: what a plug-in's maker gives and throws carries its name and file") {
  Registry<std::unique_ptr<int>> registry("number"), optional("option", true);
  {
    const PluginScope scope("./liba.so");
    registry.add("null", [] { return nullptr; });
    registry.add("thrown", []() -> std::unique_ptr<int> { throw std::out_of_range("too far"); });
    registry.add("odd", []() -> std::unique_ptr<int> { throw 7; });
    optional.add("null", [] { return nullptr; });
  }
  const auto made = [&](ExitCode code, const char* name) {
    return error_of(code, [&] { registry.make(name, "type"); });
  };
  CHECK(made(ExitCode::kUsage, "null") ==
        "[number] the maker of 'null' of ./liba.so gives null; it must give an object");
  CHECK(made(ExitCode::kInternal, "thrown") ==
        "[number] 'thrown' of ./liba.so: std::out_of_range: too far");
  CHECK(made(ExitCode::kInternal, "odd") ==
        "[number] 'odd' of ./liba.so: an exception of type int");
  CHECK(optional.make("null", "type") == nullptr);
  const PluginScope scope("./libb.so");
  CHECK(fails(ExitCode::kUsage, "by ./liba.so and by ./libb.so",
              [&] { registry.add("odd", [] { return nullptr; }); }));
}

TEST_CASE("core/text: what is shown is one short printable line") {
  CHECK(shown("plain é … 日本") == "plain é … 日本");
  CHECK(shown("a\nb\tc\rd") == "a\\nb\\tc\\rd");
  CHECK(shown(std::string_view("\0\x1b\x7f", 3)) == "\\x00\\x1b\\x7f");
  CHECK(shown("\xc3") == "\\xc3");
  CHECK(shown("\xc3(") == "\\xc3(");
  CHECK(shown("\xff\xfe") == "\\xff\\xfe");
  CHECK(shown("\xc0\x80") == "\\xc0\\x80");           // overlong
  CHECK(shown("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(shown("\xf4\x90\x80\x80").find('\xf4') == std::string::npos);
  CHECK(shown("\xc2\x9b") == "\\xc2\\x9b");           // C1's control sequence introducer
  CHECK(shown("\xe2\x80\xa8") == "\\xe2\\x80\\xa8");  // line separator
  CHECK(shown("日本語", 2) == "日本…");
  CHECK(shown("ab", 2) == "ab");
  CHECK(shown(std::string(1 << 20, 'x')).size() < 100);
}
