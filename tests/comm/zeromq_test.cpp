#if __has_include(<zmq.h>)
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/zeromq/frames.h"
#include "comm/zeromq/secret.h"
#include "comm/zeromq/sockets.h"
#include "comm/zeromq/transport.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/exchanges.h"
#include "tests/support/folder.h"
#include "transport_contract.h"

// Ranks that are threads, each with connections of its own.
namespace starling::test {
namespace {

using detail::Frame;
using detail::Hello;

/// Ranks with these settings, by rank; the last ones for all further ranks.
void run_zeromq(int ranks, double timeout_seconds, const std::vector<ZeroMqSettings>& settings,
                const TransportKind::Body& body) {
  FakeWorld world(ranks, {.timeout_seconds = timeout_seconds});
  world.run([&](Transport& t) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const auto r = std::min(static_cast<std::size_t>(t.rank()), settings.size() - 1);
    const auto made =
        make_zeromq_transport(world.transport(t.rank()), settings[r], timeout_seconds);
    CHECK(made->name() == "zeromq");
    body(*made, *backend);
  });
}

std::string secret_file(const Folder& folder, const std::string& name, const std::string& text,
                        mode_t mode = 0600) {
  const std::string path = folder.write(name, text);
  ::chmod(path.c_str(), mode);
  return path;
}

/// A port that is free, as is the one after it; below those that a system gives to connections.
int two_free_ports() {
  for (int port = 20'000 + 2 * static_cast<int>(::getpid() % 6'000); port < 32'766; port += 2) {
    detail::Context context;
    detail::Socket first(context, ZMQ_ROUTER), second(context, ZMQ_ROUTER);
    const auto binds = [&](detail::Socket& socket, int at) {
      return zmq_bind(socket.get(), fmt::format("tcp://127.0.0.1:{}", at).c_str()) == 0;
    };
    if (binds(first, port) && binds(second, port + 1)) return port;
  }
  return 0;
}
Tensor filled_with(Backend& backend, std::int64_t count, double value) {
  const Tensor tensor(backend, Shape{count}, DType::kFloat32);
  backend.fill(tensor, value);
  return tensor;
}
Exchange with_other(const Transport& t) { return pair_with(1 - t.rank()); }

}  // namespace

TEST_CASE("comm/zeromq: ranks in one process keep the contract of transports") {
  TransportKind kind;
  kind.ranks = {3, 2, 5};
  kind.run = [](int ranks, double timeout_seconds, const TransportKind::Body& body) {
    run_zeromq(ranks, timeout_seconds, {{}}, body);
  };
  check_transport(kind);
  check_flows(kind, true);
  check_late_rank(kind);
  kind.ranks = {3};
  check_jobs(kind);
}

TEST_CASE(
    "comm/zeromq: a secret is a file of 64 hexadecimal digits that its owner alone may read") {
  const Folder folder;
  const std::string digits = "00ff" + std::string(60, 'a');
  const detail::Secret secret = detail::read_secret(secret_file(folder, "right", digits + "\n"));
  CHECK(secret[0] == 0);
  CHECK(secret[1] == 255);
  CHECK(secret[31] == 0xaa);
  for (const auto& [text, mode, part] : std::vector<std::tuple<std::string, mode_t, std::string>>{
           {digits, 0640, "others than its owner may read"},
           {digits, 0602, "others than its owner may read"},
           {"", 0600, "one line of 64 hexadecimal digits"},
           {digits + "0", 0600, "one line of 64 hexadecimal digits"},
           {digits + "\n\n", 0600, "one line of 64 hexadecimal digits"},
           {"x" + digits.substr(1), 0600, "one line of 64 hexadecimal digits"},
           {std::string(5000, '0'), 0600, "one line of 64 hexadecimal digits"}}) {
    const std::string path = secret_file(folder, "wrong", text, mode);
    const std::string found = error_text(ExitCode::kUsage, [&] { detail::read_secret(path); });
    CHECK(contains(found, path));
    CHECK(contains(found, part));
  }
  CHECK(contains(error_text(ExitCode::kUsage, [&] { detail::read_secret(folder.path()); }),
                 "is no file that can be read"));
  CHECK(contains(error_text(ExitCode::kUsage, [&] { detail::read_secret("/none/there"); }),
                 "No such file"));
}

