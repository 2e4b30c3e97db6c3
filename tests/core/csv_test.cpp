#include "core/csv.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

using test::contains;

using Cells = std::vector<std::string>;

/// All rows below the names.
std::vector<Cells> rows_of(const std::string& text) {
  CsvFile file("t.csv", text);
  std::vector<Cells> rows;
  while (file.next()) {
    Cells& cells = rows.emplace_back();
    for (std::size_t c = 0; c < file.names().size(); ++c) cells.push_back(file.cell(c));
  }
  return rows;
}

/// What reading all of a table says against it; every cell is to be a number where `numbers`.
std::string refusal(const std::string& text, bool numbers = false) {
  return test::error_text(ExitCode::kUsage, [&] {
    CsvFile file("t.csv", text);
    while (file.next()) {
      for (std::size_t c = 0; numbers && c < file.names().size(); ++c) (void)file.number(c);
    }
  });
}

}  // namespace

TEST_CASE("core/csv: rows are RFC 4180's, whatever the lines' ends") {
  const std::vector<Cells> plain{{"1", "2"}, {"3", "4"}};
  for (const char* text : {"a,b\n1,2\n3,4\n", "a,b\r\n1,2\r\n3,4",
                           "\xEF\xBB\xBF\"a\",b\n1,\"2\"\n3,4", "a,b\n\n1,2\n\r\n3,4\n\n"})
    CHECK(rows_of(text) == plain);
  CHECK(rows_of("a,b\n\"x, \"\"y\"\"\r\nz\",\n ,\"\"") ==
        std::vector<Cells>{{"x, \"y\"\r\nz", ""}, {" ", ""}});
  CHECK(rows_of("a\n5\" disk\n\"\"\n") == std::vector<Cells>{{"5\" disk"}, {""}});
  CHECK(rows_of("a,b").empty());
  CsvFile file("t.csv", "a,\"b\"\n\n\"1\",2\r\n3,4");
  CHECK(file.names() == Cells{"a", "b"});
  REQUIRE(file.next());
  CHECK(file.row() == 3);
  CHECK(file.line() == "\"1\",2");
  REQUIRE(file.next());
  CHECK(file.row() == 4);
  CHECK(file.line() == "3,4");
  CHECK(file.column("b", "") == 1);
  CHECK(test::error_text(ExitCode::kUsage, [&] { (void)file.column("c", "data.target"); }) ==
        "[data] t.csv: has no column 'c' (data.target); its columns: 'a', 'b'");
  const auto refusal_of = [](const char* text, const char* column) {
    return test::error_text(ExitCode::kUsage,
                            [&] { (void)CsvFile("t.csv", text).column(column, "data.target"); });
  };
  CHECK(contains(refusal_of("price,size\n1,2\n", "Prices"), "; did you mean 'price'?"));
  CHECK(contains(refusal_of("price;size\n1;2\n", "price"),
                 "its columns: 'price;size'; cells are divided by commas, not by ';'"));
  CHECK(contains(refusal_of("price\tsize\n1\t2\n", "price"), "not by tabs"));
  CHECK(contains(refusal_of("price\n1\n", "weight"), "its columns: 'price'"));
}

TEST_CASE("core/csv: what a cell is written as reads as that cell") {
  for (const std::string cell : {"plain", "", "a,b", "\"", "\"\"x\"", "line\nbreak", "\r\n"}) {
    CAPTURE(cell);
    CHECK(rows_of("a,b\n" + csv_cell(cell) + ",\n") == std::vector<Cells>{{cell, ""}});
  }
}

TEST_CASE("core/csv: numbers are what the cell says to the last bit, and finite") {
  CsvFile file("t.csv", "a,b,c,d,e\n1,-0.1,\" +2.5e-3\t\",0.30000000000000004,1e308\n");
  REQUIRE(file.next());
  const double expected[] = {1.0, -0.1, 2.5e-3, 0.1 + 0.2, 1e308};
  for (std::size_t c = 0; c < 5; ++c) CHECK(file.number(c) == expected[c]);
  for (const char* cell : {"cat", "1.2.3", "0x10", "nan", "inf", "-Infinity", "1e400", "1 2", "+-1",
                           "1,5", "--1", "+", " "}) {
    CAPTURE(cell);
    CHECK(contains(
        refusal("a\n7\n" + csv_cell(cell) + "\n", true),
        std::string("[data] t.csv: row 3, column 'a': is '") + cell + "'; needed: a number"));
  }
  CHECK(contains(refusal("a,b\n7,\n", true), "row 2, column 'b': is empty; needed: a number"));
}

