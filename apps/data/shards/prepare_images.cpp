#include "apps/data/shards/prepare_images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/data/picture_index.h"
#include "apps/data/shards/in_order.h"
#include "apps/data/shards/shard_file.h"
#include "core/file_io.h"
#include "core/safetensors.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

/// The class folders to make shards from.
struct PictureSplits {
  /// train/ and val/; the latter may be null
  std::array<std::unique_ptr<PictureIndex>, 2> folders;
  std::array<std::string, 2> roots;

  explicit PictureSplits(const std::string& source) {
    for (std::size_t split = 0; split < 2; ++split)
      roots[split] = source + "/" + kShardSplits[split];
    if (class_folders(roots[0]).empty()) {
      fail(ExitCode::kUsage, "prepare",
           "{0}/train has no class folders; needed: {0}/train/<class>/*.jpg, and "
           "{0}/val/<class>/*.jpg where pictures are set aside for tests",
           source);
    }
    folders[0] = std::make_unique<PictureIndex>(roots[0]);
    if (!class_folders(roots[1]).empty()) folders[1] = std::make_unique<PictureIndex>(roots[1]);
    check_classes("prepare", source, folders[0]->classes(),
                  folders[1] ? folders[1]->classes() : std::vector<std::string>());
  }

  std::int64_t size(std::size_t split) const { return folders[split] ? folders[split]->size() : 0; }

  /// Checksum of all files' names and sizes.
  std::uint32_t checksum() const {
    std::uint32_t sum = 0;
    for (std::size_t split = 0; split < 2; ++split) {
      for (std::int64_t i = 0; i < size(split); ++i) {
        const std::string own = folders[split]->name(i);
        const auto bytes = static_cast<std::uint32_t>(folders[split]->bytes(i));
        sum = checksum_of(text_bytes(std::string_view(own.c_str(), own.size() + 1)), sum);
        sum = checksum_of(bytes_of(bytes), sum);
      }
      sum = checksum_of(bytes_of(split), sum);
    }
    return sum;
  }
};

/// The quality of re-encoded JPEG; 0: nothing is re-encoded.
int quality_of(const PrepareOptions& options) {
  constexpr int kUsual = 90;
  if (options.raw) return 0;
  return options.quality > 0 ? options.quality : options.size > 0 ? kUsual : 0;
}

ShardSettings settings_of(const PrepareOptions& options, std::uint32_t source) {
  return {
      .kind = options.raw ? ShardKind::kRaw : ShardKind::kFiles,
      .size = static_cast<std::uint32_t>(options.size),
      .quality = static_cast<std::uint32_t>(quality_of(options)),
      .interpolation = options.size == 0 ? 0 : static_cast<std::uint32_t>(options.interpolation),
      .pictures = static_cast<std::uint32_t>(options.shard_pictures),
      .source = source,
      .max_pixels = static_cast<std::uint64_t>(options.max_pixels)};
}

/// Settings as command-line options.
std::string text_of(const ShardSettings& settings) {
  std::string text;
  if (settings.size > 0) text += fmt::format("--size {} ", settings.size);
  if (settings.kind == ShardKind::kRaw) text += "--raw ";
  if (settings.quality > 0) text += fmt::format("--quality {} ", settings.quality);
  const std::vector<std::string> filters = interpolation_names();
  if (settings.size > 0 && settings.interpolation < filters.size()) {
    for (const std::string& name : filters) {
      if (static_cast<std::uint32_t>(interpolation_of(name)) == settings.interpolation)
        text += fmt::format("--interpolation {} ", name);
    }
  }
  return text +
         fmt::format("--shard-pictures {} --max-pixels {}", settings.pictures, settings.max_pixels);
}