TEST_CASE("comm/zeromq: ranks with a secret of their own take part, one with another is refused") {
  const Folder folder;
  const ZeroMqSettings one{.secret = secret_file(folder, "one", std::string(64, '1'))},
      other{.secret = secret_file(folder, "other", std::string(64, '2'))};
  run_zeromq(3, 20.0, {one}, [](Transport& t, Backend&) {
    double sum = t.rank();
    t.world().sum(&sum, 1);
    CHECK(sum == 3.0);
  });
  const std::string text = error_text(ExitCode::kUsage, [&] {
    run_zeromq(2, 20.0, {one, other}, [](Transport&, Backend&) {});
  });
  CHECK(contains(text, "does not accept this rank's secret"));
}

TEST_CASE("comm/zeromq: a port that is taken, and an interface that is not there, are named") {
  const auto refused = [](const ZeroMqSettings& settings) {
    return error_text(ExitCode::kUsage,
                      [&] { run_zeromq(2, 20.0, {settings}, [](Transport&, Backend&) {}); });
  };
  // the highest port for rank 0, none for rank 1
  CHECK(contains(refused({.port = 65535}),
                 "cannot listen at 127.0.0.1:65536: there is no such port"));
  CHECK(contains(refused({.interface = "none0"}), "has no interface 'none0' with an IPv4 address"));
  CHECK(contains(refused({.secret = "/none/there"}), "/none/there"));
}

TEST_CASE("comm/zeromq: a rank that has gone is named by those that wait for it") {
  for (const bool at_once : {true, false}) {
    CAPTURE(at_once);
    std::string text;
    const auto body = [&](Transport& t, Backend& backend) {
      t.world().barrier();
      // its connections close as when its process ends
      if (t.rank() == 1 && at_once) fail(ExitCode::kInternal, "test", "gone");
      if (t.rank() == 1) return;  // the others are told that it has ended
      const Tensor own = filled_with(backend, 100, 0.0), came = filled_with(backend, 100, 0.0);
      const Ticket ticket = t.start_exchange(with_other(t), own, {came}, {5, 1, 4});
      text = error_text(ExitCode::kLost, [&] { t.wait(ticket); });
    };
    CHECK(error_text([&] { run_zeromq(2, 20.0, {{}}, body); }) == (at_once ? "[test] gone" : ""));
    CHECK(contains(text, at_once
                             ? "rank 1 is lost: its connection has closed before its end"
                             : "rank 1 is lost: it has ended, and this rank still waits for it"));
  }
}

TEST_CASE("comm/zeromq: a message of another length is refused, small or large") {
  for (const auto& [first, second] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {10, 11}, {100'000, 100}, {100, 100'000}, {60'000, 50'000}}) {
    CAPTURE(first);
    std::array<std::string, 2> texts;
    run_zeromq(2, 3.0, {{}}, [&](Transport& t, Backend& backend) {
      const std::int64_t count = t.rank() == 0 ? first : second;
      const Tensor own = filled_with(backend, count, 1.0), came = filled_with(backend, count, 0.0);
      const Ticket ticket = t.start_exchange(with_other(t), own, {came}, {5, 1, 4});
      texts[static_cast<std::size_t>(t.rank())] =
          error_text(ExitCode::kLost, [&] { t.wait(ticket); });
    });
    CHECK(contains(texts[0] + texts[1], "is of another length than this rank awaits"));
  }
}

