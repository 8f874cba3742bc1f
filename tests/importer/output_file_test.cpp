#include "importer/output_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class OutputFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("weir_output_" + std::string(info->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename().string());
    return names;
  }
  fs::path folder_;
};

TEST_F(OutputFiles, WhatAKilledWriterLeftIsRemovedByTheNext) {
  const pid_t writer = fork();
  if (writer == 0) {
    OutputFile half(folder_ / "x.data");
    half.Write("half of it");
    _exit(0);  // without destructors, as when killed
  }
  ASSERT_EQ(waitpid(writer, nullptr, 0), writer);
  ASSERT_EQ(Names().size(), 1u) << "the writer left its temporary";
  { OutputFile other(folder_ / "x"); }
  ASSERT_EQ(Names().size(), 1u) << "another target's";
  OutputFile whole(folder_ / "x.data");
  EXPECT_EQ(Names().size(), 1u) << "its own alone";
  whole.Write("whole");
  whole.Commit();
  EXPECT_EQ(Names(), (std::set<std::string>{"x.data"}));
  EXPECT_EQ(Slurp(folder_ / "x.data"), "whole");
}

TEST_F(OutputFiles, AWriterAtWorkIsLeftAlone) {
  std::ofstream(folder_ / "x.tmp.notes.txt") << "no temporary of ours";
  OutputFile first(folder_ / "x");
  first.Write("first");
  OutputFile second(folder_ / "x");
  EXPECT_EQ(Names().size(), 3u);
  first.Commit();
  EXPECT_EQ(Slurp(folder_ / "x"), "first");
  second.Write("second");
  second.Commit();
  EXPECT_EQ(Slurp(folder_ / "x"), "second");
  EXPECT_EQ(Names(), (std::set<std::string>{"x", "x.tmp.notes.txt"}));
}

TEST_F(OutputFiles, WithoutCommitNothingIsLeft) {
  { OutputFile(folder_ / "x").Write("some"); }
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace weir