TEST_CASE("core/csv: cells that say the same have one value, however they are written") {
  using Kind = CsvValue::Kind;
  const auto all = [](Kind kind, const std::string& text, const std::vector<const char*>& cells) {
    for (const char* cell : cells) {
      CAPTURE(cell);
      CHECK(csv_value(cell).kind == kind);
      CHECK(csv_value(cell).text == text);
    }
  };
  all(Kind::kNumber, "0.5",
      {"0.5", "0.50", ".5", "+5e-1", " 0.5\t", "5E-1",
       "\xC2\xA0"
       "0.5"});
  all(Kind::kNumber, "1", {"1", "1.0", "1e0", "+1", "01", "1."});
  all(Kind::kNumber, "0", {"0", "-0", "0.0", "-0e5"});
  all(Kind::kMissing, "",
      {"", " ", "\t \xC2\xA0", "NA", "na", "N/A", "#N/A", "<NA>", "nan", "NaN", "-nan", " NULL "});
  all(Kind::kBoolean, "true", {"true", "TRUE", " True"});
  all(Kind::kBoolean, "no", {"no", "No", "NO "});
  all(Kind::kText, "dog", {"dog", " dog ", "dog\t", "dog\xC2\xA0"});
  all(Kind::kText, "Dog", {"Dog"});
  CHECK(csv_value("Yes").number == 1.0);
  CHECK(csv_value("FALSE").number == 0.0);
  CHECK(csv_value("none").kind == Kind::kText);  // it may well be a class
  for (const char* text : {"1,234", "0x1p3", "inf", "-Infinity", "12:30", "5%", ".5.", "1e400"})
    CHECK(begins_as_number(text));
  for (const char* text : {"cat", "-", "information", "n1", "", "e5"})
    CHECK_FALSE(begins_as_number(text));
  for (const char* name : {"", "Unnamed: 0", "Unnamed: 12", "Unnamed: 0.1"})
    CHECK(is_unnamed(name));
  for (const char* name : {"a", "Unnamed", "Unnamed: ", "Unnamed: a"})
    CHECK_FALSE(is_unnamed(name));
}

TEST_CASE("core/csv: blanks around names and quotes are none of the cell; some may have no name") {
  CsvFile file("t.csv", " a ,,\" b \",,\"c, d\" \n1,2,  \"x \",4, \"5\"\t\n");
  CHECK(file.names() == Cells{"a", "", "b", "", "c, d"});
  for (int pass = 0; pass < 2; ++pass) {
    REQUIRE(file.next());
    CHECK(file.row() == 2);
    CHECK(file.cell(2) == "x ");
    CHECK(file.cell(4) == "5");
    CHECK_FALSE(file.next());
    file.rewind();
  }
}

TEST_CASE("core/csv: what is no table is named by file and row") {
  const auto check = [](const std::string& text, const std::string& expected) {
    CAPTURE(text);
    CHECK(contains(refusal(text), "[data] t.csv: " + expected));
  };
  check("", "the table is empty; needed: a first row");
  check("a,b\r1,2\r", "its lines end with CR alone");
  check("\x1F\x8B\x08", "is packed by gzip; unpack it");
  check("\xEF\xBB\xBF\r\n\n", "the table is empty");
  check("a,b\n1,2\n1\n", "row 3 has 1 cell; needed: 2, as names");
  check("a,b\n1,2,3\n", "row 2 has 3 cells; needed: 2");
  check("a,b\n1,\n\n1,2,\n", "row 4 has 3 cells");
  check("a,b,a\n", "columns 1 and 3 have the same name, 'a'; each needs a name of its own");
  check("a, \"a\" \n", "columns 1 and 2 have the same name, 'a'");
  check("a\n\"1\n2\n", "row 2, cell 1: its quote is never closed");
  check("a,b\n1,\"2\"3\n", "row 2, cell 2: text follows its closing quote");
  check("a\n1\n\xff\n", "line 3 is not UTF-8");
  check(std::string("\xff\xfe"
                    "a\0\n\0",
                    6),
        "line 1 is not UTF-8");
}

TEST_CASE("core/csv: a file that cannot be read is named, and nobody waits for a pipe") {
  const test::Folder folder;
  const auto refusal_of = [](const std::string& path) {
    return test::error_text(ExitCode::kUsage, [&] { CsvFile::read(path, "data.path"); });
  };
  CHECK(contains(refusal_of(folder / "none.csv"), "[data] data.path: cannot open "));
  CHECK(contains(refusal_of(folder / "none.csv"), "none.csv: No such file or directory"));
  CHECK(contains(refusal_of(folder.path()), "cannot open"));
  folder.write("t.csv", "a,b\n1,2\n");
  CsvFile file = CsvFile::read(folder / "t.csv");
  CHECK(file.next());
  CHECK(file.number(1) == 2.0);
}

}  // namespace starling
