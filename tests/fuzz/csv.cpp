// Tables of texts: every cell is asked for, as a text and as a number.
#include "core/csv.h"

#include <string>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  return fuzz::reads_or_refuses([&] {
    CsvFile file("table.csv", std::string(fuzz::text(data, size)));
    while (file.next()) {
      for (std::size_t c = 0; c < file.names().size(); ++c) {
        const CsvValue value = csv_value(file.cell(c)), again = csv_value(value.text);
        if (again.kind != value.kind || again.text != value.text) std::abort();
      }
      if (csv_cell(file.cell(0)).size() < file.cell(0).size()) std::abort();
      for (std::size_t c = 0; c < file.names().size(); ++c) (void)file.number(c);
    }
  });
}
