#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/apps/data_test_support.h"

namespace starling::test {

/// A folder of pictures as image_folder reads them, made of the golden ones.
struct PictureTree {
  Folder folder;
  PictureTree() {
    add("train/bee/1.jpg", "420.jpg");
    add("train/bee/sub/2.PNG", "rgb8.png");
    add("train/ant/b.jpeg", "422.jpg");
    add("train/ant/a.jpg", "turned6.jpg");
    add("train/ant/c.png", "grey8.png");
    folder.write("train/ant/notes.txt", "no picture");
    add("val/ant/x.jpg", "444.jpg");
    add("val/bee/y.jpg", "progressive.jpg");
  }
  void add(const std::string& name, const std::string& golden) const {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    std::filesystem::copy_file("golden/pictures/" + golden, folder / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  nlohmann::json config() const {
    return {{"type", "image_folder"},
            {"path", folder.path()},
            {"image_size", 16},
            {"test_resize", 20},
            {"test_crop", 16}};
  }
  std::unique_ptr<ImageDataset> open(const nlohmann::json& more = {}) const {
    nlohmann::json all = config();
    if (more.is_object()) all.update(more);
    auto dataset = make_dataset(all, 7);
    dataset->open();
    return dataset;
  }
  std::string refusal(const nlohmann::json& more = {}) const {
    return error_of(ExitCode::kUsage, [&] { open(more); });
  }
};

/// The augmentation random_resized_crop, to 16×16.
inline Augmenters random_crops(const nlohmann::json& keys = nlohmann::json::object()) {
  return augmenters_from({{"random_resized_crop", keys}}, Shape{16, 16, 3});
}

}  // namespace starling::test