void check_settings(const std::string& file, const ShardSettings& there,
                    const ShardSettings& wanted) {
  if (there == wanted) return;
  ShardSettings same_source = there;
  same_source.source = wanted.source;
  if (same_source == wanted) {
    fail(ExitCode::kUsage, "prepare",
         "{} was made of other pictures than the source holds now; choose another DEST, or delete "
         "what is there",
         file);
  }
  fail(ExitCode::kUsage, "prepare",
       "{} was made with {}, and now it is {}; choose another DEST, or delete what is there", file,
       text_of(there), text_of(wanted));
}

bool is_own_name(std::string name) {
  (void)is_temporary_name(name, &name);
  if (name == "shards.index") return true;
  return name.ends_with(".shard") && (name.starts_with("train-") || name.starts_with("val-"));
}

/// The output folder, locked against other processes.
class Destination {
 public:
  explicit Destination(const std::string& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (!error) descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0) {
      fail(ExitCode::kOutput, "output", "the folder {} cannot be made: {}; choose another DEST",
           folder, error ? error.message() : std::strerror(errno));
    }
    // Folders cannot be locked on some network file systems: continue without a lock.
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(descriptor_);
      fail(ExitCode::kUsage, "prepare",
           "another starling-prepare is writing {}; wait for it, or choose another DEST", folder);
    }
    std::string foreign;
    bool own = false;
    std::error_code ignored;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (is_own_name(name)) {
        own = true;
        if (is_temporary_name(name)) fs::remove(it->path(), ignored);  // left by a killed process
      } else if (foreign.empty() || name < foreign) {
        foreign = name;
      }
    }
    if (!own && !foreign.empty()) {
      ::close(descriptor_);
      fail(ExitCode::kUsage, "prepare",
           "{} is not empty and holds no shards, but {}; choose another DEST", folder, foreign);
    }
  }
  ~Destination() { ::close(descriptor_); }
  Destination(const Destination&) = delete;
  Destination& operator=(const Destination&) = delete;

 private:
  int descriptor_ = -1;
};

struct ShardTask {
  std::uint32_t split = 0;
  std::uint32_t number = 0;
  std::int64_t begin = 0, end = 0;  ///< numbers in the split
  std::int64_t item = 0;            ///< index of the first picture, among those to be made
  std::int64_t count() const { return end - begin; }
};

std::vector<ShardTask> all_tasks(const PictureSplits& pictures, std::int64_t shard_pictures) {
  std::vector<ShardTask> tasks;
  for (std::uint32_t split = 0; split < 2; ++split) {
    std::uint32_t number = 0;
    for (std::int64_t begin = 0; begin < pictures.size(split); begin += shard_pictures)
      tasks.push_back(
          {split, number++, begin, std::min(begin + shard_pictures, pictures.size(split)), 0});
  }
  return tasks;
}

/// A picture's record, or why it could not be made.
struct ReadyPicture {
  std::vector<std::uint8_t> bytes;
  std::uint32_t checksum = 0;
  PictureSize size;
  std::optional<Error> fault;
};

ReadyPicture make_picture(const std::string& path, const PrepareOptions& options) {
  thread_local PictureDecoder decoder;
  decoder.use({.max_pixels = options.max_pixels,
               .interpolation = options.interpolation,
               .scaled_decoding = false});
  ReadyPicture picture;
  picture.bytes = read_picture_file(path);
  picture.size = decoder.size(picture.bytes, path);
  const std::int64_t shorter = std::min(picture.size.height, picture.size.width);
  const bool larger = options.size > 0 && shorter > options.size;
  const bool anew = larger || (options.size == 0 && options.quality > 0);
  if (!options.raw && !anew) {
    decoder.check(picture.bytes, path);
  } else {
    const PictureSize before = picture.size;
    if (larger)
      picture.size = {options.size * before.height / shorter,
                      options.size * before.width / shorter};
    const auto [height, width] = picture.size;
    if (3 * height * width > std::int64_t{std::numeric_limits<std::uint32_t>::max()})
      fail(ExitCode::kUsage, "picture", "{}: is {}×{} pixels, more than a record holds", path,
           height, width);
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(3 * height * width));
    const auto all = [](const PictureSize& size) {
      return PicturePart::window(0, 0, size.height, size.width);
    };
    decoder.decode(picture.bytes, path, all, height, width, 3, pixels.data());
    picture.bytes = options.raw
                        ? std::move(pixels)
                        : encode_jpeg({pixels.data(), height, width}, path, quality_of(options));
  }
  picture.checksum = checksum_of(picture.bytes);
  return picture;
}

