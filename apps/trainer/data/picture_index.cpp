#include "apps/trainer/data/picture_index.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/safetensors.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

// The file: the header; then, each from an 8-byte boundary on, the folders that were looked through (time of change, length and name of
// each), the classes' names, the first file of each class, where names begin, the files' sizes, the names. The checksum covers every byte:
// a wrong number could give pictures other labels without a word. All pages are in memory once the file is mapped, so reading them once
// more costs a process some 25 ms for a million files.
constexpr std::array<char, 8> kMagic{'S', 't', 'a', 'r', 'I', 'd', 'x', '2'};
constexpr int kMostDepth = 32;
constexpr std::chrono::hours kMostWait{1};

struct IndexHeader {
  std::array<char, 8> magic = kMagic;
  std::uint64_t bytes = 0;  ///< of the whole file
  std::uint64_t folders = 0, classes = 0, files = 0;
  std::uint64_t folder_bytes = 0, class_bytes = 0, name_bytes = 0;  ///< of those parts
  std::uint32_t checksum = 0;                                       ///< of the whole file, this being 0
  std::uint32_t zero = 0;
};

/// Of a file with this header. `text` is all of it; what stands in place of the header does not matter.
std::uint32_t index_checksum(IndexHeader header, std::span<const std::uint8_t> text) {
  header.checksum = 0;
  return checksum_of(text.subspan(sizeof header), checksum_of(bytes_of(header)));
}

struct FoundFolder {
  std::int64_t changed = 0;  ///< nanoseconds
  std::string path;          ///< below the root; empty: the root
};
struct FoundFile {
  std::string path;  ///< below the root
  std::uint32_t bytes = 0;
};

