#include "apps/data/tokens/text_dataset.h"

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

/// Samples are already vectors of token ids; a model file records the tokenizer.
struct TextCollate final : Collate {
  explicit TextCollate(std::shared_ptr<const Tokenizer> own) : tokenizer(std::move(own)) {}
  std::shared_ptr<const Tokenizer> tokenizer;
  void describe(const DatasetInfo&, ModelDescription& description) const override {
    description.tokenizer = tokenizer->text();
  }
};

std::vector<std::string> read_list(ConfigSection& section, const char* key, const char* doc,
                                   const char* sample) {
  const nlohmann::json value = section.raw(key, "text or list of texts", doc, sample);
  std::vector<std::string> paths;
  if (value.is_null()) return paths;
  for (const nlohmann::json& item : value.is_array() ? value : nlohmann::json::array({value})) {
    if (!item.is_string() || item.get<std::string>().empty())
      section.error(key, "has {}; needed: the name of a file or folder, or a list of such",
                    shown(item.dump()));
    paths.push_back(item.get<std::string>());
  }
  return paths;
}

}  // namespace

void TextDataset::read_paths(ConfigSection& section, const char* path_doc, const char* sample,
                             const char* val_path_doc, const char* missing) {
  paths_ = read_list(section, "path", path_doc, sample);
  val_paths_ = read_list(section, "val_path", val_path_doc, "");
  if (paths_.empty()) section.missing("path", missing);
}

void TextDataset::set_vocab(std::int64_t vocab) {
  info_.tensors = {{"tokens", Shape{length_}, DType::kInt32, vocab},
                   {"targets", Shape{length_}, DType::kInt32, vocab}};
  if (positions_) info_.tensors.push_back({"positions", Shape{length_}, DType::kInt32, length_});
}

TextDataset::Paths TextDataset::test_files(const FilesOf& files_of) const {
  return of_key("data.val_path", [&] { return files_of(val_paths_); });
}

TextDataset::Paths TextDataset::training_files(const Paths& tests, const FilesOf& files_of) {
  const auto id = [](const std::string& file) {
    struct ::stat status {};
    (void)::stat(file.c_str(), &status);  // zeros if it does not exist, which readers report
    return std::pair(status.st_dev, status.st_ino);
  };
  std::set<std::pair<::dev_t, ::ino_t>> tested, seen;
  for (const std::string& file : tests) tested.insert(id(file));
  Paths training;
  for (const std::string& path : paths_) {
    const std::size_t before = training.size();
    const Paths files = of_key("data.path", [&] { return files_of({path}); });
    std::copy_if(files.begin(), files.end(), std::back_inserter(training),
                 [&](const std::string& file) { return tested.count(id(file)) == 0; });
    for (const std::string& file : files) {
      if (tested.count(id(file)) == 0 && !seen.insert(id(file)).second)
        fail(ExitCode::kUsage, "data", {.file = shown(file, 200), .key = "data.path"},
             "is given twice; needed: each text once");
    }
    const std::size_t kept = training.size() - before;
    if (kept == 0 && !files.empty())
      fail(ExitCode::kUsage, "data", {.file = shown(files[0], 200), .key = "data.val_path"},
           "is trained on too; needed: other files for tests, outside data.path");
    left_out_ += static_cast<std::int64_t>(files.size() - kept);
  }
  return training;
}

void TextDataset::describe_tokenizer() {
  info_.collated_by = std::make_shared<TextCollate>(tokenizer_);
}

std::shared_ptr<const Tokenizer> TextDataset::tokenizer_of_model(const SafetensorsFile& file,
                                                                 const std::string& source) const {
  std::shared_ptr<const Tokenizer> other;
  if (file.metadata.count(kConfigMetadata) == 0) {  // of another program
    if (const std::string found = tokenizer_beside(source); !found.empty())
      other = Tokenizer::read(found);
  } else if (const std::string text = description_of(file, source).tokenizer; !text.empty()) {
    other = Tokenizer::parse(text, source + ": metadata starling.tokenizer");
  }
  if (!other) return nullptr;
  if (tokenizer_ && (other->vocab() != tokenizer_->vocab() || !agree(*other, *tokenizer_)))
    fail(ExitCode::kUsage, "data", {.key = "data.tokenizer"},
         "has {} tokens that are not those ({}) that the model of {} was trained with; needed: "
         "its tokenizer",
         tokenizer_->vocab(), other->vocab(), source);
  return other;
}

Rows pack(std::span<const std::int64_t> order,
          const std::function<std::int64_t(std::int64_t)>& length, std::int64_t room) {
  struct Open {
    std::int64_t left;
    std::vector<std::int64_t> members;
  };
  std::deque<Open> open;
  Rows rows;
  const auto close = [&] {
    rows.members.insert(rows.members.end(), open.front().members.begin(),
                        open.front().members.end());
    rows.begins.push_back(std::ssize(rows.members));
    open.pop_front();
  };
  for (const std::int64_t sample : order) {
    const std::int64_t needed = length(sample);
    auto row = open.begin();
    while (row != open.end() && row->left < needed) ++row;
    if (row == open.end()) {
      if (open.size() == kOpenRows) close();
      row = open.insert(open.end(), Open{room, {}});
    }
    row->left -= needed;
    row->members.push_back(sample);
  }
  while (!open.empty()) close();
  return rows;
}

}  // namespace starling
