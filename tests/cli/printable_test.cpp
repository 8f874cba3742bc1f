#include "cli/printable.h"

#include "tests/cli/commands.h"

namespace weir {
namespace {

TEST(Printable, LeavesTextAndShowsWhatIsNone) {
  EXPECT_EQ(Printable("a 'name':\n  \twith é, 字 and \xF0\x9F\x99\x82"), "a 'name':\n  \twith é, 字 and \xF0\x9F\x99\x82");
  EXPECT_EQ(Printable("red \x1b[31m, bell \x07, del \x7f, back \r"), "red \\x1b[31m, bell \\x07, del \\x7f, back \\x0d");
  EXPECT_EQ(Printable("\xff\xfe, \xc0\xaf, \xed\xa0\x80, \xf4\x90\x80\x80, \xc2\x9b"), "\\xff\\xfe, \\xc0\\xaf, \\xed\\xa0\\x80, \\xf4\\x90\\x80\\x80, \\xc2\\x9b");
  EXPECT_EQ(Printable("cut \xe5\xad"), "cut \\xe5\\xad");
  EXPECT_EQ(Printable(""), "");
}

TEST_F(Cli, NamesOfADamagedModelReachTheTerminalAsText) {
  std::string bytes = Slurp(kModel);
  for (size_t at = 0; (at = bytes.find("Softmax", at)) != std::string::npos;) bytes.replace(at + 1, 2, "\xff\x1b");
  std::ofstream(folder_ / "bad.onnx", std::ios::binary) << bytes;
  const Result result = Weir("import " + (folder_ / "bad.onnx").string());
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("S\\xff\\x1btmax"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace weir
