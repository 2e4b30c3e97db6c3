#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/other_ranks.h"
#include "comm/shared/descriptors.h"
#include "comm/shared/direct_control.h"
#include "comm/shared/direct_transport.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "plain_families.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/exchanges.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/sanitized.h"
#include "tests/support/soon.h"
#include "tests/support/topologies.h"

using namespace starling;
using test::Job;
using test::largest_difference;
using test::pair_with;
using test::run_fake;
using test::types_for;

namespace {

std::atomic<int> send_error{0};  // that the next sendmsg() of this program ends with; 0: none

}  // namespace

/// Stands before the C library's.
extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (const int error = send_error.exchange(0)) return errno = error, -1;
  return syscall(SYS_sendmsg, socket, message, flags);
}

namespace {

const nlohmann::json kDirectAdamW = {{"type", "adamw"}, {"weight_decay", 0.1}};

/// Mixed: `per_host` ranks read each other directly, the others get messages.
test::FakeRun direct(int per_host = 0) {
  test::FakeRun run;
  run.direct = true;
  run.ranks_per_host = per_host;
  return run;
}

/// Ranks with one bucket of 64 numbers; body(transport, mixer, buckets, backend) runs on each.
struct OneBucket {
  explicit OneBucket(Backend& backend)
      : model({Shape{64}}), plan(plan_buckets(model.order, {}, DType::kFloat32, 1)) {
    buckets = make_buckets(plan, backend, DType::kFloat32, 0, false);
  }
  test::TinyModel model;
  BucketPlan plan;
  std::vector<Bucket> buckets;
};

template <class Body>
void with_ranks(int n, const FakeWorldOptions& options, const Body& body) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < n; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  FakeWorld world(n, options);
  world.run([&](Transport& transport) {
    Backend& backend = *backends[static_cast<std::size_t>(transport.rank())];
    OneBucket one(backend);
    const auto mixer = transport.make_mixer(backend);
    body(transport, *mixer, one.buckets, backend);
  });
}

}  // namespace

TEST_CASE(
    "comm/direct: every topology over 1 to 9 ranks gives the same bits by messages, directly, and "
    "mixed") {
  for (const int n : test::fewer_if_sanitized<int>({1, 2, 3, 4, 5, 6, 7, 8, 9})) {
    const std::vector<std::string> types = types_for(n);
    CHECK(types.size() >= 4);
    for (const std::string& type : types) {
      Job job;
      job.topology = {{"type", type}};
      job.optimizer = kDirectAdamW;
      job.start_apart = true;
      job.steps = 7;
      CAPTURE(n);
      CAPTURE(type);
      const auto expected = run_fake(job, n);
      CHECK(run_fake(job, n, direct()) == expected);
      if (n > 1) CHECK(run_fake(job, n, direct(n == 2 ? 1 : 2)) == expected);
      if (n > 3) CHECK(run_fake(job, n, direct(3)) == expected);
    }
  }
}

TEST_CASE(
    "comm/direct: rounds over nodes follow the formulas by messages, directly and mixed, whatever "
    "the buckets") {
  struct Case {
    int n, per_node;
    const char* inter;
  };
  for (const auto& [n, per_node, inter] :
       {Case{4, 2, "ring"}, Case{4, 2, "complete"}, Case{6, 2, "complete"},
        Case{6, 3, "one-peer-exp"}, Case{8, 2, "static-ring"}, Case{8, 4, "directed-exp"},
        Case{9, 3, "star"}, Case{6, 6, "ring"}}) {
    Job job;
    job.topology = {{"type", "hierarchical"}, {"ranks_per_node", per_node}, {"inter", inter}};
    if (n == per_node) job.topology["inter"] = "complete";
    job.start_apart = true;
    job.steps = 7;
    CAPTURE(n);
    CAPTURE(per_node);
    CAPTURE(inter);
    for (const char* exchange : {"bf16", "fp32"}) {
      job.exchange = exchange;
      const auto expected = run_fake(job, n);
      CHECK(run_fake(job, n, direct(per_node)) ==
            (n == per_node ? run_fake(job, n, direct()) : expected));
      for (const double bytes : {1.0, 1e9}) {
        Job other = job;
        other.bucket_bytes = bytes;
        other.slow_rank = 1;
        CHECK(run_fake(other, n) == expected);
      }
      Job other = job;
      other.finish_every = 2;
      other.resume_after = 3;
      CHECK(run_fake(other, n) == expected);
    }
    job.dtype = DType::kFloat64;
    const auto plain = test::run_plain_family(job, n);
    CHECK(largest_difference(run_fake(job, n), plain) < 1e-12);
    CHECK(largest_difference(run_fake(job, n, direct()), plain) < 1e-12);
    CHECK(largest_difference(run_fake(job, n, direct(per_node)), plain) < 1e-12);
  }
}