ReadyPicture make_or_skip(const std::string& path, const PrepareOptions& options) {
  try {
    return make_picture(path, options);
  } catch (const Error& error) {
    if (!options.skip_bad || error.code() != ExitCode::kUsage) throw;
    ReadyPicture picture;
    picture.fault = error;
    return picture;
  }
}

/// Whether a shard exists, is complete and has these pictures.
bool is_done(const std::string& folder, const ShardTask& task, const ShardSettings& settings) {
  const std::string path = folder + "/" + shard_name(task.split, task.number);
  if (!file_exists(path)) return false;
  const ShardFile file(path);
  const ShardFooter& footer = file.footer();
  check_settings(path, footer.settings, settings);
  file.check_table();
  if (footer.split != task.split || footer.number != task.number ||
      std::int64_t{footer.records} + footer.skipped != task.count())
    fail(ExitCode::kUsage, "prepare", "{} is another shard by its footer, renamed; delete it",
         path);
  return true;
}

/// Makes the index of the existing shards.
ShardIndex make_index(const std::string& folder, const PictureSplits& pictures,
                      const std::vector<ShardTask>& tasks, const ShardSettings& settings) {
  ShardIndex index;
  index.settings = settings;
  index.classes = pictures.folders[0]->classes();
  for (std::size_t split = 0; split < 2; ++split) {
    if (pictures.folders[split]) index.first[split].assign(index.classes.size() + 1, 0);
  }
  for (const ShardTask& task : tasks) {
    const ShardFile file(folder + "/" + shard_name(task.split, task.number));
    const ShardFooter& footer = file.footer();
    index.shards[task.split].push_back({.bytes = footer.bytes,
                                        .records = footer.records,
                                        .skipped = footer.skipped,
                                        .footer_checksum = footer.checksum});
    for (std::int64_t record = 0; record < file.records(); ++record) {
      const std::size_t label = file.entry(record).label;
      if (label >= index.classes.size())
        fail(ExitCode::kUsage, "prepare",
             "{} is of a class that there is not; delete the file and call again",
             file.title(record));
      ++index.first[task.split][label + 1];
    }
  }
  for (std::size_t split = 0; split < 2; ++split) {
    std::vector<std::int64_t>& first = index.first[split];
    for (std::size_t label = 0; label + 1 < first.size(); ++label) {
      if (first[label + 1] == 0) {
        fail(ExitCode::kUsage, "prepare",
             "no picture of {}/{} can be decoded, so that class would have none; repair its "
             "files, or remove the class",
             pictures.roots[split], index.classes[label]);
      }
      first[label + 1] += first[label];
    }
  }
  return index;
}

}  // namespace

