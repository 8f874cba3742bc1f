// weir report and TensorBoard event files, of a real run.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/property_tree/xml_parser.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>

#include "graph/error.h"
#include "optim/chart.h"
#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using Tree = boost::property_tree::ptree;

// Throws when the text is no well-formed XML.
Tree Parse(const std::string& xml) {
  std::istringstream in(xml.starts_with("<!DOCTYPE") ? xml.substr(xml.find('\n')) : xml);
  Tree tree;
  boost::property_tree::read_xml(in, tree);
  return tree;
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; ++at) ++count;
  return count;
}

class Report : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream data(folder_ / "text.txt");
    for (int i = 0; i < 200; ++i) data << "line " << i << " of some text\n";
  }
  void TearDown() override { fs::remove_all(folder_); }
  int Weir(const std::string& arguments) const {
    return WEXITSTATUS(std::system((WEIR_PROGRAM " " + arguments + " >" + (folder_ / "log").string() + " 2>&1").c_str()));
  }
  std::string Train(const std::string& more) const {
    return "train " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --sequence 32 --micro-batch 2 --learning-rate 3e-3 --data " +
           (folder_ / "text.txt").string() + " --out '" + Run().string() + "' " + more;
  }
  fs::path Run() const { return folder_ / "a <b> & c"; }
  const fs::path folder_ = fs::temp_directory_path() / ("weir_report_" + std::to_string(getpid()));
};

TEST_F(Report, IsOneWellFormedPageWithTheRunsNumbers) {
  ASSERT_EQ(Weir(Train("--steps 12 --log-load-every 4 --eval-every 5 --eval-data " + (folder_ / "text.txt").string())), 0) << Slurp(folder_ / "log");
  ASSERT_EQ(Weir("report '" + Run().string() + "'"), 0) << Slurp(folder_ / "log");
  const std::string page = Slurp(Run() / "report.html");
  const Tree body = Parse(page).get_child("html.body");
  EXPECT_NE(body.get<std::string>("h1").find("a <b> & c"), std::string::npos);
  EXPECT_NE(body.get<std::string>("pre").find("learning-rate = 0.003\n"), std::string::npos);
  std::map<std::string, std::string> summary;
  for (const auto& [name, row] : body.get_child("table")) {
    if (name == "tr") summary[row.front().second.data()] = row.back().second.data();
  }
  EXPECT_EQ(summary["steps"], "12 of 12");
  EXPECT_EQ(summary["steps skipped"], "0");
  double last = 0, held_out = 0;
  int64_t bytes = 0;
  std::istringstream lines(Slurp(Run() / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("eval_loss")) held_out = json["eval_loss"];
    else last = json["loss"], bytes = json["device_bytes"];
  }
  EXPECT_NEAR(std::stod(summary["loss, first and last"].substr(summary["loss, first and last"].find(' '))), last, 1e-4);
  EXPECT_NEAR(std::stod(summary["held-out loss, last"]), held_out, 1e-4);
  const auto plan = nlohmann::json::parse(Slurp(Run() / "plan.json"));
  EXPECT_EQ(plan["arena_bytes"], bytes);
  EXPECT_EQ(body.count("svg"), 8u) << "five charts, the step's parts, load by layer, memory by term";
  EXPECT_EQ(Count(page, "<title>step 4, layer"), 2u) << "two routed layers";
  EXPECT_EQ(Count(page, "<title>step "), 6u) << "logged after steps 4, 8 and 12";
  for (const char* part : {">forward<", ">backward<", ">dispatch<", ">head<", ">optimizer<"}) EXPECT_NE(page.find(part), page.npos) << part;
  EXPECT_EQ(page.find(">reduction<"), page.npos) << "one rank";
  for (const auto& [term, amount] : plan["ledger"].items()) {
    EXPECT_TRUE(amount.get<int64_t>() == 0 || page.find(">" + term + "</text>") != page.npos) << term;
  }
  EXPECT_EQ(Count(page, "<circle"), 4u) << "evaluations after 0, 5, 10 and 12 steps";
  EXPECT_EQ(Count(page, "http"), Count(page, "xmlns=\"http://www.w3.org/2000/svg\"")) << "the page needs no network";
}

