#include "core/text.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

using starling::counted;
using starling::wrapped;

namespace {

std::string wrap_at(int width, const std::string& text) {
  int column = 0;
  return wrapped(text, width, column);
}

}  // namespace

TEST_CASE("text: lines break at words") {
  CHECK(wrap_at(10, "one two three") == "one two\n  three");
  CHECK(wrap_at(13, "one two three\n") == "one two three\n");
  CHECK(wrap_at(7, "one two\nsix ten\n") == "one two\nsix ten\n");
  CHECK(wrap_at(8, "aaaa bbbb cccc") == "aaaa\n  bbbb\n  cccc");
  CHECK(wrap_at(80, "a  b   c") == "a  b   c");
  CHECK(wrap_at(10, "") == "");
}

TEST_CASE("text: names that look the same are told apart") {
  CHECK(starling::told_apart("ant") == "'ant'");
  CHECK(starling::told_apart("a b") == "'a b'");
  CHECK(starling::told_apart("ant ") == "'ant ' (ant\\x20)");
  CHECK(starling::told_apart("caf\xc3\xa9") == "'caf\xc3\xa9' (caf\\xc3\\xa9)");
  CHECK(starling::told_apart("cafe\xcc\x81") == "'cafe\xcc\x81' (cafe\\xcc\\x81)");
  CHECK(starling::told_apart("a\nb") == "'a\\nb' (a\\x0ab)");
  CHECK(starling::is_utf8("caf\xc3\xa9 \xe7\x8c\xab"));
  for (const char* text : {"caf\xe9", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80"})
    CHECK_FALSE(starling::is_utf8(text));
}

TEST_CASE("text: names that look the same are found, others are not") {
  using starling::look_alike;
  const std::pair<const char*, const char*> alike[] = {
      {"ant", "ant "},
      {"ant", "\tant"},
      {"a b", "a\xc2\xa0\x62"},                               // a blank that does not break
      {"ant", "a\xe2\x80\x8bnt"},                             // one without a width
      {"caf\xc3\xa9", "cafe\xcc\x81"},                        // é
      {"\xe1\xba\xbf", "\xc3\xaa\xcc\x81"},                   // ế: ê and an accent
      {"\xe1\xba\xbf", "e\xcc\x82\xcc\x81"},                  // and e with two
      {"\xea\xb0\x80", "\xe1\x84\x80\xe1\x85\xa1"},           // 가
      {"\xe3\x81\x8c\x31", "\xe3\x81\x8b\xe3\x82\x99\x31"}};  // が1
  for (const auto& [a, b] : alike) {
    CAPTURE(b);
    CHECK(look_alike(a, b));
    CHECK(look_alike(b, a));
    CHECK(starling::lookalikes({"0", a, "cafe", b, "z"}) ==
          std::pair<std::string, std::string>(a, b));
  }
  for (const auto& [a, b] : {std::pair("ant", "Ant"),
                             {"ant", "ant"},
                             {"a b", "ab"},
                             {"cafe", "cafe\xcc\x81"},
                             {"cafe", "caf\xc3\xa9"}}) {
    CHECK_FALSE(look_alike(a, b));
  }
  CHECK_FALSE(starling::lookalikes(
      {"c\xc3\xb4te", "c\xc3\xb6te", "\xe7\x8c\xab", "\xe7\x8a\xac", "cote", "cot\xc3\xa9"}));
}

TEST_CASE("text: names in outputs keep their bytes") {
  CHECK(starling::in_line("a\nb caf\xe9 \xc3\xa9") == "a\\nb caf\xe9 \xc3\xa9");
  // Python: json.dumps(os.fsdecode(name), ensure_ascii=False), but for the surrogates
  CHECK(starling::json_text("a\"b\\\n\x01 caf\xe9 \xc3\xa9 \xed\xb2\x80") ==
        "\"a\\\"b\\\\\\n\\u0001 caf\\udce9 \xc3\xa9 \\udced\\udcb2\\udc80\"");
}

TEST_CASE("text: a word wider than the line stays whole") {
  CHECK(wrap_at(6, "see /a/long/path it is") == "see\n/a/long/path\n  it\n  is");
  CHECK(wrap_at(6, "abcdefghij k") == "abcdefghij\n  k");
  // nothing is won by a line of its own two columns further left
  CHECK(wrap_at(6, "ab abcdef c") == "ab abcdef\n  c");
}

TEST_CASE("text: characters count, not bytes") {
  CHECK(wrap_at(9, "ééé ééé ü") == "ééé ééé ü");
  CHECK(wrap_at(8, "ééé ééé ü") == "ééé ééé\n  ü");
}

TEST_CASE("text: a line may come in pieces") {
  int column = 0;
  CHECK(wrapped("one two", 10, column) == "one two");
  CHECK(column == 7);
  CHECK(wrapped(" three", 10, column) == "\n  three");
  CHECK(column == 7);
  CHECK(wrapped("fourfive", 10, column) == "fourfive");  // may go on a word
  CHECK(wrapped("\n", 10, column) == "\n");
  CHECK(column == 0);
  CHECK(wrap_at(20, "  ring  pairs of neighbours") == "  ring  pairs of\n        neighbours");
  CHECK(wrap_at(20, "a  b  of three columns here") == "a  b  of three\n  columns here");
  CHECK(wrap_at(20, "  \"key\": \"a long text of JSON\"\nnext") ==
        "  \"key\": \"a long text of JSON\"\nnext");
}

TEST_CASE("text: a number of things") {
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(2, "class") == "2 classes");
  CHECK(counted(3, "batch") == "3 batches");
  CHECK(counted(1, "batch") == "1 batch");
}
