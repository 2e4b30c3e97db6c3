#include "core/quantity.h"

#include <doctest/doctest.h>

#include <string>

namespace starling {

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

}  // namespace starling