TEST_F(Report, OfWhatIsNoRunIsAnError) {
  EXPECT_EQ(Weir("report " + folder_.string()), 1);
  EXPECT_NE(Slurp(folder_ / "log").find("is no run folder"), std::string::npos);
  fs::create_directories(folder_ / "garbage");
  std::ofstream(folder_ / "garbage/metrics.jsonl") << "no record\n[1]\n";
  EXPECT_EQ(Weir("report " + (folder_ / "garbage").string()), 1);
  EXPECT_NE(Slurp(folder_ / "log").find("none of its 2 lines is a record"), std::string::npos) << Slurp(folder_ / "log");
  std::ofstream(folder_ / "garbage/metrics.jsonl", std::ios::app) << R"({"step": 1, "loss": 2.5})" << "\n" << R"({"step": "2"})" << "\n";
  EXPECT_EQ(Weir("report " + (folder_ / "garbage").string()), 0);
  EXPECT_NE(Slurp(folder_ / "log").find("3 lines are no records of a run and were passed over"), std::string::npos) << Slurp(folder_ / "log");
  fs::remove(folder_ / "garbage/report.html");
  EXPECT_NE(std::system(("ulimit -f 2; " WEIR_PROGRAM " report " + (folder_ / "garbage").string() + " 2>/dev/null").c_str()), 0);
  for (const char* file : {"report.html", "report.html.writing"}) EXPECT_FALSE(fs::exists(folder_ / "garbage" / file)) << "a full disk leaves no part of it";
  EXPECT_EQ(Weir("report"), 2);
  fs::create_directories(folder_ / "empty");
  std::ofstream(folder_ / "empty/metrics.jsonl") << R"({"step": 1, "lo)";  // a run that has just begun, its line half written
  ASSERT_EQ(Weir("report " + (folder_ / "empty").string()), 0) << Slurp(folder_ / "log");
  EXPECT_NO_THROW(Parse(Slurp(folder_ / "empty/report.html")));
  EXPECT_EQ(Slurp(folder_ / "empty/metrics.jsonl"), R"({"step": 1, "lo)") << "only read";
}

// Parts of a step add up to its time; each layer's routes are tokens * top_k, and the load is theirs.
TEST_F(Report, MetricsTellPartsAndLoadOfEveryStep) {
  ASSERT_EQ(Weir(Train("--steps 6 --grad-accumulation 3 --log-load-every 2")), 0) << Slurp(folder_ / "log");
  const auto routes_of = [&] {  // RTD-17: a layer that runs again counts no route twice
    std::vector<std::string> all;
    std::istringstream lines(Slurp(Run() / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line).value("expert_routes", nlohmann::json()).dump());
    return all;
  };
  const auto once = routes_of();
  const std::string metrics = Slurp(Run() / "metrics.jsonl");
  fs::remove_all(Run());
  ASSERT_EQ(Weir(Train("--steps 6 --grad-accumulation 3 --log-load-every 2 --recompute layer")), 0) << Slurp(folder_ / "log");
  EXPECT_EQ(routes_of(), once);
  std::istringstream lines(metrics);
  int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    ++step;
    double sum = 0;
    for (const auto& [part, seconds] : json["split_s"].items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum * 1e3, json["step_ms"].get<double>(), 0.2 + 0.01 * json["step_ms"].get<double>());
    for (const char* part : {"forward", "backward", "dispatch", "head", "optimizer"}) EXPECT_GT(json["split_s"][part].get<double>(), 0) << part;
    EXPECT_FALSE(json.contains("split_longest_s")) << "one rank";
    ASSERT_EQ(json.contains("expert_routes"), step % 2 == 0);
    if (step % 2 != 0) continue;
    ASSERT_EQ(json["expert_routes"].size(), 2u);
    for (size_t layer = 0; layer < 2; ++layer) {
      const auto routes = json["expert_routes"][layer].get<std::vector<int64_t>>();
      const int64_t all = std::accumulate(routes.begin(), routes.end(), int64_t{0});
      EXPECT_EQ(all, 3 * 2 * 32 * 2) << "micro-batches, rows, tokens, top_k";
      EXPECT_NEAR(json["expert_load"][layer].get<double>(), static_cast<double>(std::ranges::max(routes)) * std::ssize(routes) / static_cast<double>(all), 1e-12);
    }
  }
  EXPECT_EQ(step, 6);
}

// The keys of the first cells of the guide's table, and of split_s the parts in its last cell.
std::set<std::string> DocumentedKeys() {
  std::set<std::string> keys;
  const auto add = [&](const std::string& cell, const std::string& prefix) {
    for (size_t at = cell.find('`'); at != cell.npos; at = cell.find('`', cell.find('`', at + 1) + 1)) {
      keys.insert(prefix + cell.substr(at + 1, cell.find('`', at + 1) - at - 1));
    }
  };
  std::ifstream guide(WEIR_SOURCE_DIR "/docs/guides/running.md");
  bool inside = false;
  for (std::string line; std::getline(guide, line);) {
    if (line == "| key | of | is |") inside = true;
    if (line.empty()) inside = false;
    if (!inside || !line.starts_with("| `")) continue;
    const std::string first = line.substr(0, line.find(" | "));
    add(first, "");
    if (first.find("`split_s`") != first.npos) add(line.substr(line.rfind(" | ")), "split_s.");
  }
  return keys;
}