TEST_CASE(
    "comm/direct: modes, bucket sizes, slow ranks, low precision, evaluation and resume change no "
    "bit of an accumulating optimizer") {
  for (const char* type : {"one-peer-exp", "complete", "random-matching"}) {
    Job job;
    job.topology = {{"type", type}};
    job.optimizer = {{"type", "accum_adamw"}, {"weight_decay", 0.1}, {"accum_iter", 2}};
    job.start_apart = true;
    job.steps = 8;
    const auto expected = run_fake(job, 4);
    CAPTURE(type);
    for (const int per_host : {0, 2}) {
      CAPTURE(per_host);
      CHECK(test::ways_that_change_bits(job, expected, true, direct(per_host)) == "");
      Job other = job;
      other.compute = DType::kBFloat16;
      CHECK(run_fake(other, 4, direct(per_host)) == expected);
    }
  }
}

TEST_CASE("comm/direct: an overflow mixes without an update, as by messages") {
  Job job;
  job.topology = {{"type", "complete"}};
  job.in_backward = false;
  job.check_overflow = true;
  job.loss_scale = 1024;
  job.overflows = {{0, 0}, {2, 3}, {1, 5}};
  job.steps = 7;
  CHECK(run_fake(job, 3, direct()) == run_fake(job, 3));
}

TEST_CASE(
    "comm/direct: nothing is copied: what a pair or a group receives is the others' memory, and "
    "the views follow the update") {
  with_ranks(
      3, {20.0, 0.0, 0, 0, true},
      [](Transport& t, Mixer& mixer, std::vector<Bucket>& buckets, Backend& backend) {
        Parameter& parameter = *buckets[0].layout->slots[0].parameter;
        test::set_numbers(buckets[0].parameters, [&](std::int64_t i) {
          return 100.0 * t.rank() + static_cast<double>(i);
        });
        CHECK(mixer.name() == "fake");
        mixer.share(buckets);
        CHECK(mixer.name() == "direct");
        const std::byte* first = buckets[0].parameters.raw();
        mixer.share(buckets);  // again: as they are
        REQUIRE(buckets[0].parameters.raw() == first);
        REQUIRE(parameter.value.raw() == first);
        REQUIRE(buckets[0].spare.raw() != first);
        CHECK(parameter.value.data<float>()[7] == 100.0f * static_cast<float>(t.rank()) + 7.0f);
        Exchange group;
        group.kind = Exchange::Kind::kGroupSum;
        group.group = {0, 1, 2};
        CHECK(mixer.buffers_for(group) == 0);
        std::vector<Tensor> received;
        mixer.wait(mixer.start(group, buckets[0], {}, received, {0, 0, 0}));
        REQUIRE(received.size() == 3);
        CHECK(received[static_cast<std::size_t>(t.rank())].raw() == first);
        for (int r = 0; r < 3; ++r)
          CHECK(received[static_cast<std::size_t>(r)].data<float>()[5] ==
                100.0f * static_cast<float>(r) + 5.0f);
        mixer.wait_until_writable(buckets[0], {1, 0, 0});
        test::set_numbers(buckets[0].spare, [&](std::int64_t) { return -1.0 * t.rank(); });
        buckets[0].flip();
        CHECK(parameter.value.data<float>()[0] == -1.0f * static_cast<float>(t.rank()));
        for (int r = 0; r < 3; ++r)
          CHECK(received[static_cast<std::size_t>(r)].data<float>()[5] ==
                100.0f * static_cast<float>(r) + 5.0f);
        mixer.release({1, 0, 0});
        mixer.start({}, buckets[0], {}, received, {1, 0, 1});
        CHECK(received.empty());
        OneBucket other(backend);  // a new set takes the place of the old one
        mixer.share(other.buckets);
        mixer.wait(mixer.start(group, other.buckets[0], {}, received, {0, 0, 0}));
        CHECK(received[static_cast<std::size_t>(t.rank())].raw() ==
              other.buckets[0].parameters.raw());
      });
}

