#include "core/text.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

using starling::counted;

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

TEST_CASE("text: a number of things") {
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(2, "class") == "2 classes");
  CHECK(counted(3, "batch") == "3 batches");
  CHECK(counted(1, "batch") == "1 batch");
}
