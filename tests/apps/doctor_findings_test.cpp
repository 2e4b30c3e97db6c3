#include "apps/doctor/findings.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

// What starling-doctor check makes of what ranks found: hosts that are made up.
namespace starling {
namespace {

using nlohmann::json;

json rank_of(int rank, const std::string& host, const std::string& address) {
  return {{"rank", rank},
          {"host", host},
          {"version", "0.2.0"},
          {"commit", "abc"},
          {"mpi", "Open MPI v4.1.4"},
          {"cpu", "EPYC, avx512"},
          {"cores", 8},
          {"usable_cores", 8},
          {"memory_available", 64e9},
          {"shared_memory_free", 8e9},
          {"open_files", 65536},
          {"addresses", {address}},
          {"interfaces",
           {{{"name", "lo"}, {"address", "127.0.0.1"}, {"mtu", 65536}, {"loopback", true}},
            {{"name", "eth0"}, {"address", address}, {"mtu", 1500}, {"loopback", false}}}},
          {"folder",
           {{"path", "/data"},
            {"file_system", "nfs"},
            {"free", 1e12},
            {"unwritable", ""},
            {"locks", true}}},
          {"gpu", {{"none", "no driver"}}},
          {"warnings", json::array()},
          {"clock", 0.0},
          {"sees_folder", true},
          {"ways", {{host == "a" ? "b" : "a", "eth0"}}}};
}

std::vector<json> two_hosts() { return {rank_of(0, "a", "10.0.0.1"), rank_of(1, "b", "10.0.0.2")}; }

/// The only thing that is not well, as "level check: text → remedy".
std::string only(const std::vector<json>& ranks) {
  std::string text;
  for (const Finding& finding : findings(ranks, std::nullopt)) {
    if (finding.level == Finding::Level::kGood) continue;
    text += (finding.level == Finding::Level::kFault ? "fault " : "warning ") + finding.check +
            ": " + finding.text + " → " + finding.remedy + "\n";
  }
  return text;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos && text.find('\n') == text.size() - 1;
}

TEST_CASE("doctor findings: hosts that are well have nothing but good news") {
  const std::vector<json> ranks = two_hosts();
  CHECK(only(ranks).empty());
  const auto found = findings(ranks, NetworkModel{.ranks = 2});
  CHECK(findings_json(found, ranks).at("ok") == true);
  CHECK(findings_text(found).find("between hosts 50 µs and 1 Gbit/s") != std::string::npos);
  CHECK(findings_text(found).find("0 faults, 0 warnings\n") != std::string::npos);
}

TEST_CASE("doctor findings: each fault of a host is named, with its remedy") {
  const auto with = [](auto change) {
    std::vector<json> ranks = two_hosts();
    change(ranks[1]);
    return only(ranks);
  };
  CHECK(says(with([](json& r) { r["version"] = "0.1.0"; }),
             "fault versions: version of rank 1 on b is 0.1.0, of rank 0 0.2.0 → install"));
  CHECK(
      says(with([](json& r) { r["cpu"] = "Xeon, avx2"; }), "warning processors: rank 0 computes"));
  CHECK(says(with([](json& r) { r["addresses"] = {"127.0.1.1"}; }),
             "fault names: b: its own name leads to 127.0.1.1"));
  CHECK(says(with([](json& r) { r["addresses"] = json::array(); }), "leads to no address"));
  CHECK(says(
      with([](json& r) { r["interfaces"][1]["address"] = "10.0.0.1"; }),
      "fault interfaces: a and b both have 10.0.0.1 (eth0) → mpirun --mca btl_tcp_if_exclude"));
  CHECK(says(with([](json& r) { r["interfaces"][1]["mtu"] = 9000; }),
             "warning MTU: differs between hosts: 1500, 9000"));
  CHECK(says(with([](json& r) { r["ways"] = {{"a", ""}}; }), "fault network: b has no way to a"));
  CHECK(says(with([](json& r) {
               r["ways"] = {{"a", "docker0"}};
             }),
             "warning network: b reaches a by"));
  CHECK(says(with([](json& r) { r["shared_memory_free"] = 64e6; }),
             "warning shared memory: b: 61 MiB free in /dev/shm"));
  CHECK(says(with([](json& r) { r["memory_available"] = 1e8; }), "warning memory: b: 0.0931 GiB"));
  CHECK(says(with([](json& r) { r["open_files"] = 256; }), "warning open files: b: at most 256"));
  CHECK(says(with([](json& r) { r["usable_cores"] = 2, r["cpu_quota"] = 2.5; }),
             "warning cores: b: a quota of 2.5 of its 8 cores"));
  CHECK(says(with([](json& r) { r["clock"] = -7.5; }), "warning clocks: b is 7.5 s behind of a"));
  CHECK(says(with([](json& r) { r["sees_folder"] = false; }),
             "warning folder: /data on b is not the one on a"));
  CHECK(says(with([](json& r) { r["folder"]["unwritable"] = "Permission denied"; }),
             "fault folder: b: /data cannot be written: Permission denied"));
  CHECK(says(with([](json& r) { r["folder"]["free"] = 1e6; }), "warning folder: b: 0.000931 GiB"));
  CHECK(says(with([](json& r) {
               r["gpu"] = {{"found", "H100"}, {"nccl", "NCCL 2.28.9"}};
             }),
             "warning GPU: H100"));
}

TEST_CASE("doctor findings: what a host could not say is no fault") {
  std::vector<json> ranks = two_hosts();
  ranks[0]["memory_available"] = ranks[0]["folder"]["free"] = nullptr;
  CHECK(only(ranks).empty());
}

TEST_CASE("doctor findings: more ranks than cores") {
  std::vector<json> ranks;
  for (int i = 0; i < 9; ++i) ranks.push_back(rank_of(i, "a", "10.0.0.1"));
  for (json& rank : ranks) rank["ways"] = json::object();
  CHECK(says(only(ranks), "warning cores: a: 9 ranks share 8 cores"));
}

}  // namespace
}  // namespace starling