TEST_CASE("comm/direct: a fast rank does not overwrite what a slow one still reads") {
  std::atomic<bool> released{false};
  with_ranks(
      2, {20.0, 0.0, 0, 0, true},
      [&](Transport& t, Mixer& mixer, std::vector<Bucket>& buckets, Backend&) {
        mixer.share(buckets);
        std::vector<Tensor> received;
        const Ticket first =
            mixer.start(pair_with(1 - t.rank()), buckets[0], {}, received, {0, 0, 0});
        mixer.wait(first);
        if (t.rank() == 0) {
          // nobody has read the other buffer: no wait
          mixer.wait_until_writable(buckets[0], {1, 0, 0});
          buckets[0].flip();
          mixer.release({1, 0, 0});
          mixer.start(pair_with(1), buckets[0], {}, received, {1, 0, 1});
          mixer.wait_until_writable(buckets[0], {2, 0, 1});  // rank 1 still reads what is there
          CHECK(released);
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(60));
          released = true;
          mixer.release({1, 0, 0});
        }
      });
}

TEST_CASE("comm/direct: a neighbour may start later, and a ticket is good for one wait") {
  std::atomic<bool> asked{false};
  with_ranks(2, {20.0, 0.0, 0, 0, true},
             [&](Transport& t, Mixer& mixer, std::vector<Bucket>& buckets, Backend&) {
               mixer.share(buckets);
               std::vector<Tensor> received;
               if (t.rank() == 1) {
                 while (!asked) std::this_thread::yield();
               }
               const Ticket ticket =
                   mixer.start(pair_with(1 - t.rank()), buckets[0], {}, received, {0, 0, 0});
               if (t.rank() == 0) asked = true;
               mixer.wait(ticket);
               CHECK(received.size() == 1);
               CHECK(test::error_text([&] { mixer.wait(ticket); }).find("not under way") !=
                     std::string::npos);
             });
}

TEST_CASE(
    "comm/direct: a file is sent again where the system has no room for it, and a lasting error is "
    "told") {
  for (const int error : {EAGAIN, EINTR, ENOBUFS, ETOOMANYREFS, EPERM}) {
    CAPTURE(error);
    send_error = error;
    FakeWorld(2).run([&](Transport& t) {
      int came = 0;
      const std::string reason = detail::swap_descriptors(
          t.world(), {0, 1}, error == EPERM ? 0.05 : 10.0,
          [] { return detail::Descriptor(memfd_create("test", MFD_CLOEXEC)); },
          [&](std::size_t, const detail::Descriptor& file) { came += file ? 1 : 0; });
      CHECK(reason.empty() == (error != EPERM));
      if (error != EPERM) CHECK(came == 1);
    });
  }
}

