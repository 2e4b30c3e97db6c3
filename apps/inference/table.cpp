#include "apps/inference/table.h"

#include <cstddef>

#include "core/csv.h"

namespace starling {

TableRows read_rows(const std::string& path, const TableColumns& columns) {
  CsvFile file = CsvFile::read(path);
  std::vector<std::size_t> places;
  for (const std::string& name : columns.names)
    places.push_back(file.column(name, "which the model was trained with"));
  TableRows result;
  while (file.next()) {
    for (std::size_t c = 0; c < places.size(); ++c)
      result.numbers.push_back(static_cast<float>(
          normalized_number(file.number(places[c]), columns.mean[c], columns.deviation[c])));
    result.rows.push_back(file.row());
  }
  return result;
}

}  // namespace starling
