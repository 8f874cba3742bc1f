#include "cli/config_file.h"

#include <gtest/gtest.h>

#include <sstream>

#include "cli/options.h"

namespace weir {
namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

Entries Read(const std::string& text) {
  std::istringstream in(text);
  Entries entries;
  for (const ConfigEntry& entry : ReadConfig(in, "a.ini")) entries.emplace_back(entry.key, entry.value);
  return entries;
}

TEST(ConfigFile, CommentsBeginALineOrFollowASpace) {
  EXPECT_EQ(Read("# all\n  # of it\n\nsteps = 3 # three\nout=run#2\n data =\t/a b/c#1.txt \r\nempty =\n"),
            (Entries{{"steps", "3"}, {"out", "run#2"}, {"data", "/a b/c#1.txt"}, {"empty", ""}}));
}

TEST(ConfigFile, MayBeginWithAByteOrderMark) {
  EXPECT_EQ(Read("\xEF\xBB\xBFmodel = a.onnx\nsteps = 3\n"), (Entries{{"model", "a.onnx"}, {"steps", "3"}}));
}

TEST(ConfigFile, KnowsItsLines) {
  std::istringstream in("# all\nsteps = 3\n\nout = a\n");
  const auto entries = ReadConfig(in, "a.ini");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].line, 2);
  EXPECT_EQ(entries[1].line, 4);
}

TEST(ConfigFile, QuotesKeepValuesAsTheyAre) {
  EXPECT_EQ(Read("out = \" run # 2 \" # why not\nnames = \"a\\\"b\\\\c\\nd\"\nplain = a\"b\" = c\n"),
            (Entries{{"out", " run # 2 "}, {"names", "a\"b\\c\nd"}, {"plain", "a\"b\" = c"}}));
}

TEST(ConfigFile, RefusesOtherLinesByNumber) {
  for (const char* line : {"steps", "= 3", "[run]", "steps # = 3", "out = \"open", "out = \"a\" b", "out = \"a\\"}) {
    try {
      Read(std::string("steps = 1\n") + line);
      ADD_FAILURE() << line;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("'a.ini', line 2"), std::string::npos) << error.what();
    }
  }
}

TEST(ConfigFile, WrittenValuesReadBack) {
  for (const std::string value : {"3", "run#2", "run #2", "#", " a", "a ", "\"", "\"a\"", "a\\b", "a\nb", "", "a = b"}) {
    EXPECT_EQ(Read("key = " + ConfigValue(value) + "\n"), (Entries{{"key", value}})) << value;
  }
  EXPECT_EQ(ConfigValue("/data/run#2"), "/data/run#2");
}

}  // namespace
}  // namespace weir