// A run that has all there is: ranks, router losses, weights of tokens, steps without labels, evaluations, checkpoints.
TEST_F(Report, EveryKeyOfTheMetricsIsInTheGuide) {
  std::ofstream data(folder_ / "weighted.jsonl");
  data << nlohmann::json{{"input_ids", std::vector(72, 5)}, {"weights", std::vector(72, 0)}} << "\n";  // two steps without a label
  for (int i = 0; i < 40; ++i) data << "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, " << i << "], \"weights\": [1, 1, 2, 0.5, 1, 0, 1, 3]}\n";
  data.close();
  const std::string file = (folder_ / "weighted.jsonl").string();
  ASSERT_EQ(Weir("train " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --sequence 16 --micro-batch 1 --ranks 2 --steps 4 --save-every 1 --no-shuffle --balance-loss 0.1 "
                 "--log-load-every 2 --data " + file + " --eval-data " + file + " --out '" + Run().string() + "'"), 0) << Slurp(folder_ / "log");
  std::set<std::string> written;
  std::istringstream lines(Slurp(Run() / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    for (const auto& [key, value] : json.items()) written.insert(key);
    if (!json.contains("split_s")) continue;
    for (const auto& [part, seconds] : json["split_s"].items()) written.insert("split_s." + part);
  }
  EXPECT_TRUE(written.contains("label_weight") && written.contains("router_loss") && written.contains("split_longest_s") && written.contains("checkpoint_share"));
  EXPECT_EQ(DocumentedKeys(), written);
}

// The event file of a resumed run holds each step once.
TEST_F(Report, EventFilesFollowTheMetrics) {
  ASSERT_EQ(Weir(Train("--steps 4 --save-every 2 --tensorboard")), 0) << Slurp(folder_ / "log");
  fs::remove_all(Run() / "checkpoints/step-000000004");
  ASSERT_EQ(Weir(Train("--steps 6 --save-every 2 --tensorboard --resume auto")), 0) << Slurp(folder_ / "log");
  std::vector<fs::path> files(fs::directory_iterator(Run() / "tensorboard"), {});
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(Count(Slurp(files[0]), "train/loss"), 6u);
  EXPECT_EQ(Count(Slurp(files[0]), "memory/device_gib"), 6u);
  EXPECT_EQ(Count(Slurp(files[0]), "split_s/backward"), 6u);
}

TEST(Chart, DrawsWhatIsFiniteAndThinsWhatIsLong) {
  Chart chart{.title = "a < b", .note = "", .lines = {{.color = "#000", .points = {}}}};
  EXPECT_NO_THROW(Parse(ToSvg(chart)));
  for (int i = 0; i < 100000; ++i) chart.lines[0].points.emplace_back(i, i == 7 ? std::nan("") : 5.0);
  const std::string svg = ToSvg(chart);
  EXPECT_NO_THROW(Parse(svg));
  EXPECT_LT(svg.size(), 40000u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

// Values near the largest there are would give axes without numbers.
TEST(Chart, HasNoAxisThatIsNotANumber) {
  for (const double value : {1e308, -1e308, 1e-320, 0.0, -3.0}) {
    for (const bool from_zero : {false, true}) {
      const std::string svg = ToSvg({.title = "", .note = "", .from_zero = from_zero, .lines = {{.color = "#000", .points = {{1, 1}, {2, value}}}}});
      EXPECT_EQ(svg.find("nan"), std::string::npos) << value;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << value;
      EXPECT_EQ(svg.find(">-0<"), std::string::npos) << value;
    }
  }
}

// Two points of a chart whose frame is known: 4 % of room above and below.
TEST(Chart, PutsPointsWhereTheyBelong) {
  const std::string svg = ToSvg({.title = "", .note = "", .lines = {{.color = "#000", .points = {{0, 100}, {10, 200}}}}});
  const size_t at = svg.find("points=\"") + 8;
  std::istringstream points(svg.substr(at, svg.find('"', at) - at));
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  char comma = 0;
  points >> x0 >> comma >> y0 >> x1 >> comma >> y1;
  EXPECT_NEAR(x0, 70, 1e-9);
  EXPECT_NEAR(x1, 700, 1e-9);
  EXPECT_NEAR(y1, 40 + 320 * 4.0 / 108, 1e-3);
  EXPECT_NEAR(y0, 360 - 320 * 4.0 / 108, 1e-3);
}

}  // namespace
}  // namespace weir