PrepareReport prepare_images(const PrepareOptions& options, const PrepareWatch& watch) {
  const PictureSplits pictures(options.source);
  const Destination lock(options.destination);
  const ShardSettings settings = settings_of(options, pictures.checksum());
  if (has_shard_index(options.destination))
    check_settings(shard_index_path(options.destination),
                   read_shard_index(options.destination).settings, settings);

  const std::vector<ShardTask> tasks = all_tasks(pictures, options.shard_pictures);
  std::vector<ShardTask> open_tasks;
  std::int64_t total = 0, items = 0;
  for (const ShardTask& task : tasks) {
    total += task.count();
    if (is_done(options.destination, task, settings)) continue;
    open_tasks.push_back(task);
    open_tasks.back().item = items;
    items += task.count();
  }
  PrepareReport report;
  std::int64_t done = total - items;
  if (watch.begins) watch.begins(total, done);

  const auto task_of = [&](std::int64_t item) -> const ShardTask& {
    return *std::prev(std::upper_bound(
        open_tasks.begin(), open_tasks.end(), item,
        [](std::int64_t wanted, const ShardTask& task) { return wanted < task.item; }));
  };
  std::unique_ptr<ShardWriter> writer;
  in_order<ReadyPicture>(
      options.threads, items,
      [&](std::int64_t item) {
        const ShardTask& task = task_of(item);
        return make_or_skip(pictures.folders[task.split]->path(task.begin + item - task.item),
                            options);
      },
      [&](std::int64_t item, const ReadyPicture& picture) {
        const ShardTask& task = task_of(item);
        const std::int64_t index = task.begin + item - task.item;
        if (!writer) {
          writer =
              std::make_unique<ShardWriter>(options.destination, settings, task.split, task.number);
        }
        if (picture.fault) {
          if (watch.bad) watch.bad(*picture.fault);
          writer->skip();
        } else {
          writer->add({picture.bytes, picture.checksum, picture.size.height, picture.size.width,
                       pictures.folders[task.split]->label(index),
                       pictures.folders[task.split]->name(index)});
        }
        if (index + 1 == task.end) {
          writer->commit();
          writer.reset();
          ++report.made;
        }
        ++done;
        if (watch.goes_on) watch.goes_on(done);
        report.stopped = done < total && watch.stop && watch.stop();
        return !report.stopped;
      });
  writer.reset();
  report.pictures = done;
  if (report.stopped) return report;

  const ShardIndex index = make_index(options.destination, pictures, tasks, settings);
  const std::string text = shard_index_text(index);
  write_file_atomically(shard_index_path(options.destination), text.data(), text.size());
  report.classes = std::ssize(index.classes);
  report.skipped = index.skipped();
  report.pictures = index.records(0) + index.records(1);
  report.shards = std::ssize(tasks);
  for (const auto& split : index.shards) {
    for (const ShardIndex::Shard& shard : split) report.bytes += shard.bytes;
  }
  return report;
}

CheckReport check_shards(const std::string& folder, int threads, const PrepareWatch& watch) {
  const ShardIndex index = read_shard_index(folder);
  std::vector<ShardTask> tasks;
  for (std::uint32_t split = 0; split < 2; ++split) {
    for (std::uint32_t number = 0; number < index.shards[split].size(); ++number)
      tasks.push_back({split, number});
  }
  CheckReport report;
  if (watch.begins) watch.begins(index.records(0) + index.records(1), 0);
  const auto check = [&](std::int64_t item) {
    const ShardTask& task = tasks[static_cast<std::size_t>(item)];
    std::vector<Error> faults;
    const auto watched = [&](const auto& work) {
      try {
        work();
        return true;
      } catch (const Error& error) {
        if (error.code() != ExitCode::kUsage) throw;
        faults.push_back(error);
        return false;
      }
    };
    watched([&] {
      const ShardFile file(folder + "/" + shard_name(task.split, task.number));
      file.check_table();
      for (std::int64_t record = 0; record < file.records(); ++record) {
        if (record + 1 < file.records()) file.will_read(record + 1);
        if (!watched([&] { file.verify(record); })) continue;
        if (watch.stop && watch.stop()) return;
      }
      check_belongs(file, index, task.split, task.number);
    });
    return faults;
  };
  in_order<std::vector<Error>>(threads, std::ssize(tasks), check,
                               [&](std::int64_t item, const std::vector<Error>& faults) {
                                 for (const Error& fault : faults) {
                                   if (watch.bad) watch.bad(fault);
                                 }
                                 const ShardTask& task = tasks[static_cast<std::size_t>(item)];
                                 report.faults += std::ssize(faults);
                                 report.records += index.shards[task.split][task.number].records;
                                 ++report.shards;
                                 if (watch.goes_on) watch.goes_on(report.records);
                                 report.stopped = watch.stop && watch.stop();
                                 return !report.stopped;
                               });
  return report;
}

}  // namespace starling