TEST_CASE("comm/zeromq: strangers are refused in one line or not heard, and the job goes on") {
  const Folder folder;
  const detail::Keys right(detail::parse_secret(std::string(64, '1'), "")),
      wrong(detail::parse_secret(std::string(64, '2'), ""));
  const ZeroMqSettings settings{
      .port = two_free_ports(),
      .secret = secret_file(folder, "secret", std::string(64, '1')),
      .identity = {{"config", "abc"}, {"version", "1.0"}},
  };
  const auto frame = [](Frame::Kind kind) {
    const detail::FrameBytes bytes = encode(Frame{.kind = kind});
    return std::string(bytes.data(), bytes.size());
  };
  struct Row {
    std::string hello, answer;  ///< none: it is not answered
  };
  const auto other = [&](const std::string& key) {
    Hello hello{.job = "another", .identity = settings.identity, .member = {"tcp://a:1", "a"}};
    if (!key.empty()) hello.identity[key] = "def";
    return hello;
  };
  Hello lacks = other("");
  lacks.identity.erase("version");
  Hello joins = other("");
  joins.joins = true;
  const std::vector<Row> rows = {
      {"noise", ""},
      {std::string(100'000, 'x'), ""},
      {encode(Hello{.protocol = 1}), "it speaks version 1 of the protocol, this job version 3"},
      {encode(other("config")), "its config is def, this job's is abc"},
      {encode(other("version")), "its version is def, this job's is 1.0"},
      {encode(lacks), "it does not tell its version"},
      {encode(other("")), "it is a rank of another job"},
      {encode(joins), "it is a rank of another job"},
  };
  const std::vector<std::function<void(detail::Socket&)>> ways = {
      [](detail::Socket&) {},                            // not encrypted
      [&](detail::Socket& one) { wrong.connect(one); },  // with another secret
      [&](detail::Socket& one) {                         // with the public key alone
        std::array<char, 41> server{}, own{}, secret{};
        zmq_z85_encode(server.data(), right.public_key.data(), right.public_key.size());
        zmq_curve_keypair(own.data(), secret.data());
        one.set(ZMQ_CURVE_SERVERKEY, server.data());
        one.set(ZMQ_CURVE_PUBLICKEY, own.data());
        one.set(ZMQ_CURVE_SECRETKEY, secret.data());
      },
      [&](detail::Socket& one) { right.connect(one); }};
  run_zeromq(2, 20.0, {settings}, [&](Transport& t, Backend& backend) {
    const auto exchanged = [&] {
      const Tensor own = filled_with(backend, 100'000, t.rank()),
                   came = filled_with(backend, 100'000, 9.0);
      t.wait(t.start_exchange(with_other(t), own, {came}, {0, 0, 0}));
      return numbers(came)[99'999] == 1 - t.rank();
    };
    detail::Context context;
    std::vector<detail::Socket> strangers;
    for (const auto& way : ways) {
      for (std::size_t k = 0; t.rank() == 0 && k < rows.size(); ++k) {
        detail::Socket& one = strangers.emplace_back(context, ZMQ_DEALER);
        way(one);
        const std::string endpoint = fmt::format("tcp://127.0.0.1:{}", settings.port + 1);
        detail::zmq_check(zmq_connect(one.get(), endpoint.c_str()), "zmq_connect");
        one.send("noise");
        one.send(frame(Frame::Kind::kBye));
        one.send(frame(Frame::Kind::kHello), true);
        one.send(rows[k].hello);
        one.send(frame(Frame::Kind::kData), true);
        one.send("x");
      }
    }
    std::vector<std::string> answers(strangers.size());
    for (int i = 0; i < 40; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      CHECK(exchanged());
      for (std::size_t k = 0; k < strangers.size(); ++k) {
        if (const auto came = strangers[k].receive())
          answers[k] += std::string(came->back().text());
      }
    }
    for (std::size_t k = 0; k < answers.size(); ++k) {
      CAPTURE(k);
      const std::string expected = k < 3 * rows.size() ? "" : rows[k - 3 * rows.size()].answer;
      CHECK(answers[k].empty() == expected.empty());
      CHECK(contains(answers[k], expected));
    }
  });
}

TEST_CASE("comm/zeromq: frames and greetings are refused before anything of them is used") {
  const auto bytes_of = [](const Frame& frame) {
    const detail::FrameBytes bytes = encode(frame);
    return std::string(bytes.data(), bytes.size());
  };
  const Frame data{Frame::Kind::kData, 7, 1 << 20, 400};
  const Frame again = detail::parse_frame(bytes_of(data), {400});
  CHECK(again.kind == data.kind);
  CHECK(again.tag == 7);
  CHECK(again.a == 1 << 20);
  CHECK(again.b == 400);
  const auto refused = [&](const std::string& first, const std::vector<std::size_t>& others) {
    return error_of(ExitCode::kUsage, [&] { detail::parse_frame(first, others); });
  };
  CHECK(contains(refused(bytes_of(data), {401}), "401 bytes where 400 are announced"));
  CHECK(contains(refused(bytes_of(data), {}), "a message of 1 parts"));
  CHECK(contains(refused(bytes_of(data), {400, 1}), "a message of 3 parts"));
  CHECK(contains(refused(bytes_of(data) + "x", {400}), "a first part of 25 bytes, not 24"));
  CHECK(contains(refused(bytes_of({static_cast<Frame::Kind>(99)}), {}), "unknown kind 99"));
  CHECK(contains(refused(bytes_of({Frame::Kind::kRoster}), {(1 << 20) + 1}), "1048577 bytes"));
  CHECK(contains(refused(bytes_of({Frame::Kind::kOffer, -1, 0, 10}), {}), "tag -1"));
  CHECK(contains(refused(bytes_of({Frame::Kind::kOffer, 32768, 0, 10}), {}), "tag 32768"));
  CHECK(contains(refused(bytes_of({Frame::Kind::kReady, 0, 0, 1LL << 40}), {}),
                 "1099511627776 bytes"));
  CHECK(contains(refused(bytes_of({Frame::Kind::kData, 0, -8, 8}), {8}), "place -8"));
  CHECK(contains(refused(bytes_of({Frame::Kind::kHello}), {4097}), "a greeting of 4097 bytes"));

  const detail::Member at{"tcp://127.0.0.1:1", "a"};
  const Hello mine{.job = "abc", .generation = 3, .member = at};
  const auto answer = [&](const Hello& hello) {
    return why_refused(mine, detail::parse_hello(encode(hello)));
  };
  CHECK(answer(mine).empty());
  CHECK(contains(answer({.protocol = 1, .job = "abc"}), "version 1 of the protocol"));
  CHECK(contains(answer({.job = "abd", .generation = 3, .member = at}), "a rank of another job"));
  CHECK(contains(answer({.job = "abc", .generation = 2, .member = at}), "has gone on without it"));
  CHECK(answer({.job = "abc", .generation = 2, .member = at, .joins = true}).empty());
  Hello alike = mine, other = mine;
  alike.identity = other.identity = {{"config", "12ab"}, {"version", "0.2.0"}};
  CHECK(why_refused(alike, detail::parse_hello(encode(other))).empty());
  for (const char* key : {"config", "version"}) {
    Hello differs = other;
    differs.identity[key] = "0.1.0\n" + std::string(1000, 'x');
    const std::string text = why_refused(alike, detail::parse_hello(encode(differs)));
    CHECK(contains(text, fmt::format("its {} is 0.1.0\\nxxx", key)));
    CHECK(contains(text, "this job's is " + alike.identity[key]));
    CHECK(text.size() < 200);
    differs.identity.erase(key);
    CHECK(contains(why_refused(alike, differs), fmt::format("it does not tell its {}", key)));
  }
  CHECK(contains(error_of(ExitCode::kUsage, [&] { detail::parse_hello(encode(Hello{})); }),
                 "a member that listens at"));

  const detail::Roster roster{"abc", 7, {at, {"tcp://127.0.0.1:2", "b"}}};
  const detail::Roster same = detail::parse_roster(encode(roster));
  CHECK(same.job == roster.job);
  CHECK(same.generation == 7);
  CHECK(same.members == roster.members);
  const auto no_roster = [&](const std::string& text) {
    return error_of(ExitCode::kUsage, [&] { detail::parse_roster(text); });
  };
  CHECK(contains(no_roster("[]"), "no list of ranks"));
  CHECK(contains(no_roster(R"({"protocol": 1})"), "of version 1 of the protocol, not 3"));
  CHECK(contains(no_roster(encode(detail::Roster{"abc"})), "without job, generation and members"));
  CHECK(contains(no_roster(encode(detail::Roster{"abc", 1, {at, at}})), "two listen at tcp://127"));
}

}  // namespace starling::test
#endif
