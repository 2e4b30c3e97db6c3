#include "apps/data/picture_index.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>

#include "apps/data/files.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr int kMostDepth = 32;

bool is_picture_name(std::string_view name) {
  for (const std::string_view ending : {".jpg", ".jpeg", ".png"}) {
    if (name.size() > ending.size() &&
        lower_case(name.substr(name.size() - ending.size())) == ending)
      return true;
  }
  return false;
}

/// A name's ending in lower case, e.g. ".webp".
std::string ending_of(const std::string& name) {
  const std::string ending = lower_case(fs::path(name).extension().string());
  return ending.empty() ? "without an ending" : ending;
}

/// Adds the pictures below root/below to `names`, and counts other files by ending. Directory
/// entries usually include the type, so only links and entries of unknown type need a stat().
void look(const std::string& root, const std::string& below, int depth,
          std::vector<std::string>& names, std::map<std::string, std::int64_t>& others) {
  const std::string folder = root + "/" + below;
  if (depth > kMostDepth)
    fail(ExitCode::kUsage, "data",
         "image_folder: {} is more than {} folders deep; is a link in it a circle?", folder,
         kMostDepth);
  const auto cannot_be_read = [&] {
    fail(ExitCode::kUsage, "data", "image_folder: {} cannot be read: {}", folder,
         std::strerror(errno));
  };
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
  if (!stream) cannot_be_read();
  std::vector<std::string> inner;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (!entry && errno != 0) cannot_be_read();
    if (!entry) break;
    const std::string_view name = entry->d_name;
    if (name.starts_with(".")) continue;
    bool is_folder = entry->d_type == DT_DIR, is_file = entry->d_type == DT_REG;
    if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) {
      struct stat status {};
      const bool there = ::fstatat(::dirfd(stream.get()), entry->d_name, &status, 0) == 0;
      is_folder = there && S_ISDIR(status.st_mode);
      is_file = there && S_ISREG(status.st_mode);
    }
    std::string path = below + "/" + std::string(name);
    if (is_folder) {
      inner.push_back(std::move(path));
    } else if (is_picture_name(name)) {
      // Also a dangling link, a pipe or a device: reading it gives an error with its name, which
      // data.on_bad_image handles.
      names.push_back(std::move(path));
    } else if (is_file) {
      ++others[ending_of(path)];
    }
  }
  for (const std::string& path : inner) look(root, path, depth + 1, names, others);
}

}  // namespace

std::vector<std::string> class_folders(const std::string& folder,
                                       std::map<std::string, std::int64_t>* others) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(folder, error)) return names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (name.starts_with(".")) continue;
    if (it->is_directory(ignored)) {
      if (!is_utf8(name)) {
        fail(ExitCode::kUsage, "data",
             "image_folder: the class folder {}/{} has a name that is not UTF-8, which model files "
             "cannot keep; rename it",
             folder, shown(name));
      }
      names.push_back(name);
    } else if (is_picture_name(name)) {
      if (others) ++(*others)[ending_of(name) + " beside the class folders"];
    } else if (it->is_symlink(ignored) && !it->exists(ignored)) {
      // A class folder, e.g. on a disk that is not mounted.
      fail(ExitCode::kUsage, "data",
           "image_folder: {}/{} is a link to nothing; mount what it leads to, or remove it", folder,
           name);
    }
  }
  if (error)
    fail(ExitCode::kUsage, "data", "image_folder: {} cannot be read: {}", folder, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

void check_classes(const std::string& who, const std::string& folder,
                   const std::vector<std::string>& train, const std::vector<std::string>& val) {
  // Warnings are printed by rank 0 only. Different names may look the same, e.g. if a file system
  // has decomposed accents.
  if (const auto two = lookalikes(train)) {
    log::info(
        "warning: data: {}: {}/train has the classes {} and {}, which look the same; put their "
        "pictures together if they are one",
        who, folder, told_apart(two->first), told_apart(two->second));
  }
  if (train.size() == 1) {
    log::info(
        "warning: data: {}: {}/train has one class, {}: the model will say it of everything; add a "
        "folder for each other class",
        who, folder, shown(train[0]));
  }
  if (train == val || val.empty()) return;
  std::vector<std::string> lacking[2];
  std::set_difference(train.begin(), train.end(), val.begin(), val.end(),
                      std::back_inserter(lacking[0]));
  std::set_difference(val.begin(), val.end(), train.begin(), train.end(),
                      std::back_inserter(lacking[1]));
  std::string only_train = lacking[0].empty() ? "" : lacking[0][0],
              only_val = lacking[1].empty() ? "" : lacking[1][0];
  lacking[0].insert(lacking[0].end(), lacking[1].begin(), lacking[1].end());
  if (const auto two = lookalikes(lacking[0]);
      two && std::binary_search(val.begin(), val.end(), two->second))
    std::tie(only_train, only_val) = *two;
  const std::string both = only_train.empty() || only_val.empty()
                               ? ""
                               : fmt::format(", {} in val/", told_apart(only_val));
  fail(ExitCode::kUsage, "data",
       "{5}: {0}/train has {1} classes and {0}/val {2}: {3} is in {4}/ alone{6}; needed: the same "
       "folders in both",
       folder, train.size(), val.size(), told_apart(only_train.empty() ? only_val : only_train),
       only_train.empty() ? "val" : "train", who, both);
}

std::int64_t PictureSource::label(std::int64_t index) const {
  return std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1;
}

PictureIndex::PictureIndex(const std::string& folder) : folder_(folder) {
  classes_ = class_folders(folder, &others_);
  for (const std::string& name : classes_) {
    std::vector<std::string> found;
    look(folder, name, 1, found, others_);
    if (found.empty()) {
      fail(ExitCode::kUsage, "data",
           "image_folder: the class folder {}/{} has no pictures; needed: files that end in .jpg, "
           ".jpeg or .png, or no folder",
           folder, name);
    }
    std::sort(found.begin(), found.end());
    for (const std::string& file : found) {
      names_ += file;
      places_.push_back(names_.size());
    }
    first_.push_back(std::ssize(places_) - 1);
  }
}

std::string PictureIndex::name(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return names_.substr(places_[i], places_[i + 1] - places_[i]);
}

std::int64_t PictureIndex::bytes(std::int64_t index) const {
  struct stat status {};
  return ::stat(path(index).c_str(), &status) == 0 && S_ISREG(status.st_mode)
             ? std::int64_t{status.st_size}
             : 0;
}

std::map<std::string, std::uint32_t> PictureIndex::checksums(const std::string& split) const {
  return {{"names of pictures in " + split + "/", checksum_of(text_bytes(names_))}};
}

void PictureIndex::decode(std::int64_t index, PictureDecoder& decoder, const PartChoice& choose,
                          std::int64_t side, std::uint8_t* out, CutTarget* later) const {
  const std::string file = path(index);
  const std::vector<std::uint8_t> bytes = read_picture_file(file);
  if (later) return decoder.decode(bytes, file, choose, side, side, *later);
  decoder.decode(bytes, file, choose, side, side, 3, out);
}

}  // namespace starling
