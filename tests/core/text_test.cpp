#include "core/text.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "core/quantity.h"

using namespace starling;

TEST_CASE("text: names that look the same are told apart") {
  CHECK(told_apart("ant") == "'ant'");
  CHECK(told_apart("a b") == "'a b'");
  CHECK(told_apart("ant ") == "'ant ' (ant\\x20)");
  CHECK(told_apart("caf\xc3\xa9") == "'caf\xc3\xa9' (caf\\xc3\\xa9)");
  CHECK(told_apart("cafe\xcc\x81") == "'cafe\xcc\x81' (cafe\\xcc\\x81)");
  CHECK(told_apart("a\nb") == "'a\\nb' (a\\x0ab)");
  CHECK(is_utf8("caf\xc3\xa9 \xe7\x8c\xab"));
  for (const char* text : {"caf\xe9", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80"})
    CHECK_FALSE(is_utf8(text));
}

TEST_CASE("text: names that look the same are found, others are not") {
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
    CHECK(lookalikes({"0", a, "cafe", b, "z"}) == std::pair<std::string, std::string>(a, b));
  }
  for (const auto& [a, b] : {std::pair("ant", "Ant"),
                             {"ant", "ant"},
                             {"a b", "ab"},
                             {"cafe", "cafe\xcc\x81"},
                             {"cafe", "caf\xc3\xa9"}}) {
    CHECK_FALSE(look_alike(a, b));
  }
  CHECK_FALSE(lookalikes(
      {"c\xc3\xb4te", "c\xc3\xb6te", "\xe7\x8c\xab", "\xe7\x8a\xac", "cote", "cot\xc3\xa9"}));
}

TEST_CASE("text: names in outputs keep their bytes") {
  CHECK(in_line("a\nb caf\xe9 \xc3\xa9") == "a\\nb caf\xe9 \xc3\xa9");
  // Python: json.dumps(os.fsdecode(name), ensure_ascii=False), but for the surrogates
  CHECK(json_text("a\"b\\\n\x01 caf\xe9 \xc3\xa9 \xed\xb2\x80") ==
        "\"a\\\"b\\\\\\n\\u0001 caf\\udce9 \xc3\xa9 \\udced\\udcb2\\udc80\"");
}

TEST_CASE("text: a number of things") {
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(2, "class") == "2 classes");
  CHECK(counted(3, "batch") == "3 batches");
  CHECK(counted(1, "batch") == "1 batch");
}

TEST_CASE("quantity: four digits and the prefix that people would write") {
  CHECK(quantity(1.2, "s") == "1.2 s");
  CHECK(quantity(0.35, "s") == "350 ms");
  CHECK(quantity(12.5e-6, "s") == "12.5 µs");
  CHECK(quantity(0.0, "s") == "0 s");
  CHECK(quantity(90.0, "s") == "90 s");
  CHECK(quantity(150.0, "s") == "2.5 min");
  CHECK(quantity(9000.0, "s") == "2.5 h");
  CHECK(quantity(4.0 * 86400.0, "s") == "4 d");
  CHECK(quantity(0.99999, "s") == "1 s");  // as it is rounded, no 1000 ms
  CHECK(quantity(350e6, "B/s") == "350 MB/s");
  CHECK(quantity(999.96e6, "B") == "1 GB");
  CHECK(quantity(1024, "B") == "1.024 kB");
  CHECK(quantity(7, "B") == "7 B");
  CHECK(quantity(0.25, "B") == "0.25 B");  // a mean: there is no part of a byte with a name
  CHECK(quantity(1e8, "bit/s") == "100 Mbit/s");
  CHECK(quantity(2.5e15, "FLOP/s") == "2.5 PFLOP/s");
}

TEST_CASE("plain_number: without an exponent that nobody would write") {
  CHECK(plain_number(1234.0) == "1234");
  CHECK(plain_number(22463400.0) == "22463400");
  CHECK(plain_number(0.0041) == "0.0041");
  CHECK(plain_number(999.96) == "1000");
  CHECK(plain_number(0.5) == "0.5");
  CHECK(plain_number(1e-7) == "1e-07");
}
