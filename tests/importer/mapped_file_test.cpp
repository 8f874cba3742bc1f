#include "importer/mapped_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "graph/error.h"
#include "importer/output_file.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class MappedFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("weir_mapped_" + std::string(info->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream(path_ = folder_ / "weights.data") << std::string(static_cast<size_t>(kBytes), 'w');
  }
  void TearDown() override { fs::remove_all(folder_); }
  static std::string Message(const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIoError);
      return error.message();
    }
    return "";
  }
  const int64_t page_ = sysconf(_SC_PAGESIZE), kBytes = 3 * page_;
  fs::path folder_, path_;
};

TEST_F(MappedFiles, AReadOfWhatWasCutEndsInWords) {
  const auto file = MappedFile::Open(path_);
  fs::resize_file(path_, static_cast<uintmax_t>(page_));
  const volatile std::byte* bytes = file->bytes().data();
  EXPECT_EQ(std::byte(bytes[page_ - 1]), std::byte('w'));
  const std::string words = "weir: IoError: cannot read byte " + std::to_string(2 * page_ + 5) + " of '.*weights.data': the file was cut while it was read, from " +
                            std::to_string(kBytes) + " bytes to " + std::to_string(page_) + "; put the whole file back and start again\n$";
  EXPECT_EXIT(static_cast<void>(std::byte(bytes[2 * page_ + 5])), testing::ExitedWithCode(1), words);
  fs::remove(path_);
  EXPECT_EXIT(static_cast<void>(std::byte(bytes[2 * page_ + 5])), testing::ExitedWithCode(1), "or the file, of " + std::to_string(kBytes) + " bytes when it was opened, was cut or removed");
}

// The kernel reads then, not the process.
TEST_F(MappedFiles, WritingWhatWasCutEndsInTheSameWords) {
  const auto file = MappedFile::Open(path_);
  fs::resize_file(path_, static_cast<uintmax_t>(page_));
  EXPECT_EXIT(OutputFile(folder_ / "copy").Write(file->bytes()), testing::ExitedWithCode(1), "the file was cut while it was read");
}

TEST_F(MappedFiles, OtherBusErrorsStayWhatTheyAre) {
  const auto file = MappedFile::Open(path_);
#ifdef __SANITIZE_ADDRESS__  // whose handler was there first: it tells, and exits
  EXPECT_EXIT(raise(SIGBUS), testing::ExitedWithCode(1), "AddressSanitizer: BUS");
#else
  EXPECT_EXIT(raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
#endif
}

// Bytes beyond the end within the last page read as zeros: nothing faults.
TEST_F(MappedFiles, AChangeIsTold) {
  {
    const auto file = MappedFile::Open(path_);
    EXPECT_EQ(Message([] { MappedFile::CheckUnchanged(); }), "");
    fs::resize_file(path_, static_cast<uintmax_t>(kBytes - 1));
    const std::string cut = "'" + path_.string() + "' was written to while it was read: it had " + std::to_string(kBytes) + " bytes and has " + std::to_string(kBytes - 1);
    EXPECT_EQ(Message([] { MappedFile::CheckUnchanged(); }).find(cut), 0u);
    EXPECT_EQ(Message([&] { file->CheckWhole(); }).find(cut), 0u);
  }
  EXPECT_EQ(Message([] { MappedFile::CheckUnchanged(); }), "") << "nobody reads it any more";
}

TEST_F(MappedFiles, NewBytesOfTheSameSizeAreTold) {
  const auto file = MappedFile::Open(path_);
  fs::last_write_time(path_, fs::last_write_time(path_) + std::chrono::milliseconds(20));
  EXPECT_NE(Message([] { MappedFile::CheckUnchanged(); }).find("was written to while it was read"), std::string::npos);
  EXPECT_EQ(Message([&] { file->CheckWhole(); }), "");
}

TEST_F(MappedFiles, AnAppendedLineIsNoCut) {
  const auto file = MappedFile::Open(path_);
  std::ofstream(path_, std::ios::app) << "more";
  EXPECT_EQ(Message([&] { file->CheckWhole(); }), "");
  EXPECT_NE(Message([] { MappedFile::CheckUnchanged(); }), "");
}

TEST_F(MappedFiles, AReplacedFileIsWhole) {
  const auto file = MappedFile::Open(path_);
  std::ofstream(folder_ / "new") << "short";
  fs::rename(folder_ / "new", path_);
  EXPECT_EQ(Message([] { MappedFile::CheckUnchanged(); }), "");
  EXPECT_EQ(file->bytes().back(), std::byte('w'));
}

}  // namespace
}  // namespace weir
