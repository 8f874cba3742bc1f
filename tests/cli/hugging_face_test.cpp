// A Hugging Face checkpoint there and back, as the guides say: transformers loads what was trained, whole.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace weir {
namespace {

namespace fs = std::filesystem;

TEST(HuggingFace, ACheckpointIsVerifiedTrainedAndLoadedAgain) {
  const fs::path root = WEIR_SOURCE_DIR;
  const std::string python = (root / ".venv/bin/python").string();
  if (std::system((python + " -c 'import onnxruntime, onnxscript, transformers' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "torch, transformers, onnxscript and onnxruntime are not installed in .venv";
  }
  const fs::path folder = fs::temp_directory_path() / ("weir_hugging_face_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const std::string script = (root / "tests/cli/hugging_face.py").string();
  EXPECT_EQ(std::system((python + " -W ignore " + script + " " WEIR_PROGRAM " " + root.string() + " " + folder.string()).c_str()), 0);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weir