std::optional<std::int64_t> time_of_change(const std::string& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return std::nullopt;
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

bool is_picture_name(std::string_view name) {
  for (const std::string_view ending : {".jpg", ".jpeg", ".png"}) {
    if (name.size() <= ending.size()) continue;
    const std::string_view own = name.substr(name.size() - ending.size());
    const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
    if (std::equal(own.begin(), own.end(), ending.begin(), same)) return true;
  }
  return false;
}

/// Looks through one folder and those below it.
class Search {
 public:
  explicit Search(std::string root) : root_(std::move(root)) {}
  std::vector<FoundFolder> folders;
  std::vector<FoundFile> files;

  void look(const std::string& below, int depth) {
    const std::string folder = below.empty() ? root_ : root_ + "/" + below;
    if (depth > kMostDepth)
      fail(ExitCode::kUsage, "data", "image_folder: {} is more than {} folders deep; is a link in it a circle?", folder, kMostDepth);
    const auto changed = time_of_change(folder);
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
    if (!stream || !changed) fail(ExitCode::kUsage, "data", "image_folder: {} cannot be read: {}", folder, std::strerror(errno));
    folders.push_back({*changed, below});
    std::vector<std::string> inner;
    while (const dirent* entry = ::readdir(stream.get())) {
      const std::string name = entry->d_name;
      if (name.starts_with(".")) continue;
      const std::string path = below.empty() ? name : below + "/" + name;
      const bool picture = is_picture_name(name);
      if (!picture && entry->d_type == DT_REG) continue;
      struct stat status {};
      const bool there = ::stat((root_ + "/" + path).c_str(), &status) == 0;
      if (there && S_ISDIR(status.st_mode)) {
        inner.push_back(path);
      } else if (picture) {
        // A link to nothing, a pipe or a device too: whoever reads it is told by name, and data.on_bad_image says what then.
        const std::int64_t size = there && S_ISREG(status.st_mode) ? std::int64_t{status.st_size} : 0;
        files.push_back({path, static_cast<std::uint32_t>(std::min<std::int64_t>(size, std::numeric_limits<std::uint32_t>::max()))});
      }
    }
    std::sort(inner.begin(), inner.end());
    for (const std::string& path : inner) look(path, depth + 1);
  }

 private:
  std::string root_;
};

void append(std::string& to, const void* data, std::size_t bytes) {
  to.append(static_cast<const char*>(data), bytes);
  to.append((8 - to.size() % 8) % 8, '\0');
}

void append_text(std::string& to, const std::string& text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  to.append(reinterpret_cast<const char*>(&length), sizeof length);
  to.append(text);
}

std::string make_index(const std::string& folder) {
  IndexHeader header;
  std::string folders, classes, names;
  std::vector<std::uint64_t> first, places;
  std::vector<std::uint32_t> sizes;
  const auto add_folder = [&](const FoundFolder& found) {
    folders.append(reinterpret_cast<const char*>(&found.changed), sizeof found.changed);
    append_text(folders, found.path);
    ++header.folders;
  };
  const auto changed = time_of_change(folder);
  add_folder({changed.value_or(0), ""});
  for (const std::string& name : class_folders(folder)) {
    Search search(folder);
    search.look(name, 1);
    for (const FoundFolder& found : search.folders) add_folder(found);
    if (search.files.empty()) {
      fail(ExitCode::kUsage, "data",
           "image_folder: the class folder {}/{} has no pictures; needed: files that end in .jpg, .jpeg or .png, or no folder", folder,
           name);
    }
    std::sort(search.files.begin(), search.files.end(), [](const FoundFile& a, const FoundFile& b) { return a.path < b.path; });
    first.push_back(header.files);
    append_text(classes, name);
    ++header.classes;
    header.files += search.files.size();
    for (const FoundFile& found : search.files) {
      places.push_back(names.size());
      names += found.path;
      sizes.push_back(found.bytes);
    }
  }
  first.push_back(header.files);
  places.push_back(names.size());
  header.folder_bytes = folders.size();
  header.class_bytes = classes.size();
  header.name_bytes = names.size();
  std::string text;
  append(text, &header, sizeof header);
  append(text, folders.data(), folders.size());
  append(text, classes.data(), classes.size());
  append(text, first.data(), first.size() * sizeof first[0]);
  append(text, places.data(), places.size() * sizeof places[0]);
  append(text, sizes.data(), sizes.size() * sizeof(std::uint32_t));
  append(text, names.data(), names.size());
  header.bytes = text.size();
  header.checksum = index_checksum(header, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  std::memcpy(text.data(), &header, sizeof header);
  return text;
}

/// Reads what lies one after another in the mapped file; anything that does not fit makes it invalid.
class IndexReader {
 public:
  explicit IndexReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  const std::uint8_t* take(std::uint64_t count) {
    if (!valid || count > bytes_.size() - at_) return valid = false, nullptr;
    const std::uint8_t* result = bytes_.data() + at_;
    at_ += static_cast<std::size_t>(count);
    at_ = std::min(bytes_.size(), (at_ + 7) / 8 * 8);
    return result;
  }
  bool valid = true;

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

/// The texts of a part, each with its length, after `before` bytes that `visit` gets.
template <class Visit>
bool each_text(const std::uint8_t* data, std::uint64_t bytes, std::uint64_t count, std::size_t before, const Visit& visit) {
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t length = 0;
    if (bytes - at < before + sizeof length) return false;
    std::memcpy(&length, data + at + before, sizeof length);
    if (bytes - at - before - sizeof length < length) return false;
    if (!visit(data + at, std::string(reinterpret_cast<const char*>(data + at + before + sizeof length), length))) return false;
    at += before + sizeof length + length;
  }
  return at == bytes;
}

std::string cache_file(const std::string& folder) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string base = cache && *cache ? cache : home && *home ? std::string(home) + "/.cache" : "";
  if (base.empty()) return "";
  std::error_code error;
  std::string name = fs::weakly_canonical(folder, error).string();
  std::replace(name.begin(), name.end(), '/', '%');
  if (name.size() > 200) name = name.substr(name.size() - 200);
  return base + "/starling/" + name + ".index";
}

/// Held while an index is made, so that one process of a host makes it; where files cannot be locked, each makes its own.
class IndexLock {
 public:
  IndexLock(const std::string& file, const std::string& folder) {
    descriptor_ = ::open((file + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) return;
    const auto begin = std::chrono::steady_clock::now();
    for (bool told = false; ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0;) {
      if (errno != EWOULDBLOCK && errno != EINTR) return;
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited > kMostWait) {
        fail(ExitCode::kLost, "data", "image_folder: another process has been indexing {} for an hour (it holds {}.lock); end it", folder,
             file);
      }
      if (!told && waited > std::chrono::seconds(10)) {
        log::info("data: waiting for another process that indexes {}", folder);
        told = true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ~IndexLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  IndexLock(const IndexLock&) = delete;
  IndexLock& operator=(const IndexLock&) = delete;
  bool usable() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

}  // namespace

std::vector<std::string> class_folders(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(folder, error)) return names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (name.starts_with(".")) continue;
    if (it->is_directory(ignored)) {
      names.push_back(name);
    } else if (it->is_symlink(ignored) && !it->exists(ignored) && !is_picture_name(name)) {  // a class, on a disk that is not mounted
      fail(ExitCode::kUsage, "data", "image_folder: {}/{} is a link to nothing; mount what it leads to, or remove it", folder, name);
    }
  }
  if (error) fail(ExitCode::kUsage, "data", "image_folder: {} cannot be read: {}", folder, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

void check_same_classes(const std::string& who, const std::string& folder, const std::vector<std::string>& train,
                        const std::vector<std::string>& val) {
  if (train == val) return;
  const auto lacking = [](const std::vector<std::string>& of, const std::vector<std::string>& in) -> std::string {
    const auto it = std::find_if(of.begin(), of.end(), [&](const auto& name) { return !std::binary_search(in.begin(), in.end(), name); });
    return it == of.end() ? "" : *it;
  };
  const std::string only_train = lacking(train, val), only_val = lacking(val, train);
  fail(ExitCode::kUsage, "data", "{5}: {0}/train has {1} classes and {0}/val {2}: {3} is in {4}/ alone; needed: the same folders in both",
       folder, train.size(), val.size(), only_train.empty() ? only_val : only_train, only_train.empty() ? "val" : "train", who);
}

PictureIndex::PictureIndex(const std::string& folder) : folder_(folder) {
  const std::string beside = folder + "/.starling-index", cached = cache_file(folder);
  for (const std::string& file : {beside, cached}) {
    if (!file.empty() && open_file(file)) return;
  }
  for (const std::string& file : {beside, cached}) {
    if (file.empty()) continue;
    std::error_code error;
    fs::create_directories(fs::path(file).parent_path(), error);
    const IndexLock lock(file, folder);
    if (!lock.usable()) continue;
    if (open_file(file)) return;  // another process was faster
    const std::string text = make_index(folder);
    try {
      write_file_atomically(file, text.data(), text.size());
    } catch (const Error&) {
      ::unlink((file + ".lock").c_str());
      continue;  // the next place; in the end there is an error
    }
    ::unlink((file + ".lock").c_str());
    if (open_file(file)) return;
    fail(ExitCode::kUsage, "data", "image_folder: {} changes while it is read; wait until it is complete", folder);
  }
  fail(ExitCode::kUsage, "data", "image_folder: no index of {} can be written, neither {} nor {}; make one of these places writable",
       folder, beside, cached.empty() ? "in a cache folder (HOME is not set)" : cached);
}

bool PictureIndex::open_file(const std::string& file) {
  if (!file_exists(file)) return false;
  auto map = std::make_unique<MappedFile>(file);
  IndexReader reader(map->bytes());
  IndexHeader header;
  const std::uint8_t* begin = reader.take(sizeof header);
  if (!begin) return false;
  std::memcpy(&header, begin, sizeof header);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  if (header.magic != kMagic || header.bytes != map->bytes().size() || header.files > kMost || header.classes > header.files) return false;
  if (header.checksum != index_checksum(header, map->bytes())) return false;
  const std::uint8_t* folders = reader.take(header.folder_bytes);
  const std::uint8_t* classes = reader.take(header.class_bytes);
  const std::uint8_t* first = reader.take((header.classes + 1) * sizeof(std::uint64_t));
  const std::uint8_t* places = reader.take((header.files + 1) * sizeof(std::uint64_t));
  const std::uint8_t* sizes = reader.take(header.files * sizeof(std::uint32_t));
  const std::uint8_t* names = reader.take(header.name_bytes);
  if (!reader.valid) return false;
  const bool fresh = each_text(folders, header.folder_bytes, header.folders, sizeof(std::int64_t),
                               [&](const std::uint8_t* before, const std::string& path) {
                                 std::int64_t changed = 0;
                                 std::memcpy(&changed, before, sizeof changed);
                                 // The index itself and its lock come and go in the root: there the class folders are compared below.
                                 return path.empty() || time_of_change(folder_ + "/" + path) == changed;
                               });
  std::vector<std::string> class_names;
  if (!fresh || !each_text(classes, header.class_bytes, header.classes, 0, [&](const std::uint8_t*, std::string name) {
        class_names.push_back(std::move(name));
        return true;
      })) {
    return false;
  }
  if (class_names != class_folders(folder_)) return false;
  std::vector<std::int64_t> first_files(static_cast<std::size_t>(header.classes) + 1);
  std::memcpy(first_files.data(), first, first_files.size() * sizeof first_files[0]);
  if (first_files.back() != static_cast<std::int64_t>(header.files) || !std::is_sorted(first_files.begin(), first_files.end()) ||
      first_files[0] < 0)
    return false;
  classes_ = std::move(class_names);
  first_ = std::move(first_files);
  files_ = static_cast<std::int64_t>(header.files);
  places_ = reinterpret_cast<const std::uint64_t*>(places);
  sizes_ = reinterpret_cast<const std::uint32_t*>(sizes);
  names_ = reinterpret_cast<const char*>(names);
  if (places_[files_] != header.name_bytes) return false;
  map_ = std::move(map);
  return true;
}

std::int64_t PictureIndex::label(std::int64_t index) const {
  return std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1;
}

std::string PictureIndex::path(std::int64_t index) const {
  const std::uint64_t begin = places_[index], end = places_[index + 1];
  require(begin <= end && end <= places_[files_], "data", "{} is damaged; delete it", file());
  return folder_ + "/" + std::string(names_ + begin, static_cast<std::size_t>(end - begin));
}

std::int64_t PictureIndex::bytes(std::int64_t index) const { return sizes_[index]; }

}  // namespace starling
