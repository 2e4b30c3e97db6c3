// classify RUN|MODEL.safetensors PICTURE: the five most probable classes of a picture.
#include <starling/inference.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: classify RUN|MODEL.safetensors PICTURE\n");
    return 2;
  }
  try {
    const auto model = starling::load_model(argv[1]);
    const auto logits = model->logits(model->read_picture(argv[2]));
    const auto shares = model->probabilities(logits);
    for (const auto index : starling::largest(logits, 5)) {
      const auto i = static_cast<std::size_t>(index);
      std::printf("%-20s %5.1f %%\n", model->classes()[i].c_str(), 100.0 * shares[i]);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "classify: %s\n", error.what());
    return 2;
  }
}
