// Mutates a corpus for a while, where libFuzzer is not: fuzz_NAME [--seconds S] [--runs N] [--seed
// K] FILE-OR-FOLDER... Without --seconds and --runs each file is run once as it is, so that an
// input that once failed is tried again by its name. An input under way lies in the file
// fuzz-NAME.input of the working folder if the process ends by it, and after 10 s for one input the
// process ends itself.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

using Input = std::vector<std::uint8_t>;

Input current;
std::string dump_path;

/// Leaves the input that was under way, then ends as the signal would have.
void leave_input(int number) {
  const int file = ::open(dump_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0) {
    [[maybe_unused]] const ssize_t written = ::write(file, current.data(), current.size());
    ::close(file);
  }
  constexpr char kText[] = "fuzz: the input that did it is in ";
  [[maybe_unused]] ssize_t told = ::write(2, kText, sizeof kText - 1);
  told = ::write(2, dump_path.data(), dump_path.size());
  told = ::write(2, "\n", 1);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

Input read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void run(const Input& input) {
  current = input;
  ::alarm(10);
  LLVMFuzzerTestOneInput(current.data(), current.size());
  ::alarm(0);
}

/// A few changes of the kinds that libFuzzer makes: bits, bytes, numbers at the edge of types,
/// pieces cut out, doubled, or taken from another input.
Input mutate(const std::vector<Input>& corpus, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) {
    return n == 0 ? 0 : static_cast<std::size_t>(random() % n);
  };
  Input input = corpus[below(corpus.size())];
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t at = below(input.size());
    const auto position = [&](std::size_t i) {
      return input.begin() + static_cast<std::ptrdiff_t>(i);
    };
    switch (input.empty() ? 2 : below(9)) {
      case 0: input[at] ^= static_cast<std::uint8_t>(1U << below(8)); break;
      case 1: input[at] = static_cast<std::uint8_t>(random()); break;
      case 2: input.insert(position(at), static_cast<std::uint8_t>(random())); break;
      case 3:
        input.erase(position(at), position(std::min(input.size(), at + 1 + below(16))));
        break;
      case 4: {  // a power of two or the number below, of 1, 2, 4 or 8 bytes
        const std::uint64_t number = (~std::uint64_t{0} >> below(64)) + below(2);
        std::memcpy(input.data() + at, &number,
                    std::min(input.size() - at, std::size_t{1} << below(4)));
        break;
      }
      case 5: {  // again
        const Input piece(position(at), position(std::min(input.size(), at + 1 + below(64))));
        input.insert(position(below(input.size())), piece.begin(), piece.end());
        break;
      }
      case 6: input.resize(at); break;
      case 7: {  // the end of another
        const Input& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size());
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
      default: {  // a digit, which texts have many of
        const auto digit = std::find_if(position(at), input.end(), [](std::uint8_t byte) {
          return byte >= '0' && byte <= '9';
        });
        if (digit != input.end()) *digit = static_cast<std::uint8_t>("0123456789-.e"[below(13)]);
      }
    }
    if (input.size() > 1 << 16) input.resize(1 << 16);
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = std::filesystem::path(argv[0]).filename();
  dump_path = name + ".input";
  double seconds = 0.0;
  std::uint64_t runs = 0, seed = 1;
  std::vector<Input> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : "0"; };
    if (word == "--seconds") {
      seconds = std::atof(value());
    } else if (word == "--runs") {
      runs = std::strtoull(value(), nullptr, 10);
    } else if (word == "--seed") {
      seed = std::strtoull(value(), nullptr, 10);
    } else if (std::filesystem::is_directory(word)) {
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(word))
        files.push_back(entry.path());
      std::sort(files.begin(), files.end());
      for (const auto& path : files) corpus.push_back(read_file(path));
    } else if (std::filesystem::is_regular_file(word)) {
      corpus.push_back(read_file(word));
    } else {
      std::fprintf(
          stderr,
          "usage: %s [--seconds S] [--runs N] [--seed K] FILE-OR-FOLDER...; there is no %s\n",
          name.c_str(), word.c_str());
      return 2;
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no inputs to begin with; name a folder of tests/fuzz/corpus\n",
                 name.c_str());
    return 2;
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM})
    std::signal(number, leave_input);
  std::mt19937_64 random(seed);
  std::uint64_t done = 0;
  for (const Input& input : corpus) run(input), ++done;
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  while ((runs > 0 && done < runs) || (seconds > 0.0 && elapsed() < seconds))
    run(mutate(corpus, random)), ++done;
  ::getrusage(RUSAGE_SELF, &after);
  const double grown = static_cast<double>(after.ru_maxrss - before.ru_maxrss) / 1024.0;
  std::printf(
      "%s: %llu inputs in %.1f s, no fault; memory at most %.0f MB, %.0f MB more than after the "
      "corpus\n",
      name.c_str(), static_cast<unsigned long long>(done), elapsed(),
      static_cast<double>(after.ru_maxrss) / 1024.0, grown);
  if (grown > 1024.0) {
    std::fprintf(stderr, "%s: an input takes more than 1 GB\n", name.c_str());
    return 1;
  }
  return 0;
}