TEST_CASE(
    "comm/direct: a wait for a rank that stopped names it, its host, and when it was last heard "
    "of") {
  std::string text;
  std::atomic<int> there{0};
  std::atomic<bool> over{false};
  with_ranks(3, {1.0, 0.0, 0, 0, true},
             [&](Transport& t, Mixer& mixer, std::vector<Bucket>& buckets, Backend&) {
               mixer.share(buckets);
               Exchange group;
               group.kind = Exchange::Kind::kGroupSum;
               group.group = {0, 1, 2};
               std::vector<Tensor> received;
               mixer.wait(mixer.start(group, buckets[0], {}, received, {11, 0, 10}));
               t.world().barrier();
               if (t.rank() == 2) {
                 mixer.release({12, 0, 11});
               } else if (t.rank() == 1) {
                 mixer.start(group, buckets[0], {}, received, {12, 0, 11});
               } else {
                 CHECK(test::soon([&] { return there == 2; }));
                 const Ticket ticket = mixer.start(group, buckets[0], {}, received, {12, 0, 11});
                 text = test::error_text([&] { mixer.wait(ticket); });
                 over = true;
                 return;
               }
               ++there;
               // a rank that has ended says that in place of what it did last
               test::soon([&] { return over.load(); });
             });
  CAPTURE(text);
  for (const char* part : {"rank 0 waited 1 s", " on host ", "step 12, bucket 0, round 11",
                           "in the group of ranks 0, 1, 2", "missing: rank 2 last heard of ",
                           "(mixed bucket 0 of step 12)", "; there: rank 1 last heard of"}) {
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(text.find('\n') == std::string::npos);
}

TEST_CASE(
    "comm/transports: a wait that is over its limit names the missing first, and of either kind "
    "the longest silent") {
  const std::string text = test::error_of(ExitCode::kLost, [] {
    fail_wait(0, "the sum", {12, 0, 11}, 2.0,
              {{1, 0.5}, {2, 3.0}, {3, 1.0, "", false}, {4, 7.0, "", false}, {5, -1.0}});
  });
  CHECK(test::contains(text,
                       "; missing: rank 5 never heard of, rank 2 last heard of 3.0 s ago, rank 1 "
                       "last heard of 0.5 s ago; there: rank 4 last "
                       "heard of 7.0 s ago, rank 3 last heard of 1.0 s ago"));
}

TEST_CASE("comm/direct: what a rank last did is told with its step, if it has come to one") {
  detail::Pulse pulse;
  CHECK(pulse.text() == "has exchanged nothing yet");
  pulse.beat(detail::Pulse::Doing::kEnded);
  CHECK(pulse.text() == "has ended before its first exchange");
  pulse.beat(detail::Pulse::Doing::kMixed, {12, 3, 11});
  CHECK(pulse.text() == "mixed bucket 3 of step 12");
}

TEST_CASE("comm/direct: a reader that never lets go is named") {
  std::string text;
  std::atomic<bool> over{false};
  with_ranks(
      2, {1.0, 0.0, 0, 0, true},
      [&](Transport& t, Mixer& mixer, std::vector<Bucket>& buckets, Backend&) {
        mixer.share(buckets);
        std::vector<Tensor> received;
        mixer.wait(mixer.start(pair_with(1 - t.rank()), buckets[0], {}, received, {0, 0, 0}));
        if (t.rank() == 1) {
          test::soon([&] { return over.load(); });
          return;
        }
        buckets[0].flip();
        mixer.start(pair_with(1), buckets[0], {}, received, {1, 0, 1});
        text = test::error_text([&] { mixer.wait_until_writable(buckets[0], {2, 0, 1}); });
        over = true;
      });
  CAPTURE(text);
  CHECK(text.find("for the readers of step 1, bucket 0; missing: rank 1 last heard of") !=
        std::string::npos);
}

TEST_CASE("comm/direct: a rank that throws ends the waits of the others") {
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = test::error_text([&] {
    with_ranks(3, {30.0, 0.0, 0, 0, true},
               [](Transport& t, Mixer& mixer, std::vector<Bucket>& buckets, Backend&) {
                 mixer.share(buckets);
                 if (t.rank() == 1) fail(ExitCode::kUsage, "data", "no file");
                 std::vector<Tensor> received;
                 Exchange from_one = pair_with(1);
                 mixer.wait(mixer.start(from_one, buckets[0], {}, received, {0, 0, 0}));
               });
  });
  CHECK(text == "[data] no file");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE(
    "comm/direct: where a rank has no memory to share, all go on by messages, to the same bits") {
  Job job;
  job.topology = {{"type", "one-peer-exp"}};
  test::FakeRun refused = direct();
  refused.refuse = 2;
  CHECK(run_fake(job, 4, refused) == run_fake(job, 4));
  with_ranks(2, {20.0, 0.0, 0, 0, true, 1},
             [](Transport& t, Mixer& mixer, std::vector<Bucket>& buckets, Backend&) {
               const std::byte* before = buckets[0].parameters.raw();
               CHECK_FALSE(mixer.share(buckets));  // so that nobody makes rounds over nodes flat
               CHECK(mixer.name() == "fake");
               CHECK(buckets[0].parameters.raw() == before);
               CHECK_FALSE(buckets[0].spare);
               CHECK(mixer.buffers_for(pair_with(1 - t.rank())) == 1);
             });
}

TEST_CASE(
    "comm/direct: sharing the same buckets again is nothing, also for a rank that is alone on its "
    "host") {
  FakeWorldOptions options;
  options.ranks_per_host = 2;
  options.direct = true;
  with_ranks(3, options,
             [](Transport& t, Mixer& mixer, std::vector<Bucket>& buckets, Backend& backend) {
               const std::byte* const before = buckets[0].parameters.raw();
               mixer.share(buckets);
               const std::byte* const shared = buckets[0].parameters.raw();
               CHECK((shared != before) == (t.rank() < 2));
               mixer.share(buckets);
               CHECK(buckets[0].parameters.raw() == shared);
               OneBucket others(backend);
               const std::byte* const other = others.buckets[0].parameters.raw();
               mixer.share(others.buckets);
               CHECK((others.buckets[0].parameters.raw() != other) == (t.rank() < 2));
               t.world().barrier();
             });
}

TEST_CASE("comm/direct: counts wait, wake, and go past the end of their range") {
  std::atomic<std::uint32_t> count{0xfffffffeu};
  const auto soon = std::chrono::milliseconds(20);
  CHECK(detail::wait_for(count, 0xfffffffeu, {}, soon));
  CHECK_FALSE(detail::wait_for(count, 1u, std::chrono::microseconds(5), soon));
  std::thread other([&] {
    for (const std::uint32_t value : {0xffffffffu, 0u, 1u}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      detail::advance(count, value);
    }
  });
  CHECK(detail::wait_for(count, 1u, {}, std::chrono::seconds(20)));
  other.join();
  CHECK(detail::reached(count, 0xffffffffu));
  CHECK_FALSE(detail::reached(count, 2u));
}
